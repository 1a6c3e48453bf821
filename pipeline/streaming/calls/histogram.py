"""Durations in buckets narrow enough for a quantile within 3.2 % of the exact one."""

from __future__ import annotations

import math
from typing import Final

_FINE_BITS: Final = 4
_FINE: Final = 1 << _FINE_BITS
_SIZE: Final = (64 - _FINE_BITS + 1) * _FINE  # up to 2^64 ns, 584 years


class Histogram:
    """Durations in nanoseconds: each power of two has 16 buckets of equal width, as in HdrHistogram.

    A duration below 32 ns has a bucket of its own. One thread writes; any thread reads.
    """

    __slots__ = ("counts", "max_ns", "min_ns", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * _SIZE  # one thread writes, any reads
        self.total_ns = 0  # one thread writes, any reads
        self.min_ns = 0  # one thread writes, any reads; 0 until a duration is counted
        self.max_ns = -1  # one thread writes, any reads; -1 until a duration is counted

    def record_ns(self, duration_ns: int) -> None:
        """Count a duration; a negative one (the clock was set back) counts as 0."""
        # Every call pays for this, so `bucket_of` is inlined. The extremes of none have nothing between them.
        if not self.min_ns <= duration_ns <= self.max_ns:
            duration_ns = max(duration_ns, 0)
            self._extend(duration_ns)
        shift = duration_ns.bit_length() - 5
        self.counts[(shift << 4) + (duration_ns >> shift) if shift > 0 else duration_ns] += 1
        self.total_ns += duration_ns

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

    def copy(self) -> Histogram:
        """A copy, for readers."""
        copied = Histogram()
        copied.merge(self)
        return copied

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`. Only the thread that writes this histogram may call it."""
        self.counts = [own + more for own, more in zip(self.counts, other.counts.copy(), strict=True)]
        self.total_ns += other.total_ns
        if other.max_ns >= 0:
            self._extend(other.min_ns)
            self._extend(other.max_ns)

    def buckets(self) -> list[tuple[float, int]]:
        """Cumulative counts by upper bound in seconds: powers of two from 1 us to about 18 minutes, then infinity."""
        counts = self.counts.copy()
        cumulative, below, result = 0, 0, []
        for bits in range(10, 41):
            end = bucket_of(1 << bits)
            cumulative += sum(counts[below:end])
            below = end
            result.append((2**bits / 1e9, cumulative))
        return [*result, (float("inf"), cumulative + sum(counts[below:]))]


def bucket_of(duration_ns: int) -> int:
    """The place in `counts` of a duration of at least 0."""
    shift = max(duration_ns.bit_length() - _FINE_BITS - 1, 0)
    return (shift << _FINE_BITS) + (duration_ns >> shift)


def bounds_of(bucket: int) -> tuple[int, int]:
    """The shortest and the longest duration, in ns, of the bucket at a place in `counts`."""
    shift = max((bucket >> _FINE_BITS) - 1, 0)
    lowest_ns = (bucket - (shift << _FINE_BITS)) << shift
    return lowest_ns, lowest_ns + (1 << shift) - 1
