"""The functions that an asynchronous operator calls, after Flink's AsyncFunction, and their return values.

A function is one of
- an AsyncFunction: it can open and close connections, and may take many values at once;
- a coroutine function (or a callable with an `async def __call__`), called on an asyncio loop;
- any other callable: it may block, and is called on a bounded thread pool.

A returned list is a list of results. Any other value but None is one result. A function whose return type is an
iterator, such as `Iterator[int]` or `AsyncIterator[int]`, gives one result with each `yield`; see
`pipeline.streaming.function_forms`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from dispatcher.errors import InvalidTypeError, InvalidValueError
from pipeline.streaming.errors import AsyncTimeoutError, quoted
from pipeline.streaming.return_types import ASYNC_ITERATORS, AWAITABLES, kinds_returned

In = TypeVar("In")
Out = TypeVar("Out")

METHODS: Final = ("async_invoke_batch", "async_invoke")
"""The methods that are called; the first that there is."""
_GENERATORS: Final = (types.GeneratorType, types.AsyncGeneratorType)


class AsyncFunction(Generic[In, Out]):
    """A function with life-cycle hooks. All but `timeout` runs on the host's asyncio thread, so you need no locks.

    In your subclass, define `async_invoke`, or `async_invoke_batch` for a service that takes many values in one call:

        async def async_invoke_batch(self, values: list[In]) -> list[list[Out] | Exception]

    The batch form returns one list for each value, in order. An Exception in place of a list fails only that value, and
    a raised exception fails them all. To send an instance to Spark, it must pickle, so connect in `open`, not before.

    Both forms can yield, if their return type is an AsyncIterator: `async_invoke` yields results, the batch form yields
    the list for one value after the other. Neither can be a plain method, which would block the loop. A class with a
    `__call__` in their place, and with plain methods as hooks, is called on threads.

    If your function repeats calls itself, you can also define `own_retries(self) -> int`, the number of repeated calls
    so far. It must never fall, and any thread can call it at any time. CallMetrics then counts these calls.
    """

    def open(self) -> Awaitable[None] | None:
        """Called once before the first call. Can be a coroutine. If it raises, the task doesn't start.

        The task waits for it and can't be cancelled meanwhile, so put a timeout on anything that can hang.
        """
        return None

    def close(self) -> Awaitable[None] | None:
        """Called once after the last call, even after a failure, if `open` succeeded. Can be a coroutine."""
        return None

    def async_invoke(self, value: In) -> Coroutine[Any, Any, Out | list[Out]] | AsyncIterator[Out]:
        """Call the service for one value. An `async def` that returns its result or a list of results, or yields."""
        raise NotImplementedError

    def timeout(self, value: In) -> Out | list[Out] | Iterator[Out]:
        """Return what to emit for an unanswered `value`, as `async_invoke`. Called on the engine's thread.

        If an override raises, that's the record's error.

        Raises:
            AsyncTimeoutError: by default.
        """
        raise AsyncTimeoutError


AnyFunction: TypeAlias = AsyncFunction[In, Out] | Callable[[In], Any]


def is_batch_function(function: AnyFunction[Any, Any]) -> bool:
    """Whether the function takes many values at once."""
    return callable(getattr(function, "async_invoke_batch", None))


def unbound(function: Any) -> Any:
    """The function inside partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def method_of(function: Any) -> str | None:
    """The name of the method of an AsyncFunction that is called; None for any other function."""
    return next((name for name in METHODS if callable(getattr(function, name, None))), None)


def called_of(function: AnyFunction[Any, Any]) -> Any:
    """What is called for a value, or for many: a method of an AsyncFunction, or else the function, out of partials."""
    inner = unbound(function)
    if (method := method_of(inner)) is not None:
        return getattr(inner, method)
    is_object = callable(inner) and not (inspect.isroutine(inner) or isinstance(inner, type))
    return inner.__call__ if is_object else inner


def is_coroutine_function(function: AnyFunction[Any, Any]) -> bool:
    """Whether the function's calls run on an asyncio loop, and not on a thread pool.

    Raises:
        TypeError: it is not callable.
    """
    if method_of(function) is not None:
        return True
    if not callable(function):
        raise InvalidTypeError(f"{function!r} is not callable; give an AsyncFunction, an async def or a plain function")
    return inspect.iscoroutinefunction(function) or runs_on_loop(called_of(function))


def runs_on_loop(called: Any) -> bool:
    """Whether what is called is a coroutine function or an async generator, or declares to return what these do."""
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        return True
    return not inspect.isgeneratorfunction(called) and not kinds_returned(called).isdisjoint(
        ASYNC_ITERATORS | AWAITABLES
    )


def name_of(function: AnyFunction[Any, Any]) -> str:
    """The function's name in messages."""
    function = unbound(function)
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def as_results(returned: Any) -> Sequence[Any]:
    """A function's return value as a sequence of results.

    Raises:
        TypeError: it returned None, an awaitable or a generator.
    """
    if isinstance(returned, list):
        return returned
    if returned is None:
        raise InvalidTypeError(
            "the function returned None. Return a list of results; [] for no result, [None] for a null."
        )
    if isinstance(returned, _GENERATORS):
        raise InvalidTypeError(
            "the function returned a generator. Declare its return type as Iterator[...], or as AsyncIterator[...] if "
            "it is an async one: each yield is then a result. Or return a list."
        )
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise InvalidTypeError("the function returned an awaitable. Declare it with async def, so that it is awaited.")
    return (returned,)


def check_batch_results(returned: Any, number: int) -> Sequence[Any]:
    """A batch function's return value, which must have one entry for each of the `number` values.

    Raises:
        TypeError: it is not a list. ValueError: it has another length.
    """
    if not isinstance(returned, list | tuple):
        raise InvalidTypeError(
            f"async_invoke_batch returned {quoted(returned)}. Return a list with one list for each value."
        )
    if len(returned) != number:
        raise InvalidValueError(
            f"async_invoke_batch returned {len(returned)} entries for {number} values. "
            "Return one list for each value, in the same order; [] for no result."
        )
    return returned
