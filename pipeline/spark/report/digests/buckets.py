"""Buckets of a run's time, and log-linear histograms: percentiles of values from few rows, which add up in any order.

A histogram divides each power of two into 32 equal buckets. A percentile is the midpoint of its bucket's least and
greatest value: off by 1.6 % at most, and exact in a bucket with a single value. Percentiles are nearest-rank: the least
value at or below which the share p of all values lies. Values are integers >= 0; negatives count as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

Longs = npt.NDArray[np.int64]

_PER_OCTAVE = 32
_MANTISSA_BITS_LEFT_OUT = 52 - 5
_OF_ONE = 1023 << 5
OF_NOTHING = -1
"""Bucket of the value 0. All other buckets are from 0 to 2047."""
BITS = 11
"""Bits that hold a bucket's number plus one."""

FIGURES = ("count", "total", "least", "greatest")


class TimeBuckets(NamedTuple):
    """`number` intervals of `width_ns` each, from `start_at` (Unix ns). A time outside belongs to the nearest one."""

    start_at: int
    width_ns: int
    number: int

    @staticmethod
    def over(start_at: int, end_at: int, number: int) -> TimeBuckets:
        """At most `number` intervals that include both ends, and more than half as many if the time is long enough.

        Each starts at a multiple of its width, a power of two. So the intervals of a shorter time each lie within one
        interval of a longer time that includes it, and counts need not be repeated when a run continues.
        """
        width_ns = 1
        while end_at // width_ns - start_at // width_ns >= number:
            width_ns *= 2
        first = start_at // width_ns
        return TimeBuckets(first * width_ns, width_ns, end_at // width_ns - first + 1)

    def bucket(self, at: Column) -> Column:
        """The interval that contains a time, from 0: int."""
        # Integer division: as doubles, times of a long run would round into the next bucket.
        bucket = F.call_function("div", at - self.start_at, F.lit(self.width_ns))
        return F.greatest(F.lit(0), F.least(F.lit(self.number - 1), bucket)).cast("int")

    def starts_at(self, bucket: Column) -> Column:
        """The start of an interval, Unix ns: long."""
        return bucket.cast("long") * self.width_ns + self.start_at


def log_buckets(values: Longs) -> Longs:
    """The bucket of each value."""
    # A double's bits are its exponent, then its mantissa: the exponent and five bits of mantissa number the buckets.
    bits = values.astype(np.float64).view(np.int64) >> _MANTISSA_BITS_LEFT_OUT
    return np.where(values > 0, bits - _OF_ONE, OF_NOTHING)


def log_bucket(value: Column) -> Column:
    """As `log_buckets`, for a column: int."""
    exponent = F.length(F.bin(value)) - 1
    # Exact: dividing a double by a power of two changes only its exponent.
    position = F.floor(value.cast("double") / F.pow(F.lit(2.0), exponent) * _PER_OCTAVE)
    return F.when(value > 0, exponent * _PER_OCTAVE + position - _PER_OCTAVE).otherwise(OF_NOTHING).cast("int")


def grouped(rows: DataFrame, keys: Sequence[str], value: str) -> DataFrame:
    """One row per combination of keys and bucket.

    In:  the keys, and `value` long; rows with a null value are omitted.
    Out: the keys, log_bucket int (unique together), count long > 0, total, least, greatest long.
    """
    return (
        rows.where(F.col(value).isNotNull())
        .groupBy(*keys, log_bucket(F.col(value)).alias("log_bucket"))
        .agg(
            F.count("*").alias("count"),
            F.sum(value).alias("total"),
            F.min(value).alias("least"),
            F.max(value).alias("greatest"),
        )
    )


def added_up(groups: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The groups, with the rows of each combination of keys and bucket added up. In, out: as from `grouped`."""
    figures = {"count": F.sum, "total": F.sum, "least": F.min, "greatest": F.max}
    return groups.groupBy(*keys, "log_bucket").agg(*(of(name).alias(name) for name, of in figures.items()))


def summed_up(groups: DataFrame, keys: Sequence[str], percentiles: Mapping[str, float]) -> DataFrame:
    """One row per combination of keys.

    In:  rows as from `grouped`; several rows may have the same bucket.
    Out: the keys (unique together), count long > 0, total, greatest long, and each of `percentiles` under its name,
         double.
    """
    of_keys = Window.partitionBy(*keys)
    until_now = of_keys.orderBy("log_bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    buckets = added_up(groups, keys).select(
        "*", F.sum("count").over(until_now).alias("up_to"), F.sum("count").over(of_keys).alias("all")
    )
    # Structs compare by their first field, the bucket.
    middle = F.struct("log_bucket", ((F.col("least") + F.col("greatest")) / 2).alias("middle"))
    reached = {
        name: F.min(F.when(F.col("up_to") >= F.ceil(F.col("all") * F.lit(p)), middle))["middle"].alias(name)
        for name, p in percentiles.items()
    }
    return buckets.groupBy(*keys).agg(
        F.sum("count").alias("count"),
        F.sum("total").alias("total"),
        F.max("greatest").alias("greatest"),
        *reached.values(),
    )


class Groups:
    """`grouped` for arrays: counts and sums by key. Not thread-safe."""

    def __init__(self) -> None:
        self._parts: list[tuple[Longs, ...]] = []

    def add(self, keys: Longs, values: Longs) -> None:
        """Add each value, >= 0, to its key's figures."""
        if len(keys):
            ones = np.ones(len(keys), np.int64)
            self._parts.append(_merged(keys, ones, values, values, values))

    def merge(self) -> int:
        """Merge the rows of each key into one; returns the number of keys."""
        if len(self._parts) > 1:
            self._parts = [_merged(*(np.concatenate(column) for column in zip(*self._parts, strict=True)))]
        return len(self._parts[0][0]) if self._parts else 0

    def take(self) -> tuple[Longs, dict[str, Any]]:
        """Return the keys and the `FIGURES` of each, and start again from nothing."""
        self.merge()
        none = (np.empty(0, np.int64),) * 5
        keys, *figures = self._parts[0] if self._parts else none
        self._parts = []
        return keys, dict(zip(FIGURES, figures, strict=True))


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
