"""Bytes per queued event beyond the event itself.

Measured by tracemalloc. It sees all that the queue allocates, including the spare room of its blocks and lists; unlike
the resident size, it leaves out stacks and freed arenas. The events exist beforehand, and the handler is held at the
first one while the others are posted. The figure is the same in each run, so it is measured once.
"""

from __future__ import annotations

import queue
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from core.dispatchers import config
from core.peers import AnyQueue, start_taking
from load import Kind, Post
from measure import Figures, Settings, Spread, print_table
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, Event, register_metrics

MILLION = 1_000_000


class Holding:
    """The handler: stays in its first event until released."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self._released = threading.Event()

    def handle(self, event: Any) -> None:
        self.held.set()
        self._released.wait()

    def bytes_each(self, post: Post, events: Sequence[Any]) -> float:
        post(events[0])
        self.held.wait()
        tracemalloc.start()
        try:
            for event in events:
                post(event)
            return tracemalloc.get_traced_memory()[0] / len(events)
        finally:
            tracemalloc.stop()
            self._released.set()


def ours(events: Sequence[Any]) -> float:
    holding = Holding()
    with AsyncDispatcher(config()) as dispatcher:
        dispatcher.register(Kind, holding)
        register_metrics(dispatcher, CollectorRegistry())
        return holding.bytes_each(dispatcher.event_handler.handle, events)


def of_queue(make: Callable[[], AnyQueue], events: Sequence[Any]) -> float:
    holding, waiting = Holding(), make()
    thread = start_taking(waiting, holding.handle)
    try:
        return holding.bytes_each(waiting.put, events)
    finally:
        waiting.put(None)
        thread.join()


class Memory:
    """Measured in its report: once, and apart from the rounds, which it would slow down."""

    def __init__(self, settings: Settings) -> None:
        self._count = settings.count(MILLION)

    def warm_up(self) -> None: ...

    def round(self) -> None: ...

    def report(self) -> Figures:
        events = [Event(Kind.TICK, 0.0) for _ in range(self._count)]
        figures = {
            "AsyncDispatcher, metrics on": ours(events),
            "queue.SimpleQueue": of_queue(queue.SimpleQueue, events),
            "queue.Queue": of_queue(queue.Queue, events),
        }
        spreads = {name: Spread.of([each]) for name, each in figures.items()}
        title = f"Bytes per queued event beyond the event, {self._count:,} queued, by tracemalloc, lower is better"
        print_table(title, spreads, digits=2)
        return {"bytes.ours": figures["AsyncDispatcher, metrics on"]}
