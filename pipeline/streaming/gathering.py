"""The results that a call yields, as a list, gathered for as long as they are wanted.

A loop gets other work done between them, and a call that is given up ends there: its generator is closed. On a thread
it ends with its next result. So a call that never stops yielding does not outlive its timeout.
"""

from __future__ import annotations

import asyncio
import threading
from collections import abc
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from dispatcher.errors import RejectedExecutionError
from pipeline.streaming.return_types import is_record

_RESULTS_PER_TURN: Final = 64
"""Results that a call may yield without waiting before timers and other calls of its loop get their turn."""

_thread = threading.local()


def gathers_while(is_wanted: Callable[[], bool]) -> None:
    """From now on, calls on this thread gather results only while this is true."""
    _thread.is_wanted = is_wanted


def gathered(returned: Any) -> Any:
    """What a function that declares an iterator has returned, as a list; what is no iterable of results, as it is.

    Raises:
        RejectedExecutionError: the call was given up.
    """
    if not _has_results(returned):
        return returned
    is_wanted: Callable[[], bool] | None = getattr(_thread, "is_wanted", None)
    if is_wanted is None:
        return list(returned)
    iterator, found = iter(returned), []
    for each in iterator:
        found.append(each)
        if not is_wanted():
            _close(iterator)
            raise RejectedExecutionError("the call was given up while it yielded results")
    return found


async def gathered_on_loop(returned: Any) -> Any:
    """What a function called on a loop has returned, as a list; also of an async iterable.

    A cancellation closes its generator.
    """
    if isinstance(returned, abc.AsyncIterable):
        return await _gathered_async(aiter(returned))
    if not _has_results(returned):
        return returned
    iterator, found = iter(returned), []
    try:
        while len(some := list(islice(iterator, _RESULTS_PER_TURN))) == _RESULTS_PER_TURN:
            found += some
            await asyncio.sleep(0)
    finally:
        _close(iterator)
    return found + some


async def _gathered_async(iterator: abc.AsyncIterator[Any]) -> list[Any]:
    found = []
    try:
        async for each in iterator:
            found.append(each)
            if not len(found) % _RESULTS_PER_TURN:
                await asyncio.sleep(0)
    finally:
        if isinstance(iterator, abc.AsyncGenerator):
            await iterator.aclose()
    return found


def _close(iterator: abc.Iterator[Any]) -> None:
    """Another iterator may be of something that its function goes on with, such as a connection."""
    if isinstance(iterator, abc.Generator):
        iterator.close()


def _has_results(returned: Any) -> bool:
    """Text, a map, a tuple or a record is one result."""
    if not isinstance(returned, abc.Iterable) or isinstance(returned, str | bytes | abc.Mapping | tuple):
        return False
    return not is_record(type(returned))
