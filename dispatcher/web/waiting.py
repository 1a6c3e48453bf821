"""Helpers for endpoints, which must not block the loop: waits with a deadline, long work in pieces or on threads, and
answers that clients share."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from dispatcher.util.functions import require_kind
from dispatcher.util.threads import NO_THREAD
from dispatcher.web.plain_answers import SOON, Refusal, to_json

T = TypeVar("T")

LONGEST_PIECE_S: Final = 0.005
BURST_S: Final = 3.0
OFF_LOOP_S: Final = 10.0
"""Work on a thread that takes longer gives its client 503."""
_WORKERS: Final = 8
"""Most such threads of one app."""


async def within(future: Future[T], seconds: float) -> T:
    """The result of a future that another thread completes, such as of a mail to a handler thread.

    Never blocks the loop. The future is cancelled if it is late: work that has not begun is not done.

    Raises:
        TimeoutError: it is not done after `seconds`. Otherwise what the future raises.
    """
    require_kind(future, "future", Future)
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


class Workers:
    """Runs functions on threads of their own, at most `most` at a time. One loop's thread."""

    def __init__(self, most: int = _WORKERS) -> None:
        self._most = most
        self._busy = 0  # the loop's thread

    async def run(self, function: Callable[[], T], within_s: float = OFF_LOOP_S, *, late: str = "ask for less") -> T:
        """The function's result.

        Its thread is a daemon: one that hangs delays no exit. Raises Refusal (503) after `within_s`, which then says
        `late`, or without a thread, and (429) if `most` are at work already.
        """
        if self._busy >= self._most:
            raise Refusal(429, f"{self._most} such requests are in flight", SOON)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._busy += 1

        def done(result: Any, error: BaseException | None) -> None:
            self._busy -= 1
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def work() -> None:
            result: Any = None
            raised: BaseException | None = None
            try:
                result = function()
            except BaseException as error:
                raised = error
            try:
                loop.call_soon_threadsafe(done, result, raised)
            except RuntimeError:
                return  # the loop has ended meanwhile

        try:
            threading.Thread(target=work, name="ops-worker", daemon=True).start()
        except NO_THREAD as error:
            self._busy -= 1
            raise without_thread(error) from None
        try:
            return await asyncio.wait_for(future, within_s)
        except TimeoutError:
            raise Refusal(503, f"this took longer than {within_s:g} s; {late}", SOON) from None


def without_thread(error: BaseException) -> Refusal:
    """The answer where `error`, one of NO_THREAD, keeps a request from its thread."""
    return Refusal(503, f"no thread could be started: {error}", SOON)


class KeptResults(Generic[T]):
    """Keeps each result for `for_s`; clients that ask meanwhile share it. One loop's thread.

    With 0, clients share only what is being made.
    """

    def __init__(self, for_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._for_s = for_s
        self._clock_s = clock_s
        self._made: dict[Any, tuple[float, T]] = {}
        self._making: dict[Any, asyncio.Future[T]] = {}

    def get(self, key: Any) -> T | None:
        """The result, if it was made less than `for_s` ago."""
        now_s = self._clock_s()
        for old in [each for each, (at_s, _) in self._made.items() if now_s - at_s >= self._for_s]:
            del self._made[old]
        found = self._made.get(key)
        return None if found is None else found[1]

    def is_making(self) -> bool:
        return bool(self._making)

    async def make(self, key: Any, function: Callable[[], Awaitable[T]]) -> T:
        """The kept result, or the one that is being made, or a new one."""
        kept = self.get(key)
        if kept is not None:
            return kept
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.ensure_future(self._make(key, function))
        # A client that leaves must not take the result from the others.
        return await asyncio.shield(task)

    async def _make(self, key: Any, function: Callable[[], Awaitable[T]]) -> T:
        try:
            found = await function()
            if self._for_s:
                self._made[key] = self._clock_s(), found
            return found
        finally:
            del self._making[key]


class Kept(KeptResults[bytes]):
    """The same for answers, which it keeps as JSON."""

    async def make(self, key: Any, function: Callable[[], Awaitable[Any]]) -> bytes:
        async def encoded() -> bytes:
            return to_json(await function())

        return await super().make(key, encoded)
