"""Events per second of `async def` handlers that do not wait, all of one key or each of its own.

The peer makes an asyncio task for each event on one thread, under a semaphore: of one slot where a key keeps its order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from core.dispatchers import config
from core.peers import start_loop
from load import Kind
from measure import RatePart, RateTable, Row, Settings

from dispatcher import AsyncDispatcher, Event

SLOTS = 100


class Keyed(Event[Kind]):
    __slots__ = ("lock_key",)

    def __init__(self, key: int) -> None:
        super().__init__(Kind.TICK, 0.0)
        self.lock_key = key


class CountingLater:
    """As Counting, but a coroutine."""

    def __init__(self) -> None:
        self.handled = 0

    async def handle(self, event: Any) -> None:
        self.handled += 1


def coroutines(settings: Settings) -> RatePart:
    """A table for one key, and one for many."""
    count = settings.count(60_000)
    tables = []
    for name, title, keys, slots in (("one", "one key", 1, 1), ("many", "a key each", count, SLOTS)):
        events = [Keyed(number % keys) for number in range(count)]
        rows = [
            Row("ours", "AsyncDispatcher, async def", count, partial(_dispatched, events)),
            Row("tasks", f"a task each, asyncio.Semaphore({slots})", count, partial(_tasks, events, slots)),
        ]
        title = f"Events per second to coroutines that do not wait, {title}"
        tables.append(RateTable(f"coroutines-{name}", title, rows))
    return RatePart(*tables)


def _dispatched(events: Sequence[Any], count: int) -> float:
    handler = CountingLater()
    loop, thread = start_loop()
    with AsyncDispatcher(config(), loop=loop) as dispatcher:
        dispatcher.register(Kind, handler)
        post = dispatcher.event_handler.handle
        started = time.perf_counter()
        for event in events[:count]:
            post(event)
        dispatcher.await_drained()
        took = time.perf_counter() - started
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    assert handler.handled == count
    return took


def _tasks(events: Sequence[Any], slots: int, count: int) -> float:
    handler = CountingLater()

    async def main() -> float:
        semaphore = asyncio.Semaphore(slots)

        async def handle(event: Any) -> None:
            async with semaphore:
                await handler.handle(event)

        started = time.perf_counter()
        await asyncio.gather(*[asyncio.create_task(handle(event)) for event in events[:count]])
        return time.perf_counter() - started

    took = asyncio.run(main())
    assert handler.handled == count
    return took
