"""Other ways to hand events to a handler on another thread, each doing the same work as the dispatcher."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import pykka
from load import Counting, Kind, Load

os.environ.setdefault("BUBUS_LOGGING_LEVEL", "CRITICAL")  # read by bubus when it is imported
import bubus

from dispatcher import Event

Peer = Callable[[Load, int], float]
AnyQueue = queue.Queue[Any] | queue.SimpleQueue[Any]
BUBUS_BURST = 40


def bare_loop(load: Load, count: int) -> float:
    """The limit: no threads, no waiting, only the deque and the call.

    Events made in the loop are handled one by one: a million of them alive at a time would measure the memory.
    """
    handler, waiting = Counting(), deque[Any]()
    append, popleft, handle = waiting.append, waiting.popleft, handler.handle

    def finish() -> None:
        while waiting:
            handle(popleft())

    if load.premade is not None:
        took = load.drive(count, append, finish)
    else:
        tick = Kind.TICK
        started = time.perf_counter()
        for _ in range(count):
            append(Event(tick, 0.0))
            handle(popleft())
        took = time.perf_counter() - started
    assert handler.handled == count
    return took


def start_taking(waiting: AnyQueue, handle: Callable[[Any], Any]) -> threading.Thread:
    """What people write by hand: a thread that takes from a queue until it gets None."""

    def work() -> None:
        get = waiting.get
        while (event := get()) is not None:
            handle(event)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def thread_over(make: Callable[[], AnyQueue], load: Load, count: int) -> float:
    handler, waiting = Counting(), make()
    thread = start_taking(waiting, handler.handle)

    def finish() -> None:
        waiting.put(None)
        thread.join()

    took = load.drive(count, waiting.put, finish)
    assert handler.handled == count
    return took


def thread_pool(load: Load, count: int) -> float:
    handler, pool = Counting(), ThreadPoolExecutor(1)
    pool.submit(int).result()  # its thread starts with the first task
    took = load.drive(count, partial(pool.submit, handler.handle), pool.shutdown)
    assert handler.handled == count
    return took


def start_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """An asyncio loop that runs on a thread of its own until it is stopped, then is closed."""
    loop, running = asyncio.new_event_loop(), threading.Event()

    def work() -> None:
        loop.call_soon(running.set)
        loop.run_forever()
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    running.wait()
    return loop, thread


def asyncio_loop(load: Load, count: int) -> float:
    handler = Counting()
    loop, thread = start_loop()

    def finish() -> None:
        loop.call_soon_threadsafe(loop.stop)  # comes after the callbacks
        thread.join()

    took = load.drive(count, partial(loop.call_soon_threadsafe, handler.handle), finish)
    assert handler.handled == count
    return took


class _Actor(pykka.ThreadingActor):
    use_daemon_thread = True

    def __init__(self, handle: Callable[[Any], Any]) -> None:
        super().__init__()
        self._handle = handle

    def on_receive(self, message: Any) -> Any:
        return self._handle(message)


def start_actor(handle: Callable[[Any], Any]) -> pykka.ActorRef[_Actor]:
    return _Actor.start(handle)


def pykka_actor(load: Load, count: int) -> float:
    handler = Counting()
    actor = start_actor(handler.handle)
    took = load.drive(count, actor.tell, actor.stop)  # the stop comes after the messages, and waits
    assert handler.handled == count
    return took


class Tick(bubus.BaseEvent[None]):
    """bubus has events of its own, each good for one dispatch."""


def bubus_bus(load: Load, count: int) -> float:
    """Posted on its event loop, where alone it takes events, in bursts that its queue of 50 takes, each awaited.

    With the shortest history, as it looks through its history for each event: the default of 50 is 5 times slower. It
    writes no file unless it is given a path.
    """
    handler = Counting()

    async def run() -> float:
        bus = bubus.EventBus(max_history_size=1)
        bus.on(Tick, handler.handle)
        events: Iterable[Tick] = (Tick() for _ in range(count))
        if load.premade is not None:
            events = list(events)
        waiting = iter(events)
        started = time.perf_counter()
        while burst := [bus.dispatch(event) for event in islice(waiting, BUBUS_BURST)]:
            await burst[-1]
        took = time.perf_counter() - started
        await bus.stop(clear=True)
        return took

    took = asyncio.run(run())
    assert handler.handled == count
    return took
