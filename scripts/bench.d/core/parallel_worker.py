"""One round of `core.parallel`, in a process of its own: partitions, threads and processes side by side.

Prints a line of JSON: {"gil": bool, "rows": {table: {row: [events per second, us of processor time an event]}}}.
"""

from __future__ import annotations

import asyncio
import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Any

import pykka

from dispatcher import DispatcherConfig, MultiDispatcher

COUNTS = {0: 40_000, 5: 20_000, 25: 8_000, 100: 2_000}
"""Events, by the us of pure Python work that a handler does for each."""
PATIENCE_S = 120.0


class Kind(Enum):
    TICK = 1


class Keyed:
    """An event with a key, by which a MultiDispatcher places it."""

    __slots__ = ("lock_key", "type")

    def __init__(self, lock_key: int) -> None:
        self.type = Kind.TICK
        self.lock_key = lock_key


loops = 0
"""How many turns of its loop a handler makes."""


def handle(event: Any) -> None:
    """The handler of all rows."""
    value = 0
    for turn in range(loops):
        value ^= turn


def set_work(us: int) -> None:
    global loops
    loops = 0
    if us:
        loops = 10_000
        took_s = min(_timed(partial(handle, None)) for _ in range(20))
        loops = max(1, round(10_000 * us / 1e6 / took_s))


def _timed(run: Callable[[], Any]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


class System:
    """Something that hands events to `handle` on threads of its own. `hold` keeps those busy until the gate opens."""

    post: Callable[[Any], Any]

    def hold(self, gate: threading.Event) -> None: ...

    def finish(self) -> None:
        """Returns once all events are handled, and ends it."""


class Partitions(System):
    def __init__(self, partitions: int) -> None:
        self._dispatcher = MultiDispatcher(DispatcherConfig(drain_timeout_s=PATIENCE_S), partitions=partitions)
        self._dispatcher.register(Kind, handle)
        self._dispatcher.init()
        self._dispatcher.start()
        self.post = self._dispatcher.post

    def hold(self, gate: threading.Event) -> None:
        for partition in self._dispatcher.partitions:
            partition.mailbox_executor.execute(gate.wait, "hold")

    def finish(self) -> None:
        self._dispatcher.stop()


class Queues(System):
    """queue.Queue with a thread each."""

    def __init__(self) -> None:
        self._queues = tuple(queue.Queue[Any]() for _ in range(2))
        self._threads = [threading.Thread(target=self._take, args=(each.get,)) for each in self._queues]
        for thread in self._threads:
            thread.start()

    def post(self, event: Any) -> None:
        self._queues[event.lock_key & 1].put(event)

    def hold(self, gate: threading.Event) -> None:
        for each in self._queues:
            each.put(gate)

    def finish(self) -> None:
        for each in self._queues:
            each.put(None)
        for thread in self._threads:
            thread.join()

    @staticmethod
    def _take(get: Callable[[], Any]) -> None:
        while (event := get()) is not None:
            if type(event) is threading.Event:
                event.wait()
            else:
                handle(event)


class Pool(System):
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2)

    def post(self, event: Any) -> None:
        self._pool.submit(handle, event)

    def hold(self, gate: threading.Event) -> None:
        for _ in range(2):
            self._pool.submit(gate.wait)

    def finish(self) -> None:
        self._pool.shutdown()


class _Actor(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> None:
        if type(message) is threading.Event:
            message.wait()
        else:
            handle(message)


class Actors(System):
    def __init__(self) -> None:
        self._actors = [_Actor.start() for _ in range(2)]

    def post(self, event: Any) -> None:
        self._actors[event.lock_key & 1].tell(event)

    def hold(self, gate: threading.Event) -> None:
        for actor in self._actors:
            actor.tell(gate)

    def finish(self) -> None:
        for actor in self._actors:
            actor.stop(block=False)
        for actor in self._actors:
            actor.actor_stopped.wait()


class Loops(System):
    """asyncio, a loop each on a thread of its own."""

    def __init__(self) -> None:
        self._loops = [asyncio.new_event_loop() for _ in range(2)]
        self._threads = [threading.Thread(target=loop.run_forever) for loop in self._loops]
        for thread in self._threads:
            thread.start()

    def post(self, event: Any) -> None:
        self._loops[event.lock_key & 1].call_soon_threadsafe(handle, event)

    def hold(self, gate: threading.Event) -> None:
        for loop in self._loops:
            loop.call_soon_threadsafe(gate.wait)

    def finish(self) -> None:
        for loop in self._loops:
            loop.call_soon_threadsafe(loop.stop)
        for loop, thread in zip(self._loops, self._threads, strict=True):
            thread.join()
            loop.close()


SYSTEMS: dict[str, Callable[[], System]] = {
    "two": partial(Partitions, 2),
    "one": partial(Partitions, 1),
    "queue": Queues,
    "pool": Pool,
    "pykka": Actors,
    "asyncio": Loops,
}


def make(count: int, by_poster: bool) -> list[Keyed]:
    """Events made by the calling thread, which posts them, or by another one."""
    if by_poster:
        return list(map(Keyed, range(count)))
    made: list[Keyed] = []
    maker = threading.Thread(target=lambda: made.extend(map(Keyed, range(count))))
    maker.start()
    maker.join()
    return made


def _measured(count: int, run: Callable[[], Any]) -> tuple[float, float]:
    cpu_s = time.process_time()
    took_s = _timed(run)
    return count / took_s, (time.process_time() - cpu_s) / count * 1e6


def queued(system: System, count: int, by_poster: bool) -> tuple[float, float]:
    """All events are in the queues before the first is handled."""
    gate = threading.Event()
    system.hold(gate)
    for event in make(count, by_poster):
        system.post(event)

    def run() -> None:
        gate.set()
        system.finish()

    return _measured(count, run)


def posted(system: System, count: int, by_poster: bool) -> tuple[float, float]:
    """Two producers post while the events are handled."""
    begin = threading.Barrier(3)
    given = None if by_poster else make(count, False)

    def produce(first: int) -> None:
        events: Sequence[Keyed] = make(count // 2, True) if given is None else given[first::2]
        post = system.post
        begin.wait()
        for event in events:
            post(event)

    producers = [threading.Thread(target=produce, args=(first,)) for first in range(2)]
    for producer in producers:
        producer.start()

    def run() -> None:
        begin.wait()
        for producer in producers:
            producer.join()
        system.finish()

    return _measured(count, run)


FEEDS = {"queued": queued, "posted": posted}


def bare(threads: int, count: int) -> tuple[float, float]:
    """Threads that call the handler in a loop."""
    begin = threading.Barrier(threads + 1)

    def work() -> None:
        waiting = deque(map(Keyed, range(count // threads)))
        begin.wait()
        while waiting:
            handle(waiting.popleft())

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()

    def run() -> None:
        begin.wait()
        for worker in workers:
            worker.join()

    return _measured(count, run)


def processes(count: int, feed: str, by_poster: bool) -> tuple[float, float]:
    """Two processes, each with a dispatcher of one partition and half of the events."""
    arguments = [sys.executable, *_x_options(), __file__, "child", feed, str(int(by_poster)), str(count // 2)]
    children = [
        subprocess.Popen([*arguments, str(loops)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    figures = [json.loads(child.communicate()[0]) for child in children]
    return sum(rate for rate, _ in figures), sum(cpu_us for _, cpu_us in figures) / 2


def _x_options() -> list[str]:
    gil = sys._xoptions.get("gil")
    return ["-X", f"gil={gil}"] if gil is not None else []


def child(feed: str, by_poster: bool, count: int) -> None:
    system = Partitions(1)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(FEEDS[feed](system, count, by_poster)))


def round_of_all(scale: float) -> dict[str, dict[str, tuple[float, float]]]:
    """By table `WORK-FEED-MAKER` and row."""
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for us, most in COUNTS.items():
        set_work(us)
        count = max(20, int(most * scale) // 4 * 4)
        for feed, run in FEEDS.items():
            for maker in ("poster", "other"):
                table = rows[f"{us}-{feed}-{maker}"] = {}
                for key, system in SYSTEMS.items():
                    table[key] = run(system(), count, maker == "poster")
                table["bare"], table["bare-one"] = bare(2, count), bare(1, count)
                table["processes"] = processes(count, feed, maker == "poster")
    return rows


def main() -> None:
    global loops
    if sys.argv[1] == "child":
        feed, by_poster, count, loops = sys.argv[2], bool(int(sys.argv[3])), int(sys.argv[4]), int(sys.argv[5])
        child(feed, by_poster, count)
        return
    is_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    print(json.dumps({"gil": is_enabled(), "rows": round_of_all(float(sys.argv[1]))}))


if __name__ == "__main__":
    main()
