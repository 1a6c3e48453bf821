from __future__ import annotations

import asyncio
import math
from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pyspark.sql import Observation, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import col, count, count_if

from dispatcher.util.histogram import FineHistogram, bucket_of
from pipeline.spark import call_metrics, format_call_metrics, ordered_wait
from pipeline.spark.observed_calls import METRICS_FIELDS, SHARES, TaskReport, read_shares, shares_sql
from pipeline.streaming import CallMetrics, RetryStrategy, register_call_metrics

TIMEOUT_S = 180.0
SHORT_TIMEOUT_S = 4.0
"""Only the calls that hang take as long, also on a busy machine."""


def counted(calls: int, call_ns: int) -> CallMetrics:
    metrics = CallMetrics()
    for _ in range(calls):
        metrics.calls += 1
        metrics.ended += 1
        metrics.completed += 1
        metrics.call_time.observe(call_ns)
    return metrics


def numbers_of(row: list[int | None]) -> dict[str, int | None]:
    return dict(zip(METRICS_FIELDS, row, strict=False))


# ------------------------------------------------------------------------------------------------------ of one task


def test_a_report_has_what_came_since_the_previous_one_and_the_shortest_and_longest_time_so_far() -> None:
    metrics = counted(3, 2_000_000)
    report = TaskReport(metrics)
    bucket = metrics.call_time.counts.index(3)

    *first, of_first = map(numbers_of, report.take())
    metrics.calls += 2
    metrics.call_time.observe(5_000_000)
    metrics.call_time.observe(2_000_000)
    metrics.limit_wait.observe(7)
    *second, of_second = map(numbers_of, report.take(is_last=True))

    named = ("tasks_started", "tasks", "calls", "call_time_sum_ns", "call_time_min_ns", "call_time_max_ns")
    named += ("limit_wait_min_ns", "limit_wait_max_ns")
    assert [of_first[name] for name in named] == [1, 0, 3, 6_000_000, 2_000_000, 2_000_000, None, None]
    assert [of_second[name] for name in named] == [0, 1, 2, 7_000_000, 2_000_000, 5_000_000, 7, 7]
    assert list(map(in_bucket, first)) == [(None, bucket, 3)]
    assert list(map(in_bucket, second)) == [(7, None, 1), (None, bucket, 1), (None, bucket_of(5_000_000), 1)]


def in_bucket(row: dict[str, int | None]) -> tuple[int | None, ...]:
    return row["limit_wait_bucket"], row["call_time_bucket"], row["in_bucket"]


def test_other_observations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no metrics of asynchronous calls in \{'rows': 5\}"):
        call_metrics({"rows": 5})
    with pytest.raises(ValueError, match="the metrics 'calls' of the progress"):
        call_metrics({"observedMetrics": {}}, "calls")


def test_table_has_a_line_for_each_operator() -> None:
    limited = counted(3, 2_000_000)
    for wait_ms in (1, 1, 40):
        limited.limit_wait.observe(wait_ms * 1_000_000)

    table = format_call_metrics({"look up": counted(3, 2_000_000), "idle": CallMetrics(), "limited": limited})

    head, first, second, third = table.splitlines()
    assert head.split()[:3] == ["operator", "calls", "completed"]
    assert first.split()[:4] == ["look", "up", "3", "3"]
    assert first.split()[-7:] == [*["2.0"] * 5, "0.0", "0.0"]  # mean, minimum, quantiles and maximum, ms; no limits
    assert second.split() == ["idle", *["0"] * 9, *["0.0"] * 7]
    assert head.endswith("limit p50 ms  limit p99 ms")
    assert [float(cell) for cell in third.split()[-2:]] == [pytest.approx(1, rel=0.05), 40]
    assert len({len(line) for line in table.splitlines()}) == 1


# ------------------------------------------------------------------------------------------------------ of a query


def eventful_calls(spark: SparkSession, observation: Any, **options: Any) -> Any:
    """One call in four fails, one hangs, and one fails at its first attempt."""

    async def eventful(row: Row, failed: list[int] = []) -> tuple[int]:  # noqa: B006 - the worker's own
        if row.id % 4 == 1:
            raise ValueError("always")
        if row.id % 4 == 2:
            await asyncio.Event().wait()
        if row.id % 4 == 3 and row.id not in failed:
            failed.append(row.id)
            raise ConnectionError("at first")
        return (row.id,)

    return ordered_wait(
        spark.range(0, 40, 1, 2),
        eventful,
        "id long",
        timeout=SHORT_TIMEOUT_S,
        retry=RetryStrategy.fixed_delay(3, 1, retry_on_exception=ConnectionError),
        metrics=observation,
        **options,
    )


def test_counts_do_not_depend_on_the_steps_that_follow_and_are_exported_to_prometheus(spark: SparkSession) -> None:
    """A filter, a projection or an aggregate after the operator must not see the rows with the metrics."""
    observation, registry = Observation("calls"), CollectorRegistry()
    rows = eventful_calls(spark, observation, on_error="drop")

    found = rows.groupBy().agg(count("*"), count_if(col("id") > 30)).collect()

    metrics = call_metrics(observation)
    register_call_metrics(metrics, "eventful", registry)
    assert found == [(20, 5)]  # without the rows that carry metrics
    assert observation.get["tasks"] == 2
    assert (metrics.calls, metrics.retried, metrics.lost_attempts) == (50, 10, 0)
    assert (metrics.completed, metrics.failed, metrics.dropped) == (20, 20, 20)
    assert (metrics.timed_out, metrics.in_flight) == (10, 0)
    assert (metrics.call_time.count, metrics.limit_wait.count) == (40, 0)
    assert metrics.queue_wait.count == 30  # of the records whose first call was answered
    assert 0 < metrics.call_time.min_s <= metrics.call_time.quantile(0.5) <= metrics.call_time.max_s < SHORT_TIMEOUT_S
    for name, value in {"async_calls_total": 50, "async_dropped_total": 20, "async_call_seconds_count": 40}.items():
        assert registry.get_sample_value(name, {"operator": "eventful"}) == value


def test_task_that_a_limit_ends_is_told_as_missing(spark: SparkSession) -> None:
    async def same(row: Row) -> Row:
        return row

    observation, whole = Observation(), Observation()

    ordered_wait(spark.range(0, 20_000, 1, 1), same, "id long", timeout=TIMEOUT_S, metrics=observation).take(3)
    ordered_wait(spark.range(0, 20_000, 1, 1), same, "id long", timeout=TIMEOUT_S, metrics=whole).count()

    assert call_metrics(observation).lost_attempts == 1
    assert call_metrics(whole).lost_attempts == 0


def test_columns_that_are_never_null_stay_so(spark: SparkSession) -> None:
    """Also in the rows that carry metrics, whatever their types."""

    async def everything(row: Row) -> tuple[Any, ...]:
        return row.id, "x", {"a": 1}, [(1, "y")]

    schema = "id long not null, text string not null, sizes map<string,int> not null"
    schema += ", parts array<struct<n: int, s: string>> not null"
    observation = Observation()
    found = ordered_wait(spark.range(3), everything, schema, timeout=TIMEOUT_S, metrics=observation)

    assert [field.nullable for field in found.schema] == [False] * 4
    assert sorted(row.id for row in found.collect()) == [0, 1, 2]
    assert call_metrics(observation).completed == 3


def test_observation_of_a_stream_is_refused(spark: SparkSession) -> None:
    async def same(row: Row) -> Row:
        return row

    stream = spark.readStream.format("rate").load()

    with pytest.raises(ValueError, match="an Observation, which only batch queries support; for a stream give a name"):
        ordered_wait(stream, same, stream.schema, timeout=1.0, metrics=Observation())


# ------------------------------------------------------------------------------ histograms through Spark's percentiles


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

    found = through_spark(durations_ns)

    assert found.quantile(q) * 1e9 == pytest.approx(exact_ns, rel=0.05, abs=0)
    assert found.count == len(durations_ns)  # none is lost or added


@given(MANY, st.floats(0, 1))
def test_any_quantile_is_that_of_a_share_close_to_its_own(many: list[tuple[int, int]], q: float) -> None:
    durations_ns = sorted(duration_ns for duration_ns, times in many for _ in range(times))
    count = len(durations_ns)
    around = [max(math.ceil(share * count), 1) - 1 for share in (max(q - 0.005, 0), min(q + 0.005, 1))]

    found_ns = through_spark(durations_ns).quantile(q) * 1e9

    assert durations_ns[around[0]] * 0.95 <= found_ns <= durations_ns[around[1]] * 1.05


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
