"""What a dispatcher counts: plain attributes, written by the owning thread alone and read at a scrape."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


class Histogram:
    """Durations in buckets of powers of two, from 1 ns up: one list index per observation, no search.

    Written by one thread; any thread may read, and sees a moment's truth.
    """

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * 65
        self.total_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Count a duration; a negative one (a clock that was set back) counts as 0."""
        duration_ns = max(duration_ns, 0)
        self.counts[min(duration_ns.bit_length(), 64)] += 1
        self.total_ns += duration_ns

    def buckets(self) -> list[tuple[float, int]]:
        """Cumulative counts by upper bound in seconds, from 1 microsecond to about 18 minutes, then infinity."""
        cumulative, result = 0, []
        for bits, count in enumerate(list(self.counts)):
            cumulative += count
            if 10 <= bits <= 40:
                result.append((2**bits / 1e9, cumulative))
        return [*result, (float("inf"), cumulative)]


class EventClassStats:
    """Counts of one event class, by the name of the event type."""

    __slots__ = ("event_class", "failed", "handled")

    def __init__(self, event_class: str) -> None:
        self.event_class = event_class
        self.handled: defaultdict[str, int] = defaultdict(int)
        self.failed: defaultdict[str, int] = defaultdict(int)


def snapshot(copy: Callable[[], T]) -> T:
    """Call `copy`, which copies a container that its owner may change meanwhile, until it comes through."""
    while True:
        try:
            return copy()
        except RuntimeError:  # "changed size during iteration": the owner was faster, look again
            continue


def count_by_type(queue: deque[Any]) -> dict[Enum, int]:
    """How many events of each type a queue holds; what is no proper event is left out."""
    types = (getattr(event, "type", None) for event in snapshot(queue.copy))
    return dict(Counter(event_type for event_type in types if isinstance(event_type, Enum)))
