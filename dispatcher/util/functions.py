"""What a call of a callable does: run it, or only make an object that some other code has to run.

A generator, a coroutine and an async generator begin when they are first advanced. A caller that ignores the result of
such a function runs none of its body, and sees no error either.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from pathlib import Path
from types import WrapperDescriptorType
from typing import Any, Final, TypeVar, cast, get_type_hints

from dispatcher.errors import InvalidTypeError
from dispatcher.util.foreign import class_name, text_of

T = TypeVar("T")
_F = TypeVar("_F", bound=Callable[..., Any])

COROUTINE: Final = "an `async def` function"
_KINDS: Final = (
    (COROUTINE, inspect.iscoroutinefunction),
    ("a generator function", inspect.isgeneratorfunction),
    ("an async generator function", inspect.isasyncgenfunction),
)
_MOST_LAYERS: Final = 100
_STARTED_LATER: Final = (Coroutine, Generator, AsyncGenerator)
_UNRUN: Final = (*_STARTED_LATER, AbstractContextManager, AbstractAsyncContextManager)


def deferred_kind(function: Any) -> str | None:
    """The kind of function whose call runs nothing yet, such as `a generator function`; None: a call runs it.

    Looks through partials, bound methods and objects with `__call__`, but not through decorators.
    """
    return next((kind for layer in _layers(function) for kind, is_kind in _KINDS if is_kind(layer)), None)


def is_coroutine_function(function: Any) -> bool:
    """Whether calling it makes a coroutine: an `async def`, or an object whose `__call__` is one."""
    return deferred_kind(function) == COROUTINE


def called_class(function: Any) -> type | None:
    """The class of which a call makes an instance, also through partials; None: it calls a function."""
    *_, last = _layers(function)
    return last if isinstance(last, type) else None


def require_kind(value: Any, name: str, *kinds: type) -> None:
    """Check that an argument, called `name`, is of one of these classes.

    Raises:
        TypeError: it is not. The message names both.
    """
    if not isinstance(value, kinds):
        wanted = " or ".join(f"{'an' if each.__name__[0] in 'AEIO' else 'a'} {each.__name__}" for each in kinds)
        raise InvalidTypeError(f"{name} must be {wanted}, not {text_of(value)}")


def require_methods(value: Any, name: str, kind: str, *methods: str) -> None:
    """Check that an argument, called `name`, has the methods of a protocol that is called `kind`.

    Raises:
        TypeError: it lacks one.
    """
    if missing := next((each for each in methods if not callable(getattr(value, each, None))), None):
        raise InvalidTypeError(f"{name} must be {kind}; {text_of(value)} has no method {missing}")


def path_of(path: Any, name: str = "path") -> Path:
    """The path that a str or an `os.PathLike` names. Raises TypeError: it is neither."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidTypeError(f"{name} must be a str or a Path, not {text_of(path)}")
    return Path(path)


def require_plain(function: Any, name: str, does: str, *, is_hot: bool = False) -> Any:
    """What to call for `function`, an argument that is called `name` and `does` something, such as `returns an event's
    key`. It raises TypeError if a call has run nothing after all, such as `lambda: tidy_up()` of an `async def`.

    `is_hot`: only calls of a function that decorates such a one are checked.

    Raises:
        TypeError: it is not callable, or a call of it runs nothing.
    """
    if not callable(function):
        raise InvalidTypeError(f"{name} must be a callable that {does}; {text_of(function)} is not callable")
    kind = deferred_kind(function)
    if kind is not None:
        raise InvalidTypeError(
            f"{name} must be a plain function that {does}; {text_of(function)} is {kind}, which runs later"
        )
    checked = running_callable(function)
    return checked if is_hot or checked is not function else _Checked(function, None)


def ran(function: Any, result: T) -> T:
    """The `result` of a call of `function`. Raises TypeError if the call has run nothing."""
    if isinstance(result, _UNRUN) and (kind := deferred_kind(function)) is not None:
        _close(result)
        raise InvalidTypeError(f"{text_of(function)} is {kind}: calling it ran nothing. Pass a plain function")
    return result


def running_callable(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`; if it decorates one whose call runs nothing, with a check that the decorator has run that.

    Only the result tells: one decorator drives a generator to its end, another only logs the call.
    """
    *_, last = _layers(function)
    try:
        inner = inspect.unwrap(last)
    except ValueError:  # it wraps itself
        return function
    kind = deferred_kind(inner) if inner is not last else None
    return _Checked(function, kind) if kind is not None else function


class _Checked:
    """Calls a function, and raises TypeError if that has only made something to run."""

    __slots__ = ("_decorates", "_function")

    def __init__(self, function: Callable[..., Any], decorates: str | None) -> None:
        """`decorates`: None, if that is unknown. Then it may return what is a context manager among other things."""
        self._function, self._decorates = function, decorates  # never change

    def __call__(self, *args: Any) -> Any:
        result = self._function(*args)
        if isinstance(result, _UNRUN if self._decorates is not None else _STARTED_LATER):
            _close(result)
            why = f": it decorates {self._decorates}. Decorate" if self._decorates is not None else ". Pass"
            raise InvalidTypeError(
                f"{text_of(self._function)} returned a {class_name(result)} and ran nothing{why} a plain function, or "
                "have it run that."
            )
        return result


def _close(result: Any) -> None:
    """Without this, a coroutine would warn that it was never awaited."""
    with contextlib.suppress(Exception):
        result.close()


def _layers(function: Any) -> Iterator[Any]:
    """`function`, and what a call of it calls in turn."""
    for _ in range(_MOST_LAYERS):
        yield function
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isfunction(function) or isinstance(function, type | WrapperDescriptorType):
            return
        else:
            function = getattr(type(function), "__call__", None)  # noqa: B004 - what it is, not whether it exists
            if function is None:
                return


def public_name(function: Callable[..., Any]) -> str:
    """A method's name with its class; a function's with the package that has it."""
    if "." in function.__qualname__:
        return function.__qualname__
    return ".".join([*function.__module__.split(".")[:2], function.__name__])


def takes_options(accepted: type, made: Callable[..., Any], **defaults: object) -> Callable[[_F], _F]:
    """For a function with `**options: Unpack[accepted]`: pass it `defaults` for omitted options.

    Its signature has each option with its type, and with its default from `defaults` or from `made`, which the
    function calls with its options. An unknown name raises a TypeError.
    """
    hints = get_type_hints(accepted)
    values = {each.name: each.default for each in inspect.signature(made).parameters.values()} | defaults
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=values[name], annotation=hint)
        for name, hint in hints.items()
    ]

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        known = hints.keys() | {each.name for each in named}

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            if unknown := sorted(given.keys() - known):
                name = f"{type(args[0]).__name__}.{function.__name__}" if "self" in known else public_name(function)
                raise InvalidTypeError(f"{name}() got an unexpected keyword argument {unknown[0]!r}")
            return function(*args, **{**defaults, **given})

        checked.__signature__ = signature.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
        return cast(_F, checked)

    return decorate
