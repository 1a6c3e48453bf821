"""Measurements behind every speed claim: each beside its peers, in one run, as medians.

scripts/bench [core|replay]...
"""

from __future__ import annotations

import argparse
import os
import platform
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pykka

from dispatcher import AsyncDispatcher, DispatcherConfig, Event
from statemachines.resourcemanager import Replay, ResourceManagerConfig
from statemachines.resourcemanager.workload import read_workload

REPEATS = 7
ROOT = Path(__file__).resolve().parents[2]


class Kind(Enum):
    TICK = 1


class Counting:
    """The handler: what it does is as little as a handler can do."""

    def __init__(self) -> None:
        self.handled = 0

    def handle(self, event: Event[Kind]) -> None:
        self.handled += 1


def async_dispatcher(config: DispatcherConfig) -> Callable[[list[Event[Kind]]], float]:
    def run(events: list[Event[Kind]]) -> float:
        handler = Counting()
        with AsyncDispatcher(config) as dispatcher:
            dispatcher.register(Kind, handler)
            post = dispatcher.event_handler.handle
            started = time.perf_counter()
            for event in events:
                post(event)
            dispatcher.await_drained()
            took = time.perf_counter() - started
        assert handler.handled == len(events)
        return took

    return run


def bare_loop(events: list[Event[Kind]]) -> float:
    """The limit: no threads, no waiting, only the deque and the call."""
    handler, waiting = Counting(), deque[Event[Kind]]()
    append, popleft, handle = waiting.append, waiting.popleft, handler.handle
    started = time.perf_counter()
    for event in events:
        append(event)
    while waiting:
        handle(popleft())
    return time.perf_counter() - started


def thread_over(make: Callable[[], queue.Queue[Event[Kind] | None] | queue.SimpleQueue[Event[Kind] | None]]):
    """What people write by hand: a thread that takes from a queue until it gets None."""

    def run(events: list[Event[Kind]]) -> float:
        handler, waiting = Counting(), make()

        def work() -> None:
            get, handle = waiting.get, handler.handle
            while (event := get()) is not None:
                handle(event)

        thread = threading.Thread(target=work)
        thread.start()
        put = waiting.put
        started = time.perf_counter()
        for event in events:
            put(event)
        put(None)
        thread.join()
        took = time.perf_counter() - started
        assert handler.handled == len(events)
        return took

    return run


class _Actor(pykka.ThreadingActor):
    use_daemon_thread = True

    def __init__(self, handler: Counting) -> None:
        super().__init__()
        self._handler = handler

    def on_receive(self, message: Event[Kind]) -> None:
        self._handler.handle(message)


def pykka_actor(events: list[Event[Kind]]) -> float:
    handler = Counting()
    actor = _Actor.start(handler)
    tell = actor.tell
    started = time.perf_counter()
    for event in events:
        tell(event)
    actor.stop()  # comes after the messages, and waits
    took = time.perf_counter() - started
    assert handler.handled == len(events)
    return took


def core() -> None:
    """Events per second from one producer, made beforehand, through a handler that counts."""
    million, fewer = 1_000_000, 100_000
    rows: list[tuple[str, int, Callable[[list[Event[Kind]]], float]]] = [
        ("AsyncDispatcher", million, async_dispatcher(DispatcherConfig())),
        ("AsyncDispatcher, bounded at 10,000", million, async_dispatcher(DispatcherConfig(queue_capacity=10_000))),
        ("AsyncDispatcher, times measured", million, async_dispatcher(DispatcherConfig(measure_times=True))),
        ("bare loop over a deque (the limit)", million, bare_loop),
        ("queue.SimpleQueue and a thread", million, thread_over(queue.SimpleQueue)),
        ("queue.Queue and a thread", fewer, thread_over(queue.Queue)),
        ("pykka actor", fewer, pykka_actor),
    ]
    events = [Event(Kind.TICK, 0.0) for _ in range(million)]
    rates: dict[str, list[float]] = {name: [] for name, _, _ in rows}
    for _ in range(REPEATS):  # one round after the other, so that a slow moment hits all alike
        for name, count, run in rows:
            rates[name].append(count / run(events[:count]))
    print("\nEvents per second, one producer, events made beforehand")
    own = statistics.median(rates["AsyncDispatcher"])
    print(f"{'':36} {'median':>12} {'lowest':>12} {'highest':>12} {'AsyncDispatcher is':>20}")
    for name, values in rates.items():
        middle = statistics.median(values)
        print(f"{name:36} {middle:12,.0f} {min(values):12,.0f} {max(values):12,.0f} {own / middle:18.2f} x")


def replay() -> None:
    """Replay speed on the sample workload, with the journal and without."""
    workload = read_workload(ROOT / "config" / "workloads" / "sample")
    config = ResourceManagerConfig.model_validate({"metrics": {"enabled": False}})
    print(f"\nReplay of the sample workload: {len(workload.applications):,} applications, {REPEATS} repeats")
    print(f"{'':36} {'events/s':>12} {'lowest':>12} {'highest':>12} {'containers/s':>14}")
    for name, journaled in (("with journal", True), ("without journal", False)):
        events, containers = [], []
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as folder:
                journal = Path(folder) / "journal" if journaled else None
                result = Replay(workload, config, journal_path=journal).run()
            events.append(result.events_per_s)
            containers.append(result.containers / result.wall_s)
        print(
            f"{name:36} {statistics.median(events):12,.0f} {min(events):12,.0f} {max(events):12,.0f} "
            f"{statistics.median(containers):14,.0f}"
        )


def main() -> None:
    benchmarks = {"core": core, "replay": replay}
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure, each beside its peers in one run.")
    parser.add_argument("what", nargs="*", help=f"any of {', '.join(benchmarks)}; default: all")
    chosen = parser.parse_args().what or list(benchmarks)
    unknown = [name for name in chosen if name not in benchmarks]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(benchmarks)}")
    print(f"Python {sys.version.split()[0]}, {platform.machine()}, {os.cpu_count()} cores, medians of {REPEATS}")
    for name in chosen:
        benchmarks[name]()


if __name__ == "__main__":
    main()
