"""Answers per second, to threads and to coroutines, and events that are posted later: their memory and their firing."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from core.dispatchers import config
from core.peers import start_actor
from load import Counting, Kind
from measure import Figures, RatePart, RateTable, Row, Settings, Spread, print_table

from dispatcher import AsyncDispatcher, Event, aio

MILLION = 1_000_000
TICK = Event(Kind.TICK, 0.0)
AT_ONCE = 100
"""Coroutines that ask at the same time."""

Asking = Callable[[Any], Awaitable[Any]]


def type_of(event: Any) -> Any:
    """The handler: gives an answer."""
    return event.type


def _wait_for_each(count: int, ask: Callable[[Any], Any]) -> float:
    started = time.perf_counter()
    for _ in range(count):
        ask(TICK)
    return time.perf_counter() - started


def ask_and_wait(count: int) -> float:
    with AsyncDispatcher(config()) as dispatcher:
        dispatcher.register(Kind, type_of)
        ask = dispatcher.ask
        return _wait_for_each(count, lambda event: ask(event).result())


def thread_pool(count: int) -> float:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # its thread starts with the first task
        submit = pool.submit
        return _wait_for_each(count, lambda event: submit(type_of, event).result())


def pykka_actor(count: int) -> float:
    actor = start_actor(type_of)
    try:
        return _wait_for_each(count, actor.ask)
    finally:
        actor.stop()


async def _await_each(count: int, at_once: int, ask: Asking) -> float:
    left = itertools.repeat(TICK, count)

    async def work() -> None:
        for event in left:
            await ask(event)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return time.perf_counter() - started


def aio_ask(at_once: int) -> Callable[[int], float]:
    def run(count: int) -> float:
        with AsyncDispatcher(config()) as dispatcher:
            dispatcher.register(Kind, type_of)
            return asyncio.run(_await_each(count, at_once, lambda event: aio.ask(dispatcher, event)))

    return run


def asyncio_queue(at_once: int) -> Callable[[int], float]:
    """Without a second thread: a task takes pairs of an event and a future from the queue."""

    async def main(count: int) -> float:
        loop, waiting = asyncio.get_running_loop(), asyncio.Queue[tuple[Any, asyncio.Future[Any]]]()

        async def answer() -> None:
            while True:
                event, future = await waiting.get()
                future.set_result(type_of(event))

        async def ask(event: Any) -> Any:
            future = loop.create_future()
            await waiting.put((event, future))
            return await future

        answering = asyncio.create_task(answer())
        try:
            return await _await_each(count, at_once, ask)
        finally:
            answering.cancel()

    return lambda count: asyncio.run(main(count))


def executor_from_loop(at_once: int) -> Callable[[int], float]:
    async def main(count: int) -> float:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            return await _await_each(count, at_once, lambda event: loop.run_in_executor(pool, type_of, event))

    return lambda count: asyncio.run(main(count))


class CountingTo(Counting):
    """Tells when the last one came."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last
        self.is_done = threading.Event()

    def handle(self, event: Any) -> None:
        self.handled += 1
        if self.handled == self._last:
            self.is_done.set()


def fire(count: int) -> float:
    """Of events that are due when the dispatcher starts: until all are handled."""
    handler = CountingTo(count)
    dispatcher = AsyncDispatcher(config())
    dispatcher.register(Kind, handler)
    for _ in range(count):
        dispatcher.post_after(0, TICK)
    dispatcher.init()
    started = time.perf_counter()
    dispatcher.start()
    handler.is_done.wait()
    took = time.perf_counter() - started
    dispatcher.stop()
    return took


def fire_loop(count: int) -> float:
    """Of callbacks that are due when the loop starts."""
    handler, loop = Counting(), asyncio.new_event_loop()
    for _ in range(count):
        loop.call_later(0, handler.handle, TICK)
    loop.call_later(1e-9, loop.stop)
    started = time.perf_counter()
    while handler.handled < count:
        loop.run_forever()
    took = time.perf_counter() - started
    loop.close()
    return took


class Asks(RatePart):
    """The memory is the same in each run, so it is measured once."""

    def __init__(self, settings: Settings) -> None:
        few, some, many = settings.count(30_000), settings.count(60_000), settings.count(MILLION)
        threads = [
            Row("ours", "AsyncDispatcher.ask(event).result()", some, ask_and_wait),
            Row("pool", "ThreadPoolExecutor(1).submit(...).result()", some, thread_pool),
            Row("pykka", "pykka's actor.ask(message)", few, pykka_actor),
        ]
        tables = [RateTable("ask", "Answers per second to a thread that waits for each", threads)]
        for at_once, title in ((1, "a coroutine that awaits each"), (AT_ONCE, f"{AT_ONCE} such coroutines")):
            rows = [
                Row("ours", "await aio.ask(dispatcher, event)", some, aio_ask(at_once)),
                Row("pool", "await loop.run_in_executor(pool of one)", some, executor_from_loop(at_once)),
                Row("queue", "asyncio.Queue, a future each, no thread", some, asyncio_queue(at_once)),
            ]
            tables.append(RateTable(f"aio-ask-{at_once}", f"Answers per second to {title}", rows))
        firing = [
            Row("ours", "post_after, to the handler's end", many, fire),
            Row("loop", "loop.call_later, on one thread", many, fire_loop),
        ]
        super().__init__(*tables, RateTable("fire", f"Timers fired per second, {many:,} that are due", firing))
        self._count = many

    def report(self) -> Figures:
        figures = super().report()
        dispatcher, loop = AsyncDispatcher(config()), asyncio.new_event_loop()
        bytes_each = {
            "ours": self._bytes_each(lambda: dispatcher.post_after(3600, TICK)),
            "loop": self._bytes_each(lambda: loop.call_later(3600, type_of, TICK)),
        }
        dispatcher.stop()
        loop.close()
        names = {"ours": "post_after", "loop": "loop.call_later"}
        spreads = {names[key]: Spread.of([each]) for key, each in bytes_each.items()}
        print_table(f"Bytes per timer, {self._count:,} that wait, by tracemalloc, lower is better", spreads)
        return figures | {f"timer-bytes.{key}": each for key, each in bytes_each.items()}

    def _bytes_each(self, add: Callable[[], Any]) -> float:
        tracemalloc.start()
        try:
            for _ in range(self._count):
                add()
            return tracemalloc.get_traced_memory()[0] / self._count
        finally:
            tracemalloc.stop()
