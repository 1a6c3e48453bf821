from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.spark.report.digests.buckets import TimeBuckets
from pipeline.spark.report.follow.follow_digests import (
    digest_events,
    digest_transitions,
    merge_events,
    merge_transitions,
)

from ...conftest import JournalBuilder


@pytest.mark.parametrize(
    ("start_at", "end_at", "number", "expected"),
    [
        (0, 0, 4, TimeBuckets(0, 1, 1)),
        (0, 3, 4, TimeBuckets(0, 1, 4)),
        (0, 4, 4, TimeBuckets(0, 2, 3)),
        (5, 12, 4, TimeBuckets(4, 4, 3)),
        (1_790_000_000_000_000_001, 1_790_000_000_000_000_001, 100, TimeBuckets(1_790_000_000_000_000_001, 1, 1)),
    ],
)
def test_buckets_begin_at_multiples_of_a_power_of_two(
    start_at: int, end_at: int, number: int, expected: TimeBuckets
) -> None:
    assert TimeBuckets.over(start_at, end_at, number) == expected


def test_buckets_of_a_span_lie_within_the_buckets_of_a_longer_span() -> None:
    for end_at in range(100, 5000, 7):
        short, long = TimeBuckets.over(100, end_at, 10), TimeBuckets.over(3, end_at + 1234, 10)
        assert long.number <= 10
        assert long.width_ns % short.width_ns == 0
        assert short.start_at % short.width_ns == long.start_at % long.width_ns == 0


def held(digest: DataFrame) -> DataFrame:
    """The same rows, computed once."""
    return digest.sparkSession.createDataFrame(digest.collect(), digest.schema)


def rows(digest: DataFrame) -> list[str]:
    return sorted(map(repr, digest.collect()))


@pytest.mark.slow
def test_digests_of_parts_of_the_events_add_up(journal: JournalBuilder) -> None:
    journal.submit(1, "application_1", at=3)
    journal.event(2, "RMNodeEventType", "STATUS_UPDATE", "n1", at=7, queue_ns=5, handling_ns=900)
    journal.event(3, "RMNodeEventType", "STATUS_UPDATE", "n1", at=90, queue_ns=7, handling_ns=800, outcome="failed")
    journal.event(4, "RMNodeEventType", "STATUS_UPDATE", "n1", at=40_000, queue_ns=5, handling_ns=900)
    events = journal.tables().events
    first, second = events.where("seq <= 2"), events.where("seq > 2")

    merged = held(merge_events(held(digest_events(first)).unionByName(held(digest_events(second)))))

    assert rows(merged) == rows(merge_events(held(digest_events(events))))
    assert rows(merged) == rows(merge_events(merged))
    assert Counter(row["kind"] for row in merged.collect()) == {
        "totals": 1,
        "group": 8,  # of two measures: START, and STATUS_UPDATE early, failed and late
        "depth": 3,
        "kept": 2,
        "slow": 4,
    }


@pytest.mark.slow
def test_digests_of_parts_of_the_transitions_add_up(journal: JournalBuilder) -> None:
    journal.submit(1, "application_1")
    journal.move(2, "RMApp", "application_1", "NEW_SAVING APP_NEW_SAVED SUBMITTED", at=5)
    journal.move(3, "RMApp", "application_1", "SUBMITTED APP_ACCEPTED ACCEPTED", at=9)
    journal.move(4, "RMApp", "application_1", "ACCEPTED NODE_UPDATE ACCEPTED", at=11)
    journal.move(5, "RMApp", "application_1", "ACCEPTED NODE_UPDATE ACCEPTED", at=12)
    known = {2: (1, 5), 3: (2, 4)}
    seq = F.col("seq")
    entered, stay = (
        F.coalesce(*(F.when(seq == at, F.lit(values[i])) for at, values in known.items())).cast("long") for i in (0, 1)
    )
    transitions = journal.tables().transitions.select("*", entered.alias("entered_seq"), stay.alias("stay_ns"))
    first, second = transitions.where("seq <= 2"), transitions.where("seq > 2")

    merged = held(merge_transitions(held(digest_transitions(first)).unionByName(held(digest_transitions(second)))))

    assert rows(merged) == rows(merge_transitions(held(digest_transitions(transitions))))
    assert Counter(row["kind"] for row in merged.collect()) == {
        "totals": 1,
        "count": 4,
        "stay": 2,
        "long_stay": 2,
        "stretch": 1,
        "move": 4,
    }
