"""Log-linear histograms: equal buckets in SQL and in arrays, percentiles computed by hand, and histograms by key."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("duckdb")

import duckdb
import numpy as np

from pipeline.report.digests.buckets import GroupedHistograms, TimeBuckets, log_buckets
from pipeline.report.digests.digest import log_bucket
from pipeline.report.tables.sql import summed_up

VALUES = [-5, 0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 66, 67, 1000, 1 << 40, (1 << 40) - 1, (1 << 53) + 1, (1 << 63) - 1]


def summed(*parts: Sequence[int]) -> list[tuple[object, ...]]:
    """The name, count, total, maximum, and 50th and 99th percentile of the values of all parts."""
    rows = " UNION ALL ".join(
        f"""SELECT 'a' AS name, {log_bucket("v")} AS log_bucket, count(*) AS "count", sum(v)::BIGINT AS total,
        min(v) AS least, max(v) AS greatest FROM (SELECT unnest({list(values)}::BIGINT[]) AS v) GROUP BY ALL"""
        for values in parts
    )
    with duckdb.connect(":memory:") as database:
        return database.execute(summed_up(rows, "name", {"half": 0.5, "most": 0.99})).fetchall()


def test_sql_and_arrays_have_the_same_buckets() -> None:
    query = f"SELECT {log_bucket('v')} FROM (SELECT unnest({VALUES}::BIGINT[]) AS v)"
    with duckdb.connect(":memory:") as database:
        in_sql = [bucket for (bucket,) in database.execute(query).fetchall()]

    assert in_sql == log_buckets(np.array(VALUES)).tolist()
    # 64 and 65 share one of the 32 parts that 64 to 127 have, and 66 is in the next.
    assert in_sql[:3] == [-1, -1, 0]
    assert in_sql[9:13] == [192, 192, 193, 193]


def test_a_bucket_is_never_wider_than_a_32nd_of_its_values() -> None:
    values = np.arange(1, 100_000)
    buckets = log_buckets(values)
    first = np.flatnonzero(np.diff(buckets, prepend=-2))
    last = np.append(first[1:], len(values)) - 1

    assert np.all(values[last] - values[first] <= values[first] / 32)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # Below 64 every value has a bucket of its own: the 15th of 30, and the 30th.
        ([range(1, 31)], [("a", 30, 465, 30, 15.0, 30.0)]),
        # A percentile is the midpoint of its bucket's values.
        ([[1024, 1050, 1 << 30]], [("a", 3, 1073743898, 1 << 30, 1037.0, float(1 << 30))]),
        ([[5, 1000], [1001, 3], [0]], [("a", 5, 2009, 1001, 5.0, 1000.5)]),
        ([[]], []),
        # A bucket with one value gives it exactly.
        *(([[value]], [("a", 1, value, value, value, value)]) for value in (1, 77, 10**6, 123_456_789_012)),
    ],
)
def test_parts_are_summed_up_with_the_percentiles_of_the_nearest_rank(
    parts: list[Sequence[int]], expected: list[tuple[object, ...]]
) -> None:
    assert summed(*parts) == expected


# -- by key, counted row by row or by sorting --------------------------------------------------------------------------


KEYS, OF_KEYS = [7, 3, 7, 7, 7], [10, 1, 10, 0, 1 << 40]


def taken(groups: GroupedHistograms) -> set[tuple[int, ...]]:
    """Each row: key, bucket, count, total, least, greatest."""
    keys, log_bucket, figures = groups.take()
    return set(zip(*(column.tolist() for column in (keys, log_bucket, *figures.values())), strict=True))


@pytest.mark.parametrize("most_places", [1 << 21, 0])
def test_values_count_in_the_bucket_of_their_key(monkeypatch: pytest.MonkeyPatch, most_places: int) -> None:
    """The second time by sorting, as it happens where the keys and buckets would need too much memory."""
    monkeypatch.setattr("pipeline.report.digests.buckets._MOST_PLACES", most_places)
    of_ten, of_one, of_most = log_buckets(np.array([10, 1, 1 << 40])).tolist()
    groups = GroupedHistograms()

    groups.add(np.array(KEYS[:2]), np.array(OF_KEYS[:2]))
    groups.add(np.array([], np.int64), np.array([], np.int64))
    groups.add(np.array(KEYS[2:]), np.array(OF_KEYS[2:]))

    assert taken(groups) == {
        (3, of_one, 1, 1, 1, 1),
        (7, of_ten, 2, 20, 10, 10),
        (7, -1, 1, 0, 0, 0),
        (7, of_most, 1, 1 << 40, 1 << 40, 1 << 40),
    }


def test_both_ways_of_counting_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    keys, values = random.integers(0, 90, 4000), random.integers(0, 1 << 45, 4000) >> random.integers(0, 45, 4000)
    counted, ordered = GroupedHistograms(), GroupedHistograms()

    counted.add(keys, values)
    monkeypatch.setattr("pipeline.report.digests.buckets._MOST_PLACES", 0)
    ordered.add(keys, values)

    assert taken(counted) == taken(ordered)


def test_groups_that_are_full_are_those_that_merging_leaves_large() -> None:
    """Groups counted as full once half of the room was taken, by rows that merging would have left few of."""
    groups = GroupedHistograms()
    for _ in range(3):
        groups.add(np.array([1, 2, 3]), np.array([5, 5, 5]))
        assert not groups.is_full(10)

    groups.add(np.array([4, 5, 6]), np.array([5, 5, 5]))

    assert groups.is_full(10)
    assert [row[2] for row in sorted(taken(groups))] == [3, 3, 3, 1, 1, 1]
    assert taken(groups) == set()


def test_times_outside_belong_to_the_nearest_interval() -> None:
    times = TimeBuckets.over(100, 199, most=4)

    assert times.numbers(np.array([0, 100, 150, 199, 999])).tolist() == [0, 0, 1, times.number - 1, times.number - 1]
