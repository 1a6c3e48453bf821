"""SQL that several tables of the report share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.report.digests.buckets import TimeBuckets

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KIND = ("machine", "from_state", "event_type", "to_state")
"""The columns that identify a kind of transition."""


def bucket_of(times: TimeBuckets, at: str) -> str:
    """SQL: the number from 0 of the interval that contains a time."""
    return f"greatest(0, least({times.number - 1}, ({at} - {times.start_at}) // {times.width_ns}))::INTEGER"


def starts_at(times: TimeBuckets, bucket: str = "bucket") -> str:
    """SQL: the start of an interval, Unix ns."""
    return f"({bucket}::BIGINT * {times.width_ns} + {times.start_at})"


def among(values: Iterable[str]) -> str:
    """SQL: a list to search in with IN."""
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"


def summed_up(groups: str, keys: str, percentiles: Mapping[str, float]) -> str:
    """SQL: one row per combination of keys, from rows with log_bucket and the `FIGURES`; buckets may repeat.

    Out: the keys (unique together), count, total, greatest, and each of `percentiles` under its name.
    """
    reached = ", ".join(
        f"arg_min(middle, log_bucket) FILTER (up_to >= ceil(whole * {share}::DOUBLE)) AS {name}"
        for name, share in percentiles.items()
    )
    return f"""
        SELECT {keys}, sum("count")::BIGINT AS "count", sum(total)::BIGINT AS total, max(greatest) AS greatest,
            {reached}
        FROM (
            SELECT {keys}, log_bucket, sum("count"::DOUBLE) AS "count", sum(total) AS total, max(greatest) AS greatest,
                (min(least) + max(greatest)) / 2 AS middle,
                sum(sum("count"::DOUBLE)) OVER (
                    PARTITION BY {keys} ORDER BY log_bucket ROWS UNBOUNDED PRECEDING
                ) AS up_to,
                sum(sum("count"::DOUBLE)) OVER (PARTITION BY {keys}) AS whole
            FROM ({groups}) GROUP BY {keys}, log_bucket
        )
        GROUP BY {keys}
    """


def add_declared(database: DuckDBPyConnection, declared: Sequence[Sequence[str]]) -> None:
    """Make the table declared: the distinct transitions that the machines declare."""
    columns = zip(*sorted(set(map(tuple, declared))), strict=True) if declared else ((),) * len(KIND)
    rows = {name: pa.array(values, pa.string()) for name, values in zip(KIND, columns, strict=True)}
    database.from_arrow(pa.table(rows)).create("declared")
