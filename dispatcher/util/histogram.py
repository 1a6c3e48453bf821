"""Histograms and copies of containers that one thread writes and any thread reads, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Histogram:
    """Durations in buckets of powers of two, from 1 ns up: one list index per observation, no search.

    One thread writes; any thread may read a snapshot.
    """

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * 65  # one thread writes, any reads
        self.total_ns = 0  # one thread writes, any reads

    def observe(self, duration_ns: int, times: int = 1) -> None:
        """Count a duration `times` times; a negative one (the clock was set back) counts as 0."""
        # `max` and `min` would be calls, which every batch of events pays for.
        if duration_ns < 0:
            duration_ns = 0
        bits = duration_ns.bit_length()
        self.counts[bits if bits < 64 else 64] += times
        self.total_ns += duration_ns * times

    def copy(self) -> Histogram:
        """A copy, for readers."""
        copied = Histogram()
        copied.counts, copied.total_ns = self.counts.copy(), self.total_ns
        return copied

    def buckets(self) -> list[tuple[float, int]]:
        """Cumulative counts by upper bound in seconds, from 1 microsecond to about 18 minutes, then infinity."""
        cumulative, result = 0, []
        for bits, count in enumerate(list(self.counts)):
            cumulative += count
            if 10 <= bits <= 40:
                result.append((2**bits / 1e9, cumulative))
        return [*result, (float("inf"), cumulative)]


def snapshot(copy: Callable[[], T]) -> T:
    """Call `copy`, which copies a container that its owner may change meanwhile, until it succeeds."""
    while True:
        try:
            return copy()
        except RuntimeError:  # "changed size during iteration": try again
            continue
