"""What an endpoint may do on the loop, and what not: waits have deadlines, and long work is done in pieces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from typing import Final, TypeVar

T = TypeVar("T")

LONGEST_PIECE_S: Final = 0.005


async def within(future: Future[T], seconds: float) -> T:
    """The result of a future that another thread completes, such as of a mail to a handler thread.

    Never blocks the loop. The future is cancelled if it is late, so work that has not begun is not done for nobody.

    Raises:
        TimeoutError: it is not done after `seconds`. Otherwise what the future raises.
    """
    return await asyncio.wait_for(asyncio.wrap_future(future), seconds)


async def in_pieces(
    items: Iterable[T], longest_s: float = LONGEST_PIECE_S, *, clock_s: Callable[[], float] = time.perf_counter
) -> AsyncIterator[T]:
    """The items, with a turn for other requests, and other threads, whenever `longest_s` have passed since the last."""
    begun_s = clock_s()
    for item in items:
        yield item
        if clock_s() - begun_s >= longest_s:
            await asyncio.sleep(0)
            begun_s = clock_s()
