from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

from pipeline.spark import ordered_wait, unordered_wait
from pipeline.streaming import AsyncFunction, CapturedError, RetryStrategy

from ....kit import until
from ....kit.spark import setting
from . import jobs
from .jobs import EVERY_TYPE, collected, same

SHIPPED = (jobs,)
TIMEOUT_S = 180.0
BATCH = 10


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions)


def answered(table: DataFrame, function: Any, schema: Any, wait: Any = ordered_wait, **options: Any) -> DataFrame:
    found: DataFrame = wait(table, function, schema, **{"timeout": TIMEOUT_S, **options})
    return found


def answers(table: DataFrame, function: Any, schema: Any, **options: Any) -> list[Row]:
    return answered(table, function, schema, **options).collect()


SQUARES = "id long, square long"


# ------------------------------------------------------------------------------------------------------------- results


class Backwards(AsyncFunction[Row, tuple[int]]):
    """The later rows of each group answer first."""

    def __init__(self, group: int) -> None:
        self.group = group

    def open(self) -> None:
        self.answered: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def close(self) -> None: ...

    async def async_invoke(self, row: Row) -> list[tuple[int]]:
        if row.id % self.group != self.group - 1:
            await self.answered[row.id + 1].wait()
        self.answered[row.id].set()
        return [(row.id,)]


async def repeat(row: Row) -> list[dict[str, int]]:
    return [{"id": row.id, "square": part} for part in range(row.id)]


async def odd_only(row: Row) -> tuple[int]:
    if row.id % 2 == 0:
        raise ValueError(f"{row.id} is even")
    return (row.id,)


def minus(captured: CapturedError) -> list[tuple[int]]:
    return [(-captured.input.id - 100,)]  # type: ignore[attr-defined]


class Hangs(AsyncFunction[Row, tuple[int]]):
    async def async_invoke(self, row: Row) -> list[tuple[int]]:
        await asyncio.Event().wait()
        return []

    def timeout(self, row: Row) -> list[tuple[int]]:
        return [(-row.id,)]


class Fourth(AsyncFunction[Row, tuple[int, int]]):
    """Fails, then returns a result that does not fit, then one that is retried, then the answer."""

    def open(self) -> None:
        self.attempts: dict[int, int] = {}

    async def async_invoke(self, row: Row) -> list[Any]:
        attempt = self.attempts[row.id] = self.attempts.get(row.id, 0) + 1
        if attempt == 1:
            raise ConnectionError("not yet")
        return [{2: "pending", 3: (row.id, 0), 4: (row.id, attempt)}[attempt]]


UNTIL_FOURTH = RetryStrategy.fixed_delay(
    5,
    1,
    retry_on_result=lambda results: results[0] == "pending" or results[0][1] == 0,
    retry_on_exception=ConnectionError,
)
# Rows and partitions, the function, the options, and the rows that come of it: in the first column, or whole.
PROMISES: dict[str, tuple[tuple[int, int], Any, dict[str, Any], list[Any]]] = {
    "ordered results come in the order of the rows, and calls overlap across batches": (
        (12 * BATCH, 2),
        Backwards(3 * BATCH),
        {"capacity": 3 * BATCH},
        [*range(12 * BATCH)],
    ),
    "unordered results do not wait for a slow call": (
        (BATCH, 1),
        Backwards(BATCH),
        {"wait": unordered_wait},
        [*range(BATCH)][::-1],
    ),
    "a row may have many results or none": ((4, 2), repeat, {}, [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]),
    "empty partitions have no results": ((1, 4), Backwards(1), {}, [0]),
    "a function may turn an error into rows": ((4, 2), odd_only, {"on_error": minus}, [-100, 1, -102, 3]),
    "a timeout hook gives results instead": ((3, 2), Hangs(), {"timeout": 0.1}, [0, -1, -2]),
    "calls are retried on errors and on results": ((3, 2), Fourth(), {"retry": UNTIL_FOURTH}, [(0, 4), (1, 4), (2, 4)]),
}


def table_of(spark: SparkSession, size: tuple[int, int], function: Any, options: dict[str, Any]) -> DataFrame:
    schema = SQUARES if function is repeat or isinstance(function, Fourth) else "id long"
    return answered(numbers(spark, *size), function, schema, **options).select(F.array("*").alias("columns"))


def test_answers_become_rows(spark: SparkSession) -> None:
    with setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", BATCH):
        found = collected({promise: table_of(spark, *of[:3]) for promise, of in PROMISES.items()})

    for promise, (*_, expected) in PROMISES.items():
        values = [tuple(row.columns) if len(row.columns) > 1 else row.columns[0] for row in found[promise]]
        assert values == expected, promise


def test_rows_keep_their_types_and_values(spark: SparkSession) -> None:
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        table = spark.sql(EVERY_TYPE)
        found = ordered_wait(table, same, table.schema, timeout=TIMEOUT_S)

        assert found.schema == table.schema
        rows, expected = (each.withColumn("variant", F.to_json("variant")).collect() for each in (found, table))
        assert sorted(rows, key=lambda row: row.big) == sorted(expected, key=lambda row: row.big)


def test_a_time_zone_with_another_name_in_python_is_understood(spark: SparkSession) -> None:
    """Such names failed the tasks, even without a timestamp column."""

    async def hour(row: Row) -> tuple[int, Any]:
        return row.at.hour, row.at.replace(tzinfo=None)

    with setting(spark, "spark.sql.session.timeZone", "GMT+3"):
        table = spark.sql("SELECT TIMESTAMP'2026-07-01 12:00:00' AS at")

        assert answers(table, hour, "hour int, at timestamp") == [(12, table.collect()[0].at)]


def test_columns_are_given_whatever_their_names(spark: SparkSession) -> None:
    """Spark resolves them by name on the way to Python, and found none or too many."""

    async def swap(row: Row) -> tuple[int, int, list[str]]:
        return row[2], row[0], row.__fields__  # type: ignore[attr-defined]

    names = ["`", "a.b", "a.b"]
    table = numbers(spark, 1).selectExpr("1 AS x", "2 AS y", "3 AS z").toDF(*names)

    assert answers(table, swap, "x int, y int, names array<string>") == [(3, 1, names)]


# ---------------------------------------------------------------------------------------------------------------- keys


class Sizes(AsyncFunction[Row, tuple[int, int]]):
    async def async_invoke_batch(self, rows: list[Row]) -> list[list[tuple[int, int]] | Exception]:
        return [[(row.id, len(rows))] if row.id != 3 else ValueError("no 3") for row in rows]


def test_a_batch_function_receives_many_rows_at_once(spark: SparkSession) -> None:
    options: dict[str, Any] = {"max_batch_size": 5, "linger_ms": 50, "on_error": "drop"}

    found = answers(numbers(spark, 20, 1), Sizes(), "id long, size int", **options)

    assert [row.id for row in found] == [i for i in range(20) if i != 3]
    assert 1 < max(row.size for row in found) <= 5


def test_rows_of_the_same_key_share_a_call_and_keep_their_own_columns(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "calls"

    async def name(row: Row) -> tuple[str]:
        append(log, "call")
        return (f"item {row.item}",)

    orders = numbers(spark, 60, 1).selectExpr("id", "id % 3 AS item", "named_struct('at', timestamp_seconds(id)) AS at")

    found = answered(orders, name, "name string", dedupe_by="item", remember=10, keep_input=True)

    assert found.columns == ["id", "item", "at", "name"]
    assert found.collect() == orders.selectExpr("*", "concat('item ', item) AS name").collect()
    assert log.read_text().count("call") == 3


def test_a_captured_error_holds_the_row_next_to_the_columns_that_keep_input_adds(spark: SparkSession) -> None:
    """The row's own columns were null where its call had failed, though keep_input puts them into the output."""

    async def refuse(row: Row) -> tuple[str]:
        if row.id % 2:
            raise ValueError("no")
        return ("even",)

    options: dict[str, Any] = {"dedupe_by": lambda row: row.id % 2, "metrics": Observation(), "error_column": "failure"}
    found = answered(numbers(spark, 4, 1), refuse, "name string", keep_input=True, on_error="capture", **options)

    rows = [(row.id, row.name, row.failure and row.failure.input.id) for row in found.collect()]
    assert rows == [(0, "even", None), (1, None, 1), (2, "even", None), (3, None, 3)]
    assert [field.nullable for field in found.schema.fields[:2]] == [False, True]


def test_kept_and_captured_columns_are_of_every_type(spark: SparkSession) -> None:
    async def refuse(row: Row) -> tuple[str]:
        if row.text == "1":
            raise ValueError("no")
        return ("fine",)

    table = spark.sql(EVERY_TYPE)

    found = answered(table, refuse, "name string", keep_input=True, on_error="capture").orderBy("big").collect()

    rows = table.orderBy("big").collect()
    assert repr([row[: len(table.columns)] for row in found]) == repr([tuple(row) for row in rows])
    assert [repr(row.error and row.error.input) for row in found] == ["None", repr(rows[1]), "None"]


def append(path: Path, line: str) -> None:
    """Any process, any thread: a short append is atomic."""
    with path.open("a") as lines:
        lines.write(line + "\n")


# -------------------------------------------------------------------------------------------------------------- errors


class UnprintableError(Exception):
    def __init__(self, how: int) -> None:
        self.how = how

    def __str__(self) -> str:
        if self.how == 0:
            raise self
        return None if self.how == 1 else "\ud800"  # type: ignore[return-value]

    def __repr__(self) -> str:
        return str(self)


async def raise_unprintable(row: Any) -> list[Any]:
    raise UnprintableError(row.id)


async def sometimes_text(row: Row) -> dict[str, Any]:
    return {"id": row.id, "size": "large" if row.id == 2 else 1}


async def hang(row: Row) -> tuple[int, int]:
    await asyncio.Event().wait()
    return (0, 0)


FITS_NOT = "the column size of the result does not fit the schema: 'large' (str) is not of type int"
MISFIT = f"pipeline.spark.errors.ResultSchemaError: {FITS_NOT}"
UNPRINTABLE = [
    f"UnprintableError: {text}" for text in ("(its __str__ raised ", "(its __str__ raised TypeError)", "\\ud800")
]
LATE = "no answer by the deadline, 1000 ms after the record was taken in"
CAPTURED: dict[str, tuple[Callable[[Row], Any], str, dict[str, Any], list[str | None]]] = {
    "an error": (odd_only, "id long not null", {}, ["ValueError: 0 is even", None, "ValueError: 2 is even"]),
    "a text that cannot be made": (raise_unprintable, "name string", {}, UNPRINTABLE),
    "a result that does not fit": (sometimes_text, "id long, size int", {}, [None, None, MISFIT]),
    "a deadline long before the timeout": (hang, SQUARES, {"deadline": 1.0}, [LATE] * 3),
}


def test_a_captured_error_is_the_row_s_own(spark: SparkSession) -> None:
    tables = {
        what: answered(numbers(spark, 3), function, schema, on_error="capture", **options)
        for what, (function, schema, options, _) in CAPTURED.items()
    }

    columns = {what: F.col(table.columns[0]).cast("string").alias("it") for what, table in tables.items()}
    found = collected({what: table.select(columns[what], "error") for what, table in tables.items()})

    for what, (*_, expected) in CAPTURED.items():
        for number, (row, error) in enumerate(zip(found[what], expected, strict=True)):
            if error is None:
                assert (row.it, row.error) == (str(number), None), what
            else:
                assert error in f"{row.error.error_class}: {row.error.message}"
                assert (row.it, row.error.input.id, row.error.attempts) == (None, number, 1), what
                assert row.error.time_spent_ms > 0


# --------------------------------------------------------------------------------------- connections, early ends


class Logged(AsyncFunction[Row, tuple[int, int]]):
    """Logs to a file when it is opened or closed."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def open(self) -> None:
        append(self.log, f"open {os.getpid()}")

    async def close(self) -> None:
        append(self.log, f"close {os.getpid()}")

    async def async_invoke(self, row: Row) -> list[tuple[int, int]]:
        return [(row.id, os.getpid())]


LOGGED = "id long, worker int"


def test_connection_is_opened_once_per_worker_and_kept_across_tasks(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"

    workers = {row.worker for _ in range(2) for row in answers(numbers(spark, 40, 8), Logged(log), LOGGED)}

    assert sorted(log.read_text().splitlines()) == sorted(f"open {worker}" for worker in workers)
    assert len(workers) <= 2 * 2  # two tasks at a time, of 16 in all


class Collected(AsyncFunction[Row, tuple[int, bool]]):
    """Gives the number of objects that this worker's garbage collector passes over, and whether it sees this one."""

    async def async_invoke(self, row: Row) -> tuple[int, bool]:
        return gc.get_freeze_count(), any(each is self for each in gc.get_objects())


def test_garbage_collection_passes_over_modules_but_not_what_is_the_users(spark: SparkSession) -> None:
    """PySpark collects all garbage after each task, however short."""
    rows = answers(numbers(spark, 4, 4), Collected(), "frozen int, is_seen boolean")

    assert all(row.frozen > 10_000 for row in rows)
    assert all(row.is_seen for row in rows)


@pytest.mark.parametrize(
    ("options", "is_killed"), [({"idle_timeout": 0.05}, False), ({}, True)], ids=["idle", "killed"]
)
def test_connection_is_closed_after_idle_time_or_when_a_signal_ends_the_worker(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], is_killed: bool
) -> None:
    log = tmp_path / "log"

    worker = answers(numbers(spark, 2, 1), Logged(log), LOGGED, **options)[0].worker
    if is_killed:
        os.kill(worker, signal.SIGHUP)

    until(lambda: f"close {worker}" in log.read_text().splitlines(), "its end")
