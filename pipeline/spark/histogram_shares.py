"""A histogram on its way through Spark's aggregates: summed over the tasks, and read back on the driver.

Spark has no aggregate that sums vectors, and one sum for each bucket would cost every row. But `percentile` keeps a map
from values to their frequencies, which it adds up over rows and tasks, and whose size depends on the distinct values
only. A task reports a row for each bucket that has new durations: the bucket as the value, their number as the
frequency. The result has the bucket of each of SHARES. From these, `read` rebuilds the counts: whole and half percents
are in their exact bucket, and any other quantile is off by at most half a percent of the durations. Of up to 200
durations, all are in their exact bucket.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from dispatcher.util.histogram import FineHistogram

_TAILS: Final = (0.0001, 0.0005, 0.001, 0.999, 0.9995, 0.9999, 0.99995, 0.99999)
# `percentile` interpolates between two values where a share ends exactly between them. A little less than the share is
# within the lower one, which is the nearest rank, if each duration counts for many.
_LESS: Final = 1e-7
_WEIGHT: Final = 1 << 24
SHARES: Final = (
    0.0,
    *(share - _LESS for share in sorted({*_TAILS, *(number / 200 for number in range(1, 200))})),
    1.0,
)
"""The shares of the durations whose buckets are read back, in ascending order."""


def result_of(bucket: str, number: str) -> str:
    """The SQL of a text that `read` takes. `bucket` and `number` are SQL: null, or a bucket and how many are in it."""
    shares = ",".join(map(repr, SHARES))
    # The shares are one literal, which Spark analyzes faster than 200. The lambda refers to the percentiles twice; an
    # aggregate that is written twice is computed twice.
    percentiles = f"percentile({bucket}, cast(split('{shares}', ',') as array<double>), {number} * {_WEIGHT}L)"
    firsts = "transform(array_distinct(p), b -> concat(cast(round(b) as int), ':', array_position(p, b)))"
    return f"coalesce(element_at(transform(array({percentiles}), p -> array_join({firsts}, ',')), 1), '')"


def read(text: str, into: FineHistogram, number: int) -> None:
    """Add the counts of `number` durations to `into`, from the result of `result_of`.

    `text` has the distinct buckets in ascending order, each with the place, from 1, of its first share in SHARES.
    """
    if not text or not number:
        return
    firsts = [tuple(map(int, part.split(":"))) for part in text.split(",")]
    below = 0
    for (bucket, _), (_, place) in pairwise(firsts):
        # The durations of the buckets up to this one end somewhere between the two ranks.
        first, last = _rank(SHARES[place - 2], number), _rank(SHARES[place - 1], number) - 1
        upto = (first + last + 1) // 2
        into.counts[bucket] += upto - below
        below = upto
    into.counts[firsts[-1][0]] += number - below


def _rank(share: float, number: int) -> int:
    """Which duration of `number`, from 1 in ascending order, `percentile` finds for a share."""
    return int((number * _WEIGHT - 1) * share) // _WEIGHT + 1
