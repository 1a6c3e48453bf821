"""The functions that an asynchronous operator calls, after Flink's AsyncFunction, and their return values.

A function is one of
- an AsyncFunction: it can open and close connections, and may take many values at once;
- a coroutine function (or a callable with an `async def __call__`), called on an asyncio loop;
- any other callable: it may block, and is called on a bounded thread pool.

A returned list is a list of results. Any other value but None is one result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from pipeline.streaming.errors import AsyncTimeoutError, quoted

In = TypeVar("In")
Out = TypeVar("Out")


class AsyncFunction(Generic[In, Out]):
    """A function with life-cycle hooks. All but `timeout` runs on the host's asyncio thread, so it needs no locks.

    A subclass defines `async_invoke`, or `async_invoke_batch` for a service that takes many values in one call:

        async def async_invoke_batch(self, values: list[In]) -> list[list[Out] | Exception]

    The batch form returns one list for each value, in order; an Exception in place of a list fails that value alone,
    and a raised exception fails them all. To be sent to Spark, an instance must pickle: connect in `open`, not before.

    A function that repeats calls itself may also define `own_retries(self) -> int`: how many it has repeated so far.
    The number never falls, and any thread may ask for it at any time. CallMetrics then counts these calls.
    """

    def open(self) -> Awaitable[None] | None:
        """Called once before the first call; may be a coroutine. If it raises, the task does not start.

        The task waits for it and cannot be cancelled meanwhile: put a timeout on anything that may hang.
        """
        return None

    def close(self) -> Awaitable[None] | None:
        """Called once after the last call, even after a failure, if `open` succeeded; may be a coroutine."""
        return None

    async def async_invoke(self, value: In) -> Out | list[Out]:
        """Call the service for one value; return its result, or a list of results."""
        raise NotImplementedError(f"{type(self).__name__} defines neither async_invoke nor async_invoke_batch")

    def timeout(self, value: In) -> Out | list[Out]:
        """What to emit for a `value` that was not answered in time, as `async_invoke`. Called on the engine's thread.

        Raises:
            AsyncTimeoutError: by default. Whatever an override raises is the record's error.
        """
        raise AsyncTimeoutError


AnyFunction: TypeAlias = AsyncFunction[In, Out] | Callable[[In], Any]


def is_batch_function(function: AnyFunction[Any, Any]) -> bool:
    """Whether the function takes many values at once."""
    return callable(getattr(function, "async_invoke_batch", None))


def is_coroutine_function(function: AnyFunction[Any, Any]) -> bool:
    """Whether the function's calls run on an asyncio loop, and not on a thread pool.

    Raises:
        TypeError: it is not callable.
    """
    if callable(getattr(function, "async_invoke", None)) or is_batch_function(function):
        return True
    if not callable(function):
        raise TypeError(f"{function!r} is not callable; give an AsyncFunction, an async def or a plain function")
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


def name_of(function: AnyFunction[Any, Any]) -> str:
    """The function's name in messages."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def as_results(returned: Any) -> Sequence[Any]:
    """A function's return value as a sequence of results.

    Raises:
        TypeError: it returned None, or an awaitable.
    """
    if isinstance(returned, list):
        return returned
    if returned is None:
        raise TypeError("the function returned None. Return a list of results; [] for no result, [None] for a null.")
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise TypeError("the function returned an awaitable. Declare it with async def, so that it is awaited.")
    return (returned,)


def check_batch_results(returned: Any, number: int) -> Sequence[Any]:
    """A batch function's return value, which must have one entry for each of the `number` values.

    Raises:
        TypeError: it is not a list. ValueError: it has another length.
    """
    if not isinstance(returned, list | tuple):
        raise TypeError(f"async_invoke_batch returned {quoted(returned)}. Return a list with one list for each value.")
    if len(returned) != number:
        raise ValueError(
            f"async_invoke_batch returned {len(returned)} entries for {number} values. "
            "Return one list for each value, in the same order; [] for no result."
        )
    return returned
