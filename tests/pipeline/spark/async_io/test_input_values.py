"""Values of the input that are special as keys, beyond Python's range, or alike in name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from pipeline.spark import SqliteResults, async_column, ordered_wait, task_failure, unordered_wait

from ....kit.spark import setting
from . import jobs
from .jobs import collected

SHIPPED = (jobs,)
TIMEOUT_S = 60.0
EDT, EST = 1762061400, 1762065000
"""The same on a clock in New York, an hour apart."""


@pytest.fixture
def new_york(spark: SparkSession) -> Iterator[SparkSession]:
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        yield spark


def one_task(spark: SparkSession, *columns: str) -> DataFrame:
    return spark.range(0, 2, 1, 1).selectExpr("id", *columns)


async def epoch(row: Row) -> tuple[int]:
    return (int(row.at.timestamp()),)


async def epoch_of(at: Any) -> int:
    return int(at.timestamp())


async def one(row: Row) -> tuple[float]:
    return (1.0,)


def test_instants_of_a_repeated_hour_make_a_call_each(new_york: SparkSession) -> None:
    """Both rows got the answer to the first."""
    rows = one_task(new_york, f"timestamp_seconds({EDT} + 3600 * id) AS at")
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "remember": 9}

    found = ordered_wait(rows, epoch, "epoch long", dedupe_by="AT", **options)
    column = rows.select(async_column(epoch_of, "at", dedupe_by="at", **options))

    assert found.collect() == column.collect() == [(EDT,), (EST,)]


def test_all_nan_share_a_call(spark: SparkSession) -> None:
    calls = 0

    async def count(row: Row) -> tuple[int]:
        nonlocal calls
        calls += 1
        return (calls,)

    rows = one_task(spark, "double('NaN') AS number")

    found = ordered_wait(rows, count, "call long", timeout=TIMEOUT_S, dedupe_by="number", remember=9)

    assert [row.call for row in found.collect()] == [1, 1]


def test_a_kept_map_has_both_instants_of_a_repeated_hour(new_york: SparkSession) -> None:
    rows = new_york.range(0, 1, 1, 1).selectExpr(f"map(timestamp_seconds({EDT}), 1, timestamp_seconds({EST}), 2) AS m")

    async def size(row: Row) -> tuple[int]:
        return (len(row.m),)

    found = ordered_wait(rows, size, "n int", timeout=TIMEOUT_S, keep_input=True).selectExpr("size(m)", "n")

    assert found.collect() == [(2, 2)]


BEYOND = ["timestamp_seconds(if(id = 0, 0, 253402318799)) AS at", "make_date(if(id = 0, 2000, 10000), 1, 1) AS day"]


def test_a_value_beyond_pythons_years_is_captured_with_its_row(new_york: SparkSession) -> None:
    """It failed the task, with a bare OverflowError."""
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "on_error": "capture", "keep_input": True, "dedupe_by": "id"}
    tables = {}
    for beyond in BEYOND:
        name = beyond.rpartition(" ")[2]
        columns = ["id", "x", "error.error_class", "error.input.id AS input", f"error.input.{name} = {name} AS same"]
        tables[name] = unordered_wait(one_task(new_york, beyond), one, "x double", **options).selectExpr(*columns)

    for name, rows in collected(tables).items():
        first, second = sorted(tuple(row)[:-1] for row in rows)
        assert first == (0, 1.0, None, None, None), name
        assert second == (1, None, "pipeline.spark.errors.InputValueError", 1, True), name


def test_a_value_beyond_pythons_years_fails_the_task_with_its_column_or_is_dropped_without_a_call(
    new_york: SparkSession,
) -> None:
    with pytest.raises(Exception, match="has failed") as failed:
        ordered_wait(one_task(new_york, BEYOND[0]), one, "x double", timeout=TIMEOUT_S).collect()
    found = ordered_wait(one_task(new_york, BEYOND[1]), one, "x double", timeout=TIMEOUT_S, on_error="drop").collect()

    assert "the column at is <9999-12-31 23:59:59" in str(task_failure(failed.value))
    assert found == [(1.0,)]


def test_an_argument_beyond_pythons_years_is_captured(new_york: SparkSession) -> None:
    price = async_column(epoch_of, "at", timeout=TIMEOUT_S, on_error="capture", skip_nulls=True).alias("p")

    first, second = one_task(new_york, BEYOND[0]).select(price).collect()

    assert first.p.result == 0
    assert "the argument 1 is <9999-12-31 23:59:59" in second.p.error.message


CACHE = SqliteResults("/never/opened")


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        # It was accepted, and the task failed.
        ("array(id) AS k", {"dedupe_by": "k"}, "dedupe_by has the column k, whose type"),
        ("map(id, 1) AS k", {"dedupe_by": ["id", "K"]}, "the column k, .* Give a function of the row"),
        ("named_struct('a', array(id)) AS k", {"dedupe_by": "k"}, "dedupe_by has the column k, whose type"),
        ("parse_json('1') AS v", {"cache": CACHE}, "the cache's key has the column v, whose type variant"),
        ("parse_json('1') AS v", {"cache": SqliteResults("x", key="V")}, "key has the column v, whose type variant"),
        ("map(array(id), 1) AS m", {}, r"the column m has the type map<array<bigint>,int>"),
        # The output had two columns that Spark could not tell apart.
        ("id AS X", {"keep_input": True}, "both have x"),
    ],
)
def test_values_that_cannot_be_used_are_refused(
    spark: SparkSession, column: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ordered_wait(one_task(spark, column), one, "x double", timeout=TIMEOUT_S, **options)


def test_names_of_a_schema_that_differ_in_case_alone_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="2 columns x"):
        ordered_wait(spark.range(1), one, "x double, X double", timeout=TIMEOUT_S)


def test_names_that_differ_in_case_are_two_where_spark_says_so(spark: SparkSession) -> None:
    options: dict[str, Any] = {"keep_input": True, "on_error": "capture", "error_column": "ID"}
    with setting(spark, "spark.sql.caseSensitive", "true"):
        found = ordered_wait(one_task(spark, "id AS Price"), one, "price double", timeout=TIMEOUT_S, **options)

        assert [tuple(row) for row in found.collect()] == [(0, 0, 1.0, None), (1, 1, 1.0, None)]
