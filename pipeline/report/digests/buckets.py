"""Intervals of a run's time, and log-linear histograms: few rows that give percentiles, and add up in any order.

A histogram divides each power of two into 32 equal buckets. A percentile is the midpoint of its bucket's least and
greatest value: off by 1.6 % at most, and exact in a bucket with a single value. Percentiles are nearest-rank: the least
value at or below which the share p of all values lies. Values are integers >= 0; negatives count as 0.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]

PER_OCTAVE: Final = 32
_MANTISSA_BITS_LEFT_OUT: Final = 52 - 5
_OF_ONE: Final = 1023 << 5
OF_NOTHING: Final = -1
"""Bucket of the value 0. All other buckets are from 0 to 2047."""
_BITS: Final = 11
"""Bits that hold a bucket's number plus one."""
_MOST_PLACES: Final = 1 << 21

FIGURES: Final = ("count", "total", "least", "greatest")
"""What a histogram keeps of the values in a bucket."""


class TimeBuckets(NamedTuple):
    """`number` intervals of `width_ns` each, from `start_at` (Unix ns). A time outside belongs to the nearest one.

    An interval is numbered from 0, or by its place since 1970: its start divided by its width.
    """

    start_at: int
    width_ns: int
    number: int

    @staticmethod
    def over(start_at: int, end_at: int, most: int, least_ns: int = 1) -> TimeBuckets:
        """Up to `most` intervals that include both ends, and more than half as many if the time is long enough.

        Each starts at a multiple of its width, a power of two, `least_ns` at least. So the intervals of a shorter time
        each lie within one interval of a longer time that includes it, and counts need not be repeated when a run
        continues.
        """
        width_ns = least_ns
        while end_at // width_ns - start_at // width_ns >= most:
            width_ns *= 2
        first = start_at // width_ns
        return TimeBuckets(first * width_ns, width_ns, end_at // width_ns - first + 1)

    @property
    def first(self) -> int:
        """The place since 1970 of the first interval."""
        return self.start_at // self.width_ns

    def divided(self, parts: int, least_ns: int = 1) -> TimeBuckets:
        """Each interval divided into `parts`, or into fewer that are `least_ns` wide. Both must be powers of two."""
        width_ns = max(least_ns, self.width_ns // parts)
        return TimeBuckets(self.start_at, width_ns, self.number * (self.width_ns // width_ns))

    def numbers(self, times: Longs) -> Longs:
        """The number from 0 of the interval that contains each time. The width must be a power of two."""
        # A shift, because numpy divides ten times slower.
        numbers: Longs = (times >> (self.width_ns.bit_length() - 1)) - self.first
        return np.minimum(np.maximum(numbers, 0, out=numbers), self.number - 1, out=numbers)


def log_buckets(values: Longs) -> Longs:
    """The bucket of each value."""
    # A double's bits are its exponent, then its mantissa: the exponent and five bits of mantissa number the buckets.
    bits = values.astype(np.float64).view(np.int64) >> _MANTISSA_BITS_LEFT_OUT
    return np.where(values > 0, bits - _OF_ONE, OF_NOTHING)


class GroupedHistograms:
    """Histograms by key: counts and sums of values. Not thread-safe."""

    def __init__(self) -> None:
        self._parts: list[tuple[Longs, ...]] = []
        self._held = 0

    def add(self, keys: Longs, values: Longs) -> None:
        """Add each value to the histogram of its key. Values and keys are >= 0; memory grows with the largest key."""
        if len(keys):
            part = _counted(keys, values)
            self._parts.append(part)
            self._held += len(part[0])

    def is_full(self, most: int) -> bool:
        """Whether to `take`: beyond `most` rows, merges them, and is full if over half of `most` remain."""
        if self._held <= most:
            return False
        self._merge()
        # With over half of the room taken, the next merge would come soon and remove little.
        return self._held > most // 2

    def _merge(self) -> None:
        if len(self._parts) > 1:
            self._parts = [_merged(*(np.concatenate(column) for column in zip(*self._parts, strict=True)))]
        self._held = sum(len(part[0]) for part in self._parts)

    def take(self) -> tuple[Longs, Longs, dict[str, Any]]:
        """Return the keys, the log buckets and the `FIGURES` of each, and start again from nothing."""
        self._merge()
        none = (np.empty(0, np.int64),) * 5
        keys, *figures = self._parts[0] if self._parts else none
        self._parts, self._held = [], 0
        return keys >> _BITS, (keys & ((1 << _BITS) - 1)) - 1, dict(zip(FIGURES, figures, strict=True))


def _counted(keys: Longs, values: Longs) -> tuple[Longs, ...]:
    """The key and bucket of each row as one number, and the row's `FIGURES`.

    Counts into arrays with a place for each bucket of each key that occurs: sorting the rows takes ten times longer.
    """
    used = np.flatnonzero(np.bincount(keys))
    place = np.zeros(used[-1] + 1, np.int64)
    place[used] = np.arange(len(used))
    buckets = log_buckets(values)
    least_bucket = int(buckets.min())
    width = int(buckets.max()) - least_bucket + 1
    if len(used) * width > _MOST_PLACES:
        ones = np.ones(len(keys), np.int64)
        return _merged((keys << _BITS) + buckets + 1, ones, values, values, values)
    buckets -= least_bucket
    places = place[keys]
    places *= width
    places += buckets
    counts = np.bincount(places, minlength=len(used) * width)
    present = np.flatnonzero(counts)
    totals, greatest = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.int64)
    least = np.full(len(counts), np.iinfo(np.int64).max)
    np.add.at(totals, places, values)
    np.minimum.at(least, places, values)
    np.maximum.at(greatest, places, values)
    merged = (used[present // width] << _BITS) + present % width + (least_bucket + 1)
    return merged, counts[present], totals[present], least[present], greatest[present]


def _merged(keys: Longs, counts: Longs, totals: Longs, least: Longs, greatest: Longs) -> tuple[Longs, ...]:
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return (
        keys[first],
        np.add.reduceat(counts[order], first),
        np.add.reduceat(totals[order], first),
        np.minimum.reduceat(least[order], first),
        np.maximum.reduceat(greatest[order], first),
    )
