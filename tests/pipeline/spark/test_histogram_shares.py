"""Histograms through Spark's percentiles, against the durations themselves; the percentiles are computed here."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dispatcher.util.histogram import FineHistogram, bucket_of
from pipeline.spark.observed_calls import SHARES, read_shares, shares_sql

WEIGHT = 1 << 24
DURATION_NS = st.integers(0, 45).flatmap(lambda bits: st.integers(0, (2 << bits) - 1))
FEW = st.lists(DURATION_NS, min_size=1, max_size=200)
MANY = st.lists(st.tuples(DURATION_NS, st.integers(1, 5000)), min_size=1, max_size=30)
REPORTED = st.sampled_from([0.005, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999])


def percentile_of(buckets: Counter[int], share: float) -> float:
    """As Spark computes it: linear interpolation between the two durations next to the share's position."""
    order = sorted(buckets)
    upto = list(accumulate(buckets[bucket] * WEIGHT for bucket in order))
    position = (upto[-1] - 1) * share

    def bucket_at(place: int) -> int:
        return next(bucket for bucket, end in zip(order, upto, strict=True) if place < end)

    lower, higher = bucket_at(math.floor(position)), bucket_at(math.ceil(position))
    if lower == higher:
        return lower
    return (math.ceil(position) - position) * lower + (position - math.floor(position)) * higher


def through_spark(durations_ns: list[int]) -> FineHistogram:
    """The histogram that is read from the text which Spark makes of the durations."""
    buckets = Counter(map(bucket_of, durations_ns))
    found = [round(percentile_of(buckets, share)) for share in SHARES]
    text = ",".join(f"{bucket}:{found.index(bucket) + 1}" for bucket in dict.fromkeys(found))
    histogram = FineHistogram()
    histogram.total_ns, histogram.min_ns, histogram.max_ns = sum(durations_ns), min(durations_ns), max(durations_ns)
    read_shares(text, histogram, len(durations_ns))
    return histogram


@given(FEW)
def test_up_to_200_durations_are_all_in_their_buckets(durations_ns: list[int]) -> None:
    buckets = Counter(map(bucket_of, durations_ns))

    found = through_spark(durations_ns).counts

    assert {bucket: count for bucket, count in enumerate(found) if count} == buckets


@given(MANY, REPORTED)
def test_whole_and_half_percents_are_within_5_percent_of_the_exact_ones(many: list[tuple[int, int]], q: float) -> None:
    durations_ns = [duration_ns for duration_ns, times in many for _ in range(times)]
    exact_ns = sorted(durations_ns)[max(math.ceil(q * len(durations_ns)), 1) - 1]

    assert through_spark(durations_ns).quantile(q) * 1e9 == pytest.approx(exact_ns, rel=0.05, abs=0)


@given(MANY, st.floats(0, 1))
def test_any_quantile_is_that_of_a_share_close_to_its_own(many: list[tuple[int, int]], q: float) -> None:
    durations_ns = sorted(duration_ns for duration_ns, times in many for _ in range(times))
    count = len(durations_ns)
    around = [max(math.ceil(share * count), 1) - 1 for share in (max(q - 0.005, 0), min(q + 0.005, 1))]

    found_ns = through_spark(durations_ns).quantile(q) * 1e9

    assert durations_ns[around[0]] * 0.95 <= found_ns <= durations_ns[around[1]] * 1.05


@given(MANY)
def test_no_duration_is_lost_or_added(many: list[tuple[int, int]]) -> None:
    durations_ns = [duration_ns for duration_ns, times in many for _ in range(times)]

    assert through_spark(durations_ns).count == len(durations_ns)


def test_nothing_is_read_where_nothing_was_counted() -> None:
    histogram = FineHistogram()

    read_shares("", histogram, 0)

    assert histogram.count == 0


def test_spark_computes_what_the_properties_assume(spark: SparkSession) -> None:
    durations_ns = [10_000_000, *range(1_000_000, 900_000_000, 3_000_000), *[2_000_000_000] * 300]
    buckets = Counter(map(bucket_of, durations_ns))
    rows = [*buckets.items(), (None, None)]

    aggregated = spark.createDataFrame(rows, "bucket long, number long").agg(F.expr(shares_sql("bucket", "number")))

    histogram = FineHistogram()
    histogram.min_ns, histogram.max_ns = min(durations_ns), max(durations_ns)
    read_shares(aggregated.collect()[0][0], histogram, len(durations_ns))
    assert histogram.counts == through_spark(durations_ns).counts
    assert histogram.quantile(0.5) == pytest.approx(sorted(durations_ns)[len(durations_ns) // 2 - 1] / 1e9, rel=0.05)
