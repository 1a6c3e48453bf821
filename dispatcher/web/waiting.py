"""Helpers for endpoints, which must not block the loop: a wait with a deadline, and long work in pieces."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from typing import Final, TypeVar

T = TypeVar("T")

LONGEST_PIECE_S: Final = 0.005
BURST_S: Final = 3.0


async def within(future: Future[T], seconds: float) -> T:
    """The result of a future that another thread completes, such as of a mail to a handler thread.

    Never blocks the loop. The future is cancelled if it is late: work that has not begun is not done.

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


class Pace:
    """Spaces requests in their order of arrival, so that a flood of them does not take the interpreter.

    After a rest of `BURST_S`, that many seconds' worth passes at once. The loop's thread only.
    """

    def __init__(self, per_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._gap_s = 1 / per_s
        self._clock_s = clock_s
        self._next_s = -math.inf  # when the next request may begin if all before it used their turns

    def take_turn(self) -> float:
        """Take the next turn; returns in how many seconds it comes, at most 0.0 if it is now."""
        now_s = self._clock_s()
        begins_s = max(self._next_s, now_s - BURST_S)
        self._next_s = begins_s + self._gap_s
        return begins_s - now_s
