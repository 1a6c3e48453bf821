"""Log-linear histograms: percentiles of any number of values from few rows, which add up in any order.

Each power of two is cut into 32 equal buckets. A percentile is the middle of what its bucket holds, so it is off by
1.6 % at most, and not at all where a bucket holds one value only. It is that of the nearest rank: the least value
that is not below the share p of all. Values are whole numbers >= 0, of any unit; less than 0 counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

Longs = npt.NDArray[np.int64]

_PER_OCTAVE = 32
_MANTISSA_BITS_LEFT_OUT = 52 - 5
_OF_ONE = 1023 << 5
OF_NOTHING = -1
"""Bucket of 0. All others are from 0 to 2047."""
BITS = 11
"""A bucket's number and one more fit into so many."""

FIGURES = ("count", "total", "least", "greatest")


def log_buckets(values: Longs) -> Longs:
    """The bucket of each value."""
    # A double's bits are its exponent and then its mantissa: cut off after five, they count the buckets.
    bits = values.astype(np.float64).view(np.int64) >> _MANTISSA_BITS_LEFT_OUT
    return np.where(values > 0, bits - _OF_ONE, OF_NOTHING)


def log_bucket(value: Column) -> Column:
    """As `log_buckets`, of a column: int."""
    exponent = F.length(F.bin(value)) - 1
    # Exact: both numbers are powers of two away from whole ones.
    position = F.floor(value.cast("double") / F.pow(F.lit(2.0), exponent) * _PER_OCTAVE)
    return F.when(value > 0, exponent * _PER_OCTAVE + position - _PER_OCTAVE).otherwise(OF_NOTHING).cast("int")


def grouped(rows: DataFrame, keys: Sequence[str], value: str) -> DataFrame:
    """One row per combination of keys and bucket.

    In:  the keys, and `value` long; rows in which it is null are left out.
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


def summed_up(groups: DataFrame, keys: Sequence[str], percentiles: Mapping[str, float]) -> DataFrame:
    """One row per combination of keys.

    In:  rows as from `grouped`, of which several may be of one bucket.
    Out: the keys (unique together), count long > 0, total, greatest long, and of each of `percentiles`, under its
         name, that percentile, double.
    """
    of_keys = Window.partitionBy(*keys)
    until_now = of_keys.orderBy("log_bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    buckets = (
        groups.groupBy(*keys, "log_bucket")
        .agg(
            F.sum("count").alias("count"),
            F.sum("total").alias("total"),
            F.min("least").alias("least"),
            F.max("greatest").alias("greatest"),
        )
        .select("*", F.sum("count").over(until_now).alias("up_to"), F.sum("count").over(of_keys).alias("all"))
    )
    # A struct's least value is that of the least bucket.
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
    """What `grouped` does, of arrays: counts and sums by key. Not for threads."""

    def __init__(self) -> None:
        self._parts: list[tuple[Longs, ...]] = []

    def add(self, keys: Longs, values: Longs) -> None:
        """Count each value, >= 0, for its key."""
        if len(keys):
            ones = np.ones(len(keys), np.int64)
            self._parts.append(_merged(keys, ones, values, values, values))

    def merge(self) -> int:
        """Make one row of those with one key; how many there are then."""
        if len(self._parts) > 1:
            self._parts = [_merged(*(np.concatenate(column) for column in zip(*self._parts, strict=True)))]
        return len(self._parts[0][0]) if self._parts else 0

    def take(self) -> tuple[Longs, dict[str, Any]]:
        """The keys, and `FIGURES` of each; after that nothing has been added."""
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
