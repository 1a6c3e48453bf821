"""Log-linear histograms: equal buckets in SQL and in arrays, and percentiles computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("duckdb")

import duckdb
import numpy as np

from pipeline.report.digests import buckets
from pipeline.report.digests.buckets import GroupedHistograms, log_buckets
from pipeline.report.digests.digest import log_bucket
from pipeline.report.tables.sql import summed_up

VALUES = [-5, 0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 66, 67, 1000, 1 << 40, (1 << 40) - 1, (1 << 53) + 1, (1 << 63) - 1]


def summed(*parts: Sequence[int]) -> list[tuple[object, ...]]:
    """Of the values of parts: name, count, total, greatest, and the 50th and 99th percentile."""
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


def test_percentiles_are_those_of_the_nearest_rank() -> None:
    # Below 64 every value has a bucket of its own: the 15th of 30, and the 30th.
    assert summed(range(1, 31)) == [("a", 30, 465, 30, 15.0, 30.0)]


def test_a_percentile_is_the_midpoint_of_its_buckets_values() -> None:
    assert summed([1024, 1050, 1 << 30]) == [("a", 3, 1073743898, 1 << 30, 1037.0, float(1 << 30))]


def test_parts_add_up_to_the_whole() -> None:
    assert summed([5, 1000], [1001, 3], [0]) == [("a", 5, 2009, 1001, 5.0, 1000.5)]


def test_no_values_give_no_percentiles() -> None:
    assert summed([]) == []


@pytest.mark.parametrize("places", [1 << 21, 0])
def test_groups_of_arrays_add_up(monkeypatch: pytest.MonkeyPatch, places: int) -> None:
    """Rows are counted in arrays, or sorted where these would be too large."""
    monkeypatch.setattr(buckets, "_MOST_PLACES", places)
    groups = GroupedHistograms()
    groups.add(np.array([7, 3, 7]), np.array([10, 1, 30]))
    groups.add(np.array([], np.int64), np.array([], np.int64))
    groups.add(np.array([7]), np.array([10]))

    was_full = groups.is_full(3), groups.is_full(8)
    keys, log_bucket, figures = groups.take()

    assert was_full == (True, False)
    assert keys.tolist() == [3, 7, 7]
    assert log_bucket.tolist() == log_buckets(np.array([1, 10, 30])).tolist()
    assert {name: column.tolist() for name, column in figures.items()} == {
        "count": [1, 2, 1],
        "total": [1, 20, 30],
        "least": [1, 10, 30],
        "greatest": [1, 10, 30],
    }
    assert groups.take()[0].tolist() == []


@pytest.mark.parametrize("value", [1, 77, 10**6, 123_456_789_012])
def test_a_bucket_with_one_value_gives_it_exactly(value: int) -> None:
    [(*_, half, most)] = summed([value])

    assert (half, most) == (float(value), float(value))
