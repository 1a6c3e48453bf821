"""Jobs over what events cost and how many wait: each against literal rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.spark.report.digests import event_digest
from pipeline.spark.report.digests.buckets import TimeBuckets
from pipeline.spark.report.digests.event_digest import EventDigest, digest_events
from pipeline.spark.report.tables import event_times

US, MS = 1_000, 1_000_000
DDL = (
    "seq long, event_class string, event_type string, entity string, enqueued_at long, started_at long, "
    "queue_ns long, handling_ns long, outcome string, error string, payload string"
)
HUNDRED_NS = TimeBuckets.over(0, 99, 100)
BY_TYPE_SCHEMA = (
    "event_class string, event_type string, count long, failed long, unregistered long, queue_mean_us double, "
    "queue_p99_us double, handling_mean_us double, handling_p99_us double, handling_total_ms double"
)
DEPTH_SCHEMA = "bucket int, starts_at long, arrivals long, starts long, depth long, greatest_depth long"


def event(
    seq: int,
    kind: str = "AType.A",
    *,
    came: int = 0,
    begun: int = 0,
    queue_ns: int = 0,
    handling_ns: int = 0,
    outcome: str = "handled",
    error: str | None = None,
    entity: str | None = None,
    payload: str | None = None,
) -> tuple[Any, ...]:
    event_class, event_type = kind.split(".")
    return (seq, event_class, event_type, entity, came, begun, queue_ns, handling_ns, outcome, error, payload)


def table(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), DDL)


def groups(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return event_times.event_groups(table(spark, *rows), HUNDRED_NS)


def test_events_are_summed_up_by_type(spark: SparkSession, assert_table: Any) -> None:
    found = event_times.events_by_type(
        groups(
            spark,
            event(1, queue_ns=1 * US, handling_ns=2 * MS),
            event(2, queue_ns=3 * US, handling_ns=4 * MS, outcome="failed", error="ValueError: x", begun=50),
            event(3, "BType.B", outcome="unregistered"),
        )
    )

    rows = [("AType", "A", 2, 1, 0, 2.0, 3.0, 3000.0, 4000.0, 6.0), ("BType", "B", 1, 0, 1, 0.0, 0.0, 0.0, 0.0, 0.0)]
    assert_table(found, BY_TYPE_SCHEMA, rows)


def test_events_are_summed_up_by_type_and_time(spark: SparkSession, assert_table: Any) -> None:
    times = TimeBuckets(1000, 10, 3)
    rows = [
        event(1, begun=1009, queue_ns=2 * US, handling_ns=1 * US),
        event(2, begun=1000, queue_ns=4 * US, handling_ns=3 * US),
        event(3, begun=1010, queue_ns=6 * US, handling_ns=5 * US),
        event(4, begun=5000, queue_ns=8 * US, handling_ns=7 * US),
    ]

    found = event_times.event_times(event_times.event_groups(table(spark, *rows), times), times)

    assert_table(
        found,
        "bucket int, starts_at long, event_class string, event_type string, count long, queue_mean_us double, "
        "queue_p50_us double, queue_p99_us double, queue_max_us double, handling_mean_us double, "
        "handling_p50_us double, handling_p99_us double, handling_max_us double",
        [
            (0, 1000, "AType", "A", 2, 3.0, 2.0, 4.0, 4.0, 2.0, 1.0, 3.0, 3.0),
            (1, 1010, "AType", "A", 1, 6.0, 6.0, 6.0, 6.0, 5.0, 5.0, 5.0, 5.0),
            (2, 1020, "AType", "A", 1, 8.0, 8.0, 8.0, 8.0, 7.0, 7.0, 7.0, 7.0),
        ],
    )


def test_without_events_there_are_no_figures(spark: SparkSession, assert_table: Any) -> None:
    none = table(spark)

    assert_table(event_times.events_by_type(event_times.event_groups(none, HUNDRED_NS)), BY_TYPE_SCHEMA, [])
    changes = event_times.arrivals_and_starts(none, HUNDRED_NS)
    assert_table(event_times.queue_depth(changes, HUNDRED_NS), DEPTH_SCHEMA, [])


def test_the_slowest_events_are_found_and_the_lowest_seq_wins_a_tie(spark: SparkSession, assert_table: Any) -> None:
    events = table(
        spark,
        event(1, handling_ns=5 * MS, begun=10),
        event(4, "BType.B", handling_ns=9 * MS, begun=40, entity="b"),
        event(3, handling_ns=5 * MS, begun=30),
        event(2, handling_ns=5 * MS, begun=20, entity="a"),
    )

    assert_table(
        event_times.slowest_handlers(events, 3),
        "seq long, event_class string, event_type string, entity string, handling_ms double, at long",
        [(4, "BType", "B", "b", 9.0, 40), (1, "AType", "A", None, 5.0, 10), (2, "AType", "A", "a", 5.0, 20)],
    )


def test_the_queue_holds_the_events_that_arrived_and_were_not_started(spark: SparkSession, assert_table: Any) -> None:
    events = table(
        spark,
        event(1, came=0, begun=3),
        event(2, came=1, begun=19),
        event(3, came=2, begun=25),
        event(4, came=12, begun=26),
    )

    found = event_times.queue_depth(
        event_times.arrivals_and_starts(events, TimeBuckets(0, 10, 4)), TimeBuckets(0, 10, 4)
    )

    rows = [(0, 0, 3, 1, 2, 2), (1, 10, 1, 1, 2, 2), (2, 20, 0, 2, 0, 2), (3, 30, 0, 0, 0, 0)]
    assert_table(found, DEPTH_SCHEMA, rows)


def test_finer_parts_show_a_queue_that_fills_and_empties_within_a_bucket(
    spark: SparkSession, assert_table: Any
) -> None:
    events = table(spark, event(1, came=0, begun=8), event(2, came=1, begun=9))
    fine = event_times.arrivals_and_starts(events, TimeBuckets(0, 5, 4))

    found = event_times.queue_depth(fine, TimeBuckets(0, 10, 2), parts=2)

    assert_table(found, DEPTH_SCHEMA, [(0, 0, 2, 2, 0, 2), (1, 10, 0, 0, 0, 0)])


def test_in_virtual_time_the_queue_appears_empty(spark: SparkSession) -> None:
    events = table(spark, *(event(seq, came=seq, begun=seq, queue_ns=7 * MS) for seq in range(1, 9)))

    found = event_times.queue_depth(event_times.arrivals_and_starts(events, HUNDRED_NS), HUNDRED_NS)

    assert {(row["depth"], row["greatest_depth"]) for row in found.collect()} == {(0, 0)}


@pytest.mark.slow
def test_the_digests_groups_equal_the_jobs(spark: SparkSession) -> None:
    rows = [
        event(
            seq,
            f"{'AB'[seq % 2]}Type.{'XYZ'[seq % 3]}",
            came=seq,
            begun=seq + 1,
            queue_ns=seq * 977,
            handling_ns=seq * seq,
            outcome="failed" if seq % 17 == 0 else "handled",
        )
        for seq in range(99)
    ]
    times = TimeBuckets.over(0, 99, event_digest.TIME_BUCKETS)
    job = event_times.event_groups(table(spark, *rows), times)

    found = digest_events(table(spark, *rows).coalesce(1), 0, 99).where("kind = 'group'").select(job.columns)

    assert sorted(map(tuple, found.collect()), key=repr) == sorted(map(tuple, job.collect()), key=repr)


def digest(*parts: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Of one part of a run from 0 to 99 ns, that comes in these batches."""
    types = {"long": pa.int64(), "string": pa.string()}
    schema = pa.schema([(name, types[ddl]) for name, ddl in (column.split() for column in DDL.split(", "))])
    batches = [
        pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
        for rows in parts
    ]
    return [row for batch in EventDigest(0, 99).rows(batches) for row in batch.to_pylist()]


def test_the_digest_keeps_the_events_that_other_tables_need() -> None:
    start = event(1, "RMAppEventType.START", entity="application_0_0001", payload='{"name":"sort"}')
    failed = event(2, outcome="failed", error="ValueError: x")
    plain = event(3, payload='{"a":1}', handling_ns=5)

    rows = digest([start, failed], [plain])

    kept = [(row["seq"], row["entity"], row["error"], row["payload"]) for row in rows if row["kind"] == "kept"]
    assert kept == [(1, "application_0_0001", None, '{"name":"sort"}'), (2, None, "ValueError: x", None)]
    assert [row["seq"] for row in rows if row["kind"] == "slow"] == [3, 1, 2]


def test_the_digest_keeps_the_given_number_of_slowest_events(monkeypatch: Any) -> None:
    monkeypatch.setattr(event_digest, "_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(event_digest, "SLOWEST", 2)

    rows = digest(
        *[[event(seq, handling_ns=ns), event(seq + 1, handling_ns=1)] for seq, ns in ((1, 5), (3, 7), (5, 5))]
    )

    assert [(row["seq"], row["handling_ns"]) for row in rows if row["kind"] == "slow"] == [(3, 7), (1, 5)]


def test_the_digest_of_no_events_is_empty() -> None:
    assert digest() == digest([]) == []


def test_groups_are_emitted_early_when_they_take_too_much_memory(monkeypatch: Any) -> None:
    monkeypatch.setattr(event_digest, "_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(event_digest, "_GROUPS_HELD", 1)

    rows = digest([event(1, queue_ns=5)], [event(2, queue_ns=5)])

    found = [(row["measure"], row["count"], row["total"]) for row in rows if row["kind"] == "group"]
    assert sorted(found) == 2 * [("handling_ns", 1, 0)] + 2 * [("queue_ns", 1, 5)]
