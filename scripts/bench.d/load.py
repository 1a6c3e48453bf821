"""The load: events and the threads that post them, the same for the dispatcher and each of its peers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dispatcher import Event


class Kind(Enum):
    TICK = 1


TickEvent = Event[Kind]
Post = Callable[[Any], Any]


class Counting:
    """A handler that does as little as possible: it counts."""

    def __init__(self) -> None:
        self.handled = 0

    def handle(self, event: Any) -> None:
        self.handled += 1


@dataclass(frozen=True)
class Load:
    """Events for `producers` threads: `premade` ones, or, if None, made in the loop that posts them."""

    producers: int = 1
    premade: Sequence[TickEvent] | None = None

    def drive(self, count: int, post: Post, finish: Callable[[], Any]) -> float:
        """Seconds to post `count` events in all and to `finish`, which returns once they are handled.

        One producer is the calling thread; several are threads that wait at a barrier until the clock runs.
        """
        if self.producers == 1:
            share = self._share(0, count)
            started = time.perf_counter()
            self._produce(post, share, count)
            finish()
            return time.perf_counter() - started
        barrier = threading.Barrier(self.producers + 1)
        each = count // self.producers

        def work(place: int) -> None:
            share = self._share(place * each, each)
            barrier.wait()
            self._produce(post, share, each)

        threads = [threading.Thread(target=work, args=(place,)) for place in range(self.producers)]
        for thread in threads:
            thread.start()
        started = time.perf_counter()
        barrier.wait()
        for thread in threads:
            thread.join()
        finish()
        return time.perf_counter() - started

    def _share(self, start: int, count: int) -> Sequence[TickEvent] | None:
        return None if self.premade is None else self.premade[start : start + count]

    def _produce(self, post: Post, share: Sequence[TickEvent] | None, count: int) -> None:
        if share is not None:
            for event in share:
                post(event)
        else:
            tick = Kind.TICK
            for _ in range(count):
                post(Event(tick, 0.0))
