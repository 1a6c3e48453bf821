"""From the last event handled to the return of the stop that drains, in milliseconds."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

from core.dispatchers import config
from core.peers import start_actor, start_taking
from load import Kind
from measure import Figures, Settings, Spread, print_table
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, Event, register_metrics

EVENTS = 10_000
STOPS_PER_ROUND = 10


class Timing:
    """The handler: notes when it was called last."""

    def __init__(self) -> None:
        self.handled = 0
        self.last_s = 0.0

    def handle(self, event: Any) -> None:
        self.handled += 1
        self.last_s = time.perf_counter()


def ours(timing: Timing, events: list[Event[Kind]]) -> None:
    dispatcher = AsyncDispatcher(config())
    dispatcher.register(Kind, timing)
    register_metrics(dispatcher, CollectorRegistry())
    dispatcher.init()
    dispatcher.start()
    post = dispatcher.event_handler.handle
    for event in events:
        post(event)
    dispatcher.stop()


def simple_queue(timing: Timing, events: list[Event[Kind]]) -> None:
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread = start_taking(waiting, timing.handle)
    for event in events:
        waiting.put(event)
    waiting.put(None)
    thread.join()


def actor(timing: Timing, events: list[Event[Kind]]) -> None:
    actor = start_actor(timing.handle)
    for event in events:
        actor.tell(event)
    actor.stop()


SUBJECTS: dict[str, tuple[str, Callable[[Timing, list[Event[Kind]]], None]]] = {
    "ours": ("AsyncDispatcher.stop, draining", ours),
    "simple": ("queue.SimpleQueue: None, then join", simple_queue),
    "pykka": ("pykka actor.stop", actor),
}


class Stopping:
    def __init__(self, settings: Settings) -> None:
        self._events = [Event(Kind.TICK, 0.0) for _ in range(settings.count(EVENTS))]
        self._times_ms: dict[str, list[float]] = {key: [] for key in SUBJECTS}

    def warm_up(self) -> None:
        for _, subject in SUBJECTS.values():
            self._stop(subject)

    def round(self) -> None:
        for _ in range(STOPS_PER_ROUND):
            for key, (_, subject) in SUBJECTS.items():
                self._times_ms[key].append(self._stop(subject))

    def _stop(self, subject: Callable[[Timing, list[Event[Kind]]], None]) -> float:
        timing = Timing()
        subject(timing, self._events)
        took_ms = (time.perf_counter() - timing.last_s) * 1e3
        assert timing.handled == len(self._events)
        return took_ms

    def report(self) -> Figures:
        spreads = {name: Spread.of(self._times_ms[key]) for key, (name, _) in SUBJECTS.items()}
        stops = len(self._times_ms["ours"])
        print_table(
            f"From the last event handled to stop's return, in ms of {stops} stops, lower is better", spreads, digits=3
        )
        return {f"stop.{key}": spreads[name].median for key, (name, _) in SUBJECTS.items()}
