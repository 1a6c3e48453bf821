"""Log-linear histograms: equal buckets in SQL and in arrays, and percentiles computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("duckdb")

import duckdb
import numpy as np

from pipeline.report.digests.buckets import log_buckets
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
