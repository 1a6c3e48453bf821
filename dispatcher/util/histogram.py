"""Histograms of durations that one thread writes and any thread reads, without a lock."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

_FINE_BITS: Final = 4
_FINE_SIZE: Final = (64 - _FINE_BITS + 1) << _FINE_BITS  # up to 2^64 ns, 584 years


class Histogram:
    """Durations in buckets of powers of two, from 1 ns up: one list index per observation, no search.

    One thread writes; any thread may read a snapshot.
    """

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * 65  # one thread writes, any reads
        self.total_ns: int = 0  # one thread writes, any reads

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

    def by_bits(self) -> list[int]:
        """How many durations have each bit length, from 0 to 64."""
        return self.counts.copy()

    def buckets(self) -> list[tuple[float, int]]:
        """Cumulative counts by upper bound in seconds, from 1 microsecond to about 18 minutes, then infinity."""
        cumulative, result = 0, []
        for bits, count in enumerate(self.by_bits()):
            cumulative += count
            if 10 <= bits <= 40:
                result.append((2**bits / 1e9, cumulative))
        return [*result, (float("inf"), cumulative)]


class FineHistogram(Histogram):
    """Each power of two has 16 buckets of equal width, as in HdrHistogram: a quantile is within 3.2 % of the exact one.

    A duration below 32 ns has a bucket of its own.
    """

    __slots__ = ("max_ns", "min_ns")

    def __init__(self) -> None:
        self.counts = [0] * _FINE_SIZE  # one thread writes, any reads
        self.total_ns: int = 0  # one thread writes, any reads
        self.min_ns: int = 0  # one thread writes, any reads; 0 until a duration is counted
        self.max_ns: int = -1  # one thread writes, any reads; -1 until a duration is counted

    def observe(self, duration_ns: int, times: int = 1) -> None:
        # Every call pays for this, so `bucket_of` is inlined. The extremes of none have nothing between them.
        if not self.min_ns <= duration_ns <= self.max_ns:
            duration_ns = max(duration_ns, 0)
            self._extend(duration_ns)
        shift = duration_ns.bit_length() - 5
        self.counts[(shift << 4) + (duration_ns >> shift) if shift > 0 else duration_ns] += times
        self.total_ns += duration_ns * times

    def _extend(self, duration_ns: int) -> None:
        # Before the counts, while a reader copies the counts first: the extremes cover whatever it finds counted.
        self.min_ns = min(self.min_ns, duration_ns) if self.max_ns >= 0 else duration_ns
        self.max_ns = max(self.max_ns, duration_ns)

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def sum_s(self) -> float:
        return self.total_ns / 1e9

    @property
    def min_s(self) -> float:
        """The shortest duration; 0 if nothing was counted."""
        return self.min_ns / 1e9

    @property
    def max_s(self) -> float:
        """The longest duration; 0 if nothing was counted."""
        return max(self.max_ns, 0) / 1e9

    def quantile(self, q: float) -> float:
        """The shortest duration that a share `q` of all does not exceed, in seconds; 0 if nothing was counted.

        It is within 1/32 of the exact one, and never below the minimum or above the maximum.

        Raises:
            ValueError: `q` is not from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q is {q!r}; it must be a fraction from 0 to 1, such as 0.99.")
        counts = self.counts.copy()
        count = sum(counts)
        rank = max(math.ceil(q * count), 1)
        if rank >= count:
            return self.max_s
        if rank == 1:
            return self.min_s
        for bucket, number in enumerate(counts):
            rank -= number
            if rank <= 0:
                lowest_ns, highest_ns = bounds_of(bucket)
                return min(max((lowest_ns + highest_ns) / 2, self.min_ns), self.max_ns) / 1e9
        raise AssertionError("the ranks end with the counts")

    def copy(self) -> FineHistogram:
        copied = FineHistogram()
        copied.merge(self)
        return copied

    def merge(self, other: FineHistogram) -> None:
        """Add the counts of `other`. Only the thread that writes this histogram may call it."""
        self.counts: list[int] = [own + more for own, more in zip(self.counts, other.counts.copy(), strict=True)]
        self.total_ns += other.total_ns
        if other.max_ns >= 0:
            self._extend(other.min_ns)
            self._extend(other.max_ns)

    def by_bits(self) -> list[int]:
        counts = self.counts.copy()
        ends = [0, *(bucket_of(1 << bits) for bits in range(64)), _FINE_SIZE]
        return [sum(counts[begin:end]) for begin, end in pairwise(ends)]


def bucket_of(duration_ns: int) -> int:
    """The place in a FineHistogram's `counts` of a duration of at least 0."""
    shift = max(duration_ns.bit_length() - _FINE_BITS - 1, 0)
    return (shift << _FINE_BITS) + (duration_ns >> shift)


def bounds_of(bucket: int) -> tuple[int, int]:
    """The shortest and the longest duration, in ns, of the bucket at a place in a FineHistogram's `counts`."""
    shift = max((bucket >> _FINE_BITS) - 1, 0)
    lowest_ns = (bucket - (shift << _FINE_BITS)) << shift
    return lowest_ns, lowest_ns + (1 << shift) - 1
