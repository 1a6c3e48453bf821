"""A wrapper around a user's function: a function of the same kind, with the same hooks.

`pipeline.streaming.calls.functions` defines the kinds: coroutine functions, functions that take batches, and blocking
functions. A wrapper's work is an Around, which has a method for each kind and for each hook. What a function yields is
a list inside a wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from dispatcher.util.foreign import is_instance
from pipeline.streaming.calls.functions import (
    AnyFunction,
    called_of,
    check_batch_results,
    is_batch_function,
    is_coroutine_function,
    name_of,
    unbound,
)
from pipeline.streaming.function_forms import blocking_form, check_function, coroutine_form

Inner: TypeAlias = Callable[..., Any]
"""A call or a hook of the function. For a coroutine function it returns an awaitable."""


class CallWrapper:
    """What a wrapper does around calls and hooks: each method takes an inner callable and returns the one around it.

    These defaults change nothing. The callables of `coroutine`, `blocking` and `timeout` take one value, those of
    `batch` take a list; any thread may call those of `blocking`. If the function has no hooks, `open` and `close` get
    one that does nothing.
    """

    def coroutine(self, inner: Inner) -> Inner:
        return inner

    def batch(self, inner: Inner) -> Inner:
        return inner

    def blocking(self, inner: Inner) -> Inner:
        return inner

    def timeout(self, inner: Inner) -> Inner:
        return inner

    def open(self, inner: Inner) -> Inner:
        return inner

    def close(self, inner: Inner) -> Inner:
        return inner


class Converted(CallWrapper):
    """Converts what a call or `timeout` returns. An error of `convert` fails the call; in a batch, its value alone."""

    def __init__(self, convert: Callable[[Any], Sequence[Any]]) -> None:
        self._convert = convert

    def coroutine(self, inner: Inner) -> Inner:
        convert = self._convert

        async def async_invoke(value: Any) -> Any:
            return convert(await inner(value))

        return async_invoke

    def batch(self, inner: Inner) -> Inner:
        convert = self._convert

        def converted(entry: Any) -> Any:
            if is_instance(entry, BaseException):
                return entry
            try:
                return convert(entry)
            except Exception as error:
                return error

        async def async_invoke_batch(values: list[Any]) -> list[Any]:
            return [converted(entry) for entry in check_batch_results(await inner(values), len(values))]

        return async_invoke_batch

    def blocking(self, inner: Inner) -> Inner:
        convert = self._convert
        return lambda value: convert(inner(value))

    def timeout(self, inner: Inner) -> Inner:
        return Converted.blocking(self, inner)


class Wrapped:
    """`inner` inside `around`, with the methods and hooks by which a host recognizes the kind of a function."""

    def __init__(self, inner: Any, around: CallWrapper) -> None:
        self.__qualname__ = name_of(inner)
        self.__module__ = unbound(inner).__module__
        hooks: list[Any] = [getattr(inner, name, None) for name in ("open", "close")]
        opening, closing = hooks if all(map(callable, hooks)) else [_nothing, _nothing]  # as hosts do: both or neither
        self.open, self.close = around.open(opening), around.close(closing)
        if callable(timeout := getattr(inner, "timeout", None)):
            self.timeout: Inner = around.timeout(blocking_form(timeout))
        if callable(own_retries := getattr(inner, "own_retries", None)):
            self.own_retries = own_retries
        if is_batch_function(inner):
            self.async_invoke_batch: Inner = around.batch(coroutine_form(inner.async_invoke_batch))
        elif is_coroutine_function(inner):
            self.async_invoke: Inner = around.coroutine(coroutine_form(getattr(inner, "async_invoke", inner)))
        else:
            self._call = around.blocking(blocking_form(inner))

    def __call__(self, value: Any) -> Any:
        return self._call(value)


def as_called(function: AnyFunction[Any, Any]) -> Any:
    """The function in the form that hosts call: itself, or a wrapper if its calls yield results.

    The wrapper pickles if the function does. A worker of Spark need not know the types in its annotations.

    Raises:
        TypeError: it cannot be called, or not as it is meant; see `check_function`.
    """
    check_function(function)
    form = coroutine_form if is_coroutine_function(function) else blocking_form
    called, timeout = called_of(function), getattr(function, "timeout", _nothing)
    is_plain = form(called) is called and blocking_form(timeout) is timeout
    return function if is_plain else Wrapped(function, CallWrapper())


def _nothing() -> None:
    return None
