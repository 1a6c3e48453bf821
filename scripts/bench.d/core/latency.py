"""Wake-up of an idle consumer: from a post to the first line of its handler, in microseconds.

Each consumer gets one post in turn, so that a slow moment hits all alike. The producer then waits for a lock that the
handler releases, and sleeps until the consumer surely waits again. No thread spins, so none holds the GIL meanwhile.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from core.dispatchers import config
from core.peers import AnyQueue, start_loop, start_taking
from load import Kind, Post
from measure import Figures, Settings, Spread, print_table
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, Event, register_metrics

PAUSE_S = 200e-6


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


class Latency:
    """Samples of all rounds. The spread is between the rounds' own p50 and p99."""

    def __init__(self, settings: Settings) -> None:
        self._samples = settings.count(1_000)
        self._rounds: dict[str, list[list[int]]] = {key: [] for key in CONSUMERS}

    def warm_up(self) -> None:
        self._sample(20)

    def round(self) -> None:
        for key, samples in self._sample(self._samples).items():
            self._rounds[key].append(samples)

    def _sample(self, count: int) -> dict[str, list[int]]:
        event = Event(Kind.TICK, 0.0)
        taken: dict[str, list[int]] = {key: [] for key in CONSUMERS}
        with ExitStack() as stack:
            running = []
            for key, (_, consumer) in CONSUMERS.items():
                waking = Waking()
                running.append((waking, stack.enter_context(consumer(waking)), taken[key].append))
            for _ in range(count):
                for waking, post, note in running:
                    time.sleep(PAUSE_S)
                    posted_ns = time.perf_counter_ns()
                    post(event)
                    waking.called.acquire()
                    note(waking.called_ns - posted_ns)
        return taken

    def report(self) -> Figures:
        figures = {}
        for percent in (50, 99):
            spreads = {}
            for key, (name, _) in CONSUMERS.items():
                spreads[name] = Spread.of([_percentile(samples, percent) / 1e3 for samples in self._rounds[key]])
                figures[f"wake.{key}-p{percent}"] = spreads[name].median
            samples = sum(map(len, self._rounds["ours"]))
            title = f"Wake-up of an idle consumer, p{percent} in us of {samples:,} posts, lower is better"
            print_table(title, spreads, digits=1)
        return figures


def _percentile(samples: list[int], percent: int) -> float:
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]
