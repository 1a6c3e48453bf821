"""Wake-up of an idle consumer: from a post to the first line of its handler, in microseconds.

Each consumer gets one post in turn, so that a slow moment hits all alike. The producer then waits for a lock that the
handler releases, and sleeps until the consumer surely waits again. No thread spins, so none holds the GIL meanwhile.

Where the threads run decides as much as what they do, so there are three placements: as the system likes, producer and
consumers on one core, and the producer on one core and the consumers on another.
"""

from __future__ import annotations

import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import truediv
from typing import Any, NamedTuple

from core.dispatchers import config
from core.peers import AnyQueue, start_loop, start_taking
from load import Kind, Post
from measure import Figures, Settings
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, Event, register_metrics

PAUSE_S = 200e-6
RUNS = 10
PERCENTILES = (50, 99, 99.9)


class Waking:
    """The handler: notes when it was called, and releases the poster."""

    def __init__(self) -> None:
        self.called_ns = 0
        self.called = threading.Lock()
        self.called.acquire()

    def handle(self, event: Any) -> None:
        self.called_ns = time.perf_counter_ns()
        self.called.release()


Consumer = Callable[[Waking], Any]  # a context manager of the post


@contextmanager
def _dispatcher(waking: Waking) -> Iterator[Post]:
    with AsyncDispatcher(config()) as dispatcher:
        dispatcher.register(Kind, waking)
        register_metrics(dispatcher, CollectorRegistry())
        yield dispatcher.event_handler.handle


@contextmanager
def _queue(make: Callable[[], AnyQueue], waking: Waking) -> Iterator[Post]:
    waiting = make()
    thread = start_taking(waiting, waking.handle)
    try:
        yield waiting.put
    finally:
        waiting.put(None)
        thread.join()


@contextmanager
def _asyncio(waking: Waking) -> Iterator[Post]:
    loop, thread = start_loop()
    try:
        yield partial(loop.call_soon_threadsafe, waking.handle)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


CONSUMERS: dict[str, tuple[str, Consumer]] = {
    "ours": ("AsyncDispatcher, metrics on", _dispatcher),
    "simple": ("queue.SimpleQueue and a thread", partial(_queue, queue.SimpleQueue)),
    "queue": ("queue.Queue and a thread", partial(_queue, queue.Queue)),
    "asyncio": ("asyncio, call_soon_threadsafe", _asyncio),
}


class Placement(NamedTuple):
    """The cores on which a run's threads stay; None: wherever the system puts them."""

    name: str
    producer: set[int] | None
    consumers: set[int] | None


def placements() -> dict[str, Placement]:
    """Those that this process may use: on one core there is nothing to place."""
    places = {"free": Placement("placed by the system", None, None)}
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(cores) > 1:
        first, second, *_ = cores
        places["one"] = Placement("pinned to one core", {first}, {first})
        places["two"] = Placement("pinned to two cores", {first}, {second})
    return places


@contextmanager
def _pinned(cores: set[int] | None) -> Iterator[None]:
    """The calling thread, and the threads that it starts meanwhile, stay on these cores."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Latency:
    """Each figure is the median of the runs' own percentiles, and each ratio the median of the runs' own ratios."""

    def __init__(self, settings: Settings) -> None:
        self._samples = settings.count(1_000)
        self._repeats = settings.repeats
        self._rounds = 0
        self._placements = placements()
        # By placement, then by consumer: the percentiles of each run, in microseconds.
        self._runs: dict[str, dict[str, list[list[float]]]] = {
            place: {key: [] for key in CONSUMERS} for place in self._placements
        }

    def warm_up(self) -> None:
        for placement in self._placements.values():
            self._sample(20, placement)

    def round(self) -> None:
        """The rounds together have ten runs of each placement, or one each if there are more rounds."""
        self._rounds += 1
        while len(self._runs["free"]["ours"]) < max(self._rounds, RUNS * self._rounds / self._repeats):
            for place, placement in self._placements.items():
                for key, samples in self._sample(self._samples, placement).items():
                    self._runs[place][key].append([_percentile(samples, each) / 1e3 for each in PERCENTILES])

    def _sample(self, count: int, placement: Placement) -> dict[str, list[int]]:
        event = Event(Kind.TICK, 0.0)
        taken: dict[str, list[int]] = {key: [] for key in CONSUMERS}
        with ExitStack() as stack:
            running = []
            with _pinned(placement.consumers):
                for key, (_, consumer) in CONSUMERS.items():
                    waking = Waking()
                    running.append((waking, stack.enter_context(consumer(waking)), taken[key].append))
            stack.enter_context(_pinned(placement.producer))
            for _ in range(count):
                for waking, post, note in running:
                    time.sleep(PAUSE_S)
                    posted_ns = time.perf_counter_ns()
                    post(event)
                    waking.called.acquire()
                    note(waking.called_ns - posted_ns)
        return taken

    def report(self) -> Figures:
        figures: Figures = {}
        for place, placement in self._placements.items():
            runs = self._runs[place]
            print(f"\nWake-up of an idle consumer in us, threads {placement.name}, lower is better")
            print(f"{'medians of':>35} {len(runs['ours']):>3} runs of {self._samples:,}", end="")
            print("".join(f"{f'p{each:g}':>9} {': Simple':>9}" for each in PERCENTILES))
            for key, (name, _) in CONSUMERS.items():
                columns = []
                for place_of, percent in enumerate(PERCENTILES):
                    mine = [run[place_of] for run in runs[key]]
                    simple = [run[place_of] for run in runs["simple"]]
                    ratio = statistics.median(map(truediv, mine, simple))
                    figures[f"wake.{place}.{key}-p{percent:g}"] = statistics.median(mine)
                    figures[f"wake.{place}.{key}-p{percent:g}-ratio"] = ratio
                    columns.append(f"{statistics.median(mine):9,.1f} {ratio:7.2f} x")
                print(f"{name:54}" + "".join(columns))
        return figures


def _percentile(samples: list[int], percent: float) -> float:
    return statistics.quantiles(samples, n=1000, method="inclusive")[round(percent * 10) - 1]
