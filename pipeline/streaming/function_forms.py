"""Users' functions, checked before anything runs, and the forms in which they are called.

| function | where its calls run | results of a call |
| --- | --- | --- |
| `async def` | the loop | what it returns |
| a plain function | a pool of threads | what it returns |
| an async generator, or what declares to return an `AsyncIterator` | the loop | each `yield` |
| a generator, or what declares to return an `Iterator` | a pool of threads | each `yield` |

A call that yields ends with its last result: none is emitted before, and a call that fails, is late or is made again
gives none of those before it. A generator has to declare that it yields results, because the whole of what it gives
could as well be one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from dispatcher.errors import InvalidTypeError
from pipeline.streaming.calls.functions import (
    AnyFunction,
    AsyncFunction,
    called_of,
    is_coroutine_function,
    method_of,
    name_of,
    runs_on_loop,
    unbound,
)
from pipeline.streaming.errors import quoted
from pipeline.streaming.gathering import gathered, gathered_on_loop
from pipeline.streaming.return_types import is_iterator, kinds_returned

_NAMES: Final = ("__module__", "__name__", "__qualname__")
"""What a form takes over from a function. Not its annotations, because the form returns something else."""


def check_function(function: AnyFunction[Any, Any]) -> None:
    """Refuse a function that could not be called, that would block the loop, or whose results cannot be recognized.

    Raises:
        TypeError: it is one.
    """
    is_async = is_coroutine_function(function)
    called, method = called_of(function), method_of(function)
    name = name_of(function) if method is None else f"{name_of(function)}.{method}"
    if getattr(called, "__func__", None) is AsyncFunction.async_invoke:
        raise InvalidTypeError(f"{name_of(function)} defines neither async_invoke nor async_invoke_batch")
    if method is not None and not _may_run_on_loop(called):
        raise InvalidTypeError(
            f"{name} is a plain method, so its calls would block each other. Declare it with async def. If it has to "
            "block, give a class with a __call__ in its place, which is called on threads."
        )
    _require_declared(name, called)
    for hook in ("open", "close"):
        if callable(given := getattr(function, hook, None)):
            _check_hook(f"{name_of(function)}: {hook}()", given, is_awaited=is_async)
    if callable(timeout := getattr(function, "timeout", None)):
        if runs_on_loop(timeout):
            raise InvalidTypeError(
                f"{name_of(function)}: timeout() cannot be a coroutine, as nothing awaits it; make it a plain method"
            )
        _require_declared(f"{name_of(function)}.timeout", timeout)


def check_plain(option: str, function: Any) -> None:
    """Refuse a coroutine function or a generator for an option: what it returns is neither awaited nor iterated.

    Raises:
        TypeError: it is one.
    """
    called = called_of(function)
    if inspect.iscoroutinefunction(called) or is_generator(called):
        kind = "a generator" if is_generator(called) else "a coroutine function"
        raise InvalidTypeError(
            f"{option} is {kind}, {name_of(function)}; give a plain function that returns what it gives"
        )


def is_generator(called: Any) -> bool:
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


def yields(called: Any) -> bool:
    """Whether each element of what a call returns is a result, as its return type says."""
    return any(map(is_iterator, kinds_returned(called)))


def coroutine_form(called: Callable[..., Any]) -> Callable[..., Any]:
    """What is called on a loop, as a coroutine function that returns a list of what it yields."""
    gathers = yields(called_of(called))
    if inspect.iscoroutinefunction(called_of(called)) and not gathers:
        return called

    @functools.wraps(called, assigned=_NAMES, updated=())
    async def call(*arguments: Any) -> Any:
        returned = called(*arguments)
        if inspect.isawaitable(returned):
            returned = await returned
        elif not gathers:
            raise InvalidTypeError(
                f"{name_of(called)} returned {quoted(returned)}, which cannot be awaited. Declare it with async def."
            )
        return await gathered_on_loop(returned) if gathers else returned

    return call


def blocking_form(called: Callable[..., Any]) -> Callable[..., Any]:
    """What is called on a thread, as a function that returns a list of what it yields."""
    if not yields(called_of(called)):
        return called

    @functools.wraps(called, assigned=_NAMES, updated=())
    def call(*arguments: Any) -> Any:
        return gathered(called(*arguments))

    return call


def _may_run_on_loop(called: Any) -> bool:
    """Whether it may return an awaitable or an async iterator: code that is not Python's does not say."""
    if inspect.isgeneratorfunction(called):
        return False
    inner = unbound(inspect.unwrap(called))
    return runs_on_loop(called) or runs_on_loop(inner) or not (inspect.isfunction(inner) or inspect.ismethod(inner))


def _require_declared(name: str, called: Any) -> None:
    if is_generator(called) and not yields(called):
        kind = "AsyncIterator" if inspect.isasyncgenfunction(called) else "Iterator"
        raise InvalidTypeError(
            f"{name} is a generator, but its return type does not say so. Declare it as {kind}[...], with the type of "
            "one result: each yield is then a result. Or return a list."
        )


def _check_hook(name: str, hook: Any, *, is_awaited: bool) -> None:
    """`open` or `close`, which is awaited if the function is."""
    if is_generator(hook):
        raise InvalidTypeError(f"{name} is a generator, which would do nothing; make it a method without yield")
    if inspect.iscoroutinefunction(hook) and not is_awaited:
        raise InvalidTypeError(f"{name} of a blocking function cannot be a coroutine; make it a plain method")
