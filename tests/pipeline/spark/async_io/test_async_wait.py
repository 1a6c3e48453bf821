from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

from pipeline.spark import ordered_wait, unordered_wait
from pipeline.streaming import AsyncFunction, CapturedError, RetryStrategy

TIMEOUT_S = 180.0

Assert = Callable[[DataFrame, str, list[tuple[Any, ...]]], None]


@contextmanager
def setting(spark: SparkSession, key: str, value: str | int) -> Iterator[None]:
    before = spark.conf.get(key)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.set(key, before)


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[int]:
    """The number of rows in each of Spark's batches."""
    rows = 10
    with setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", rows):
        yield rows


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions)


async def square(row: Row) -> tuple[int, int]:
    return row.id, row.id * row.id


SQUARES = "id long, square long"


async def same(row: Row) -> Row:
    return row


# ------------------------------------------------------------------------------------------------------------- results


def test_ordered_results_come_in_the_order_of_the_rows(spark: SparkSession) -> None:
    async def jittery(row: Row) -> tuple[int, int]:
        # The later rows of each group of ten answer first.
        await asyncio.sleep(0.001 * (10 - row.id % 10))
        return row.id, row.id * row.id

    found = ordered_wait(numbers(spark, 300), jittery, SQUARES, timeout=TIMEOUT_S).collect()

    assert [tuple(row) for row in found] == [(i, i * i) for i in range(300)]


def test_unordered_results_do_not_wait_for_a_slow_call(spark: SparkSession) -> None:
    class LastFirst(AsyncFunction[Row, tuple[int]]):
        """The first row is answered after all others."""

        def open(self) -> None:
            self.others = 0
            self.all_others = asyncio.Event()

        async def async_invoke(self, row: Row) -> list[tuple[int]]:
            if row.id == 0:
                await self.all_others.wait()
            else:
                self.others += 1
                if self.others == 19:
                    self.all_others.set()
            return [(row.id,)]

    found = unordered_wait(numbers(spark, 20, 1), LastFirst(), "id long", timeout=TIMEOUT_S).collect()

    assert [row.id for row in found] == [*range(1, 20), 0]


def test_a_row_may_have_many_results_or_none(spark: SparkSession, assert_table: Assert) -> None:
    async def repeat(row: Row) -> list[dict[str, int]]:
        return [{"id": row.id, "part": part} for part in range(row.id)]

    found = ordered_wait(numbers(spark, 4), repeat, "id long, part int", timeout=TIMEOUT_S)

    assert_table(found, "id long, part int", [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])


def test_empty_partitions_and_empty_tables_have_no_results(spark: SparkSession) -> None:
    few = numbers(spark, 4).where("id = 2").repartition(4)

    assert ordered_wait(few, square, SQUARES, timeout=TIMEOUT_S).collect() == [(2, 4)]
    assert ordered_wait(few.where("id > 5"), square, SQUARES, timeout=TIMEOUT_S).collect() == []


_ALL_TYPES = """
    SELECT true AS flag, tinyint(-128) AS tiny, smallint(7) AS small, int(2147483647) AS medium, bigint(id) AS big,
      float(0.5) AS single, double(0.1) AS twice, decimal(12.50) AS money, CAST('1.50' AS decimal(38,18)) AS exact,
      string(id) AS text, CAST('abc' AS binary) AS bytes, DATE'2026-02-28' AS day,
      TIMESTAMP'2026-07-01 12:00:00.000001' AS at,
      TIMESTAMP_NTZ'2026-07-01 12:00:00' AS wall, INTERVAL '1 02:03:04.5' DAY TO SECOND AS span,
      array(1, null, int(id)) AS list, map('a', bigint(id), 'b', null) AS counts,
      named_struct('x', id, 'inner', named_struct('names', array('a', null))) AS nested,
      array(map(1, named_struct('at', DATE'2026-01-01'))) AS deep, if(id = 1, null, named_struct('x', id)) AS maybe,
      null AS nothing
    FROM range(3)
"""


def test_rows_keep_their_types_and_values(spark: SparkSession) -> None:
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        table = spark.sql(_ALL_TYPES)
        found = ordered_wait(table, same, table.schema, timeout=TIMEOUT_S)

        assert found.schema == table.schema
        assert sorted(found.collect(), key=lambda row: row.big) == sorted(table.collect(), key=lambda row: row.big)


def test_variant_and_time_of_day_pass_through(spark: SparkSession) -> None:
    table = spark.sql("SELECT parse_json('{\"a\": [1, 2]}') AS v UNION ALL SELECT null")
    found = ordered_wait(table, same, table.schema, timeout=TIMEOUT_S).selectExpr("to_json(v) AS text")

    assert sorted(found.collect(), key=repr) == [('{"a":[1,2]}',), (None,)]


def test_a_time_zone_with_another_name_in_python_is_understood(spark: SparkSession) -> None:
    """Such names failed the tasks, even without a timestamp column."""

    async def hour(row: Row) -> tuple[int, Any]:
        return row.at.hour, row.at.replace(tzinfo=None)

    with setting(spark, "spark.sql.session.timeZone", "GMT+3"):
        table = spark.sql("SELECT TIMESTAMP'2026-07-01 12:00:00' AS at")
        (found,) = ordered_wait(table, hour, "hour int, at timestamp", timeout=TIMEOUT_S).collect()

        assert found.hour == 12
        assert found.at == table.collect()[0].at


@pytest.mark.parametrize("names", [["id", "id"], ["a.b", "`"]])
def test_columns_are_given_whatever_their_names(spark: SparkSession, names: list[str]) -> None:
    """Spark resolves them by name on the way to Python, and found none or too many."""

    async def swap(row: Row) -> tuple[int, int, list[str]]:
        return row[1], row[0], row.__fields__  # type: ignore[attr-defined]

    table = numbers(spark, 1).selectExpr("1 AS x", "2 AS y").toDF(*names)
    found = ordered_wait(table, swap, "x int, y int, names array<string>", timeout=TIMEOUT_S).collect()

    assert found == [(2, 1, names)]


def test_calls_are_under_way_across_input_batches(spark: SparkSession, small_batches: int) -> None:
    class Together(AsyncFunction[Row, tuple[int]]):
        """No call returns before three batches of calls are in flight."""

        def open(self) -> None:
            self.calls = 0
            self.enough = asyncio.Event()

        async def async_invoke(self, row: Row) -> list[tuple[int]]:
            self.calls += 1
            if self.calls >= 3 * small_batches:
                self.enough.set()
            await self.enough.wait()
            return [(row.id,)]

    table = numbers(spark, 5 * small_batches, 1)
    found = ordered_wait(table, Together(), "id long", timeout=TIMEOUT_S, capacity=3 * small_batches).collect()

    assert [row.id for row in found] == list(range(5 * small_batches))


# ---------------------------------------------------------------------------------------------------- other functions


class Together:
    """A blocking function whose calls wait for each other in fours."""

    def open(self) -> None:
        self.barrier = threading.Barrier(4)

    def close(self) -> None:
        pass

    def __call__(self, row: Row) -> tuple[int]:
        self.barrier.wait(TIMEOUT_S)
        return (row.id,)


def test_blocking_functions_run_side_by_side_on_threads(spark: SparkSession) -> None:
    found = ordered_wait(numbers(spark, 8, 1), Together(), "id long", timeout=TIMEOUT_S, pool_size=4).collect()

    assert [row.id for row in found] == list(range(8))


def test_a_batch_function_receives_many_rows_at_once(spark: SparkSession) -> None:
    class Sizes(AsyncFunction[Row, tuple[int, int]]):
        async def async_invoke_batch(self, rows: list[Row]) -> list[list[tuple[int, int]] | Exception]:
            return [[(row.id, len(rows))] if row.id != 3 else ValueError("no 3") for row in rows]

    found = ordered_wait(
        numbers(spark, 20, 1),
        Sizes(),
        "id long, size int",
        timeout=TIMEOUT_S,
        max_batch_size=5,
        linger_ms=50,
        on_error="drop",
    ).collect()

    assert [row.id for row in found] == [i for i in range(20) if i != 3]
    assert 1 < max(row.size for row in found) <= 5


def test_rows_of_the_same_key_share_a_call(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "calls"

    async def look_up(row: Row) -> tuple[int, str]:
        append(log, "call")
        return row.key, f"value of {row.key}"

    keys = numbers(spark, 60, 1).select((F.col("id") % 3).alias("key"), "id")
    found = ordered_wait(keys, look_up, "key long, value string", timeout=TIMEOUT_S, dedupe_by="key", remember=10)

    assert [row.key for row in found.collect()] == [i % 3 for i in range(60)]
    assert log.read_text().count("call") == 3


def test_rows_that_share_a_call_keep_their_own_columns(spark: SparkSession) -> None:
    async def name(row: Row) -> tuple[str]:
        return (f"item {row.item}",)

    orders = spark.range(0, 20, 1, 2).selectExpr(
        "id", "id % 3 AS item", "named_struct('at', timestamp_seconds(id)) AS at"
    )

    found = unordered_wait(orders, name, "name string", timeout=TIMEOUT_S, dedupe_by="item", keep_input=True)

    assert found.columns == ["id", "item", "at", "name"]
    expected = orders.selectExpr("*", "concat('item ', item) AS name")
    assert sorted(found.collect()) == sorted(expected.collect())


@pytest.mark.parametrize("keep_input", [True, False])
def test_a_captured_error_holds_the_row_beside_the_columns_that_keep_input_adds(
    spark: SparkSession, keep_input: bool
) -> None:
    """The row's own columns were null where its call had failed, though keep_input puts them into the output."""

    async def refuse(row: Row) -> tuple[str]:
        if row.id % 2:
            raise ValueError("no")
        return ("even",)

    found = ordered_wait(
        numbers(spark, 4).coalesce(1),
        refuse,
        "name string",
        timeout=TIMEOUT_S,
        keep_input=keep_input,
        dedupe_by=lambda row: row.id % 2,
        on_error="capture",
        metrics=Observation(),
    )

    rows = [(row.name, row.error and row.error.input.id) for row in found.collect()]
    assert rows == [("even", None), (None, 1), ("even", None), (None, 3)]
    if keep_input:
        assert [row.id for row in found.select("id").collect()] == [0, 1, 2, 3]
        assert [field.nullable for field in found.schema.fields[:2]] == [False, True]


def test_columns_of_both_sides_with_one_name_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="both have id"):
        ordered_wait(numbers(spark, 1), square, SQUARES, timeout=TIMEOUT_S, keep_input=True)


def append(path: Path, line: str) -> None:
    """Any process, any thread: a short append is atomic."""
    with path.open("a") as lines:
        lines.write(line + "\n")


# -------------------------------------------------------------------------------------------------------------- errors


async def odd_only(row: Row) -> tuple[int]:
    if row.id % 2 == 0:
        raise ValueError(f"{row.id} is even")
    return (row.id,)


class UnprintableError(Exception):
    def __init__(self, how: int) -> None:
        self.how = how

    def __str__(self) -> str:
        if self.how == 0:
            raise self
        return None if self.how == 1 else "\ud800"  # type: ignore[return-value]

    def __repr__(self) -> str:
        return str(self)


def test_an_error_whose_text_cannot_be_made_is_captured_as_any_other(spark: SparkSession) -> None:
    async def fail(row: Any) -> list[Any]:
        raise UnprintableError(row.id)

    found = ordered_wait(numbers(spark, 3), fail, "name string", timeout=TIMEOUT_S, on_error="capture").collect()

    messages = [row.error.message for row in found]
    assert messages[0].startswith("(its __str__ raised ")
    assert messages[1:] == ["(its __str__ raised TypeError)", "\\ud800"]
    assert all(row.error.error_class.endswith("UnprintableError") for row in found)


def test_failed_rows_are_captured_with_their_input(spark: SparkSession) -> None:
    found = ordered_wait(numbers(spark, 4), odd_only, "number long not null", timeout=TIMEOUT_S, on_error="capture")

    rows = found.collect()
    dead_letters = found.where("error is not null").select("error.input.id", "error.error_class", "error.message")
    assert [row.number for row in rows] == [None, 1, None, 3]
    assert [row.error is None for row in rows] == [False, True, False, True]
    assert rows[0].error.attempts == 1
    assert rows[0].error.time_spent_ms > 0
    assert dead_letters.collect() == [(0, "ValueError", "0 is even"), (2, "ValueError", "2 is even")]


def test_name_of_the_error_column_may_be_chosen(spark: SparkSession) -> None:
    found = ordered_wait(
        numbers(spark, 2), odd_only, "error long", timeout=TIMEOUT_S, on_error="capture", error_column="failure"
    )

    assert found.columns == ["error", "failure"]
    assert [row.failure is None for row in found.collect()] == [False, True]


def test_function_may_turn_an_error_into_rows(spark: SparkSession) -> None:
    def instead(captured: CapturedError) -> list[tuple[int]]:
        return [(-captured.input.id - 100,)]  # type: ignore[attr-defined]

    found = ordered_wait(numbers(spark, 4), odd_only, "id long", timeout=TIMEOUT_S, on_error=instead)

    assert [row.id for row in found.collect()] == [-100, 1, -102, 3]


def test_result_that_does_not_fit_is_the_error_of_its_row(spark: SparkSession) -> None:
    async def sometimes_text(row: Row) -> dict[str, Any]:
        return {"id": row.id, "size": "large" if row.id == 2 else 1}

    found = ordered_wait(numbers(spark, 4), sometimes_text, "id long, size int", timeout=TIMEOUT_S, on_error="capture")

    rows = found.collect()
    assert [row.id for row in rows] == [0, 1, None, 3]
    assert rows[2].error.input.id == 2
    assert rows[2].error.error_class == "pipeline.spark.errors.ResultSchemaError"
    reason = "'large' (str) is not of type int"
    assert rows[2].error.message == f"the column size of the result does not fit the schema: {reason}"


def test_a_row_may_miss_its_deadline_long_before_its_call_is_late(spark: SparkSession) -> None:
    async def hang(row: Row) -> tuple[int, int]:
        await asyncio.Event().wait()
        return (0, 0)

    found = ordered_wait(numbers(spark, 3), hang, SQUARES, timeout=TIMEOUT_S, deadline=0.1, on_error="capture")

    late = "no answer by the deadline, 100 ms after the record was taken in"
    assert [late in row.error.message for row in found.collect()] == [True] * 3


def test_timeout_hook_gives_results_instead(spark: SparkSession) -> None:
    class Hang(AsyncFunction[Row, tuple[int]]):
        async def async_invoke(self, row: Row) -> list[tuple[int]]:
            await asyncio.Event().wait()
            return []

        def timeout(self, row: Row) -> list[tuple[int]]:
            return [(-row.id,)]

    found = ordered_wait(numbers(spark, 3), Hang(), "id long", timeout=0.1).collect()

    assert [row.id for row in found] == [0, -1, -2]


def test_calls_are_retried_on_errors_and_on_results(spark: SparkSession) -> None:
    class Third(AsyncFunction[Row, tuple[int, int]]):
        """Fails, then returns a result that does not fit, then one that is retried, then the answer."""

        def open(self) -> None:
            self.attempts: dict[int, int] = {}

        async def async_invoke(self, row: Row) -> list[Any]:
            attempt = self.attempts[row.id] = self.attempts.get(row.id, 0) + 1
            if attempt == 1:
                raise ConnectionError("not yet")
            return [{2: "pending", 3: (row.id, 0), 4: (row.id, attempt)}[attempt]]

    strategy = RetryStrategy.fixed_delay(
        5,
        1,
        retry_on_result=lambda results: results[0] == "pending" or results[0][1] == 0,
        retry_on_exception=ConnectionError,
    )
    found = ordered_wait(
        numbers(spark, 3), Third(), "id long, attempt int", timeout=TIMEOUT_S, retry=strategy
    ).collect()

    assert [tuple(row) for row in found] == [(0, 4), (1, 4), (2, 4)]


# --------------------------------------------------------------------------------------- connections, early ends


class Logged(AsyncFunction[Row, tuple[int, int]]):
    """Logs to a file when it is opened or closed, and when a call is cancelled."""

    def __init__(self, log: Path, hangs_at: int | None = None, fails_at: int | None = None) -> None:
        self.log = log
        self.hangs_at = hangs_at
        self.fails_at = fails_at

    def open(self) -> None:
        self.hanging = asyncio.Event()
        append(self.log, f"open {os.getpid()}")

    async def close(self) -> None:
        append(self.log, f"close {os.getpid()}")

    async def async_invoke(self, row: Row) -> list[tuple[int, int]]:
        if row.id == self.fails_at:
            await self.hanging.wait()  # so that there is a call to cancel
            raise ValueError("on purpose")
        if row.id == self.hangs_at:
            self.hanging.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                append(self.log, "cancelled")
                raise
        return [(row.id, os.getpid())]


def wait_for_line(log: Path, line: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while line not in log.read_text().splitlines():
        assert time.monotonic() < deadline_s, f"no line {line!r} in {log.read_text()!r}"
        threading.Event().wait(0.01)


def test_connection_is_opened_once_per_worker_and_kept_across_tasks(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    table = ordered_wait(numbers(spark, 40, 8), Logged(log), "id long, worker int", timeout=TIMEOUT_S)

    workers = {row.worker for row in table.collect()} | {row.worker for row in table.collect()}

    lines = log.read_text().splitlines()
    assert sorted(lines) == sorted(f"open {worker}" for worker in workers)
    assert len(workers) <= 2 * 2  # two tasks at a time, of 16 in all


class Collected(AsyncFunction[Row, tuple[int, bool]]):
    """Gives the number of objects that this worker's garbage collector passes over, and whether it sees this one."""

    async def async_invoke(self, row: Row) -> tuple[int, bool]:
        return gc.get_freeze_count(), any(each is self for each in gc.get_objects())


def test_garbage_collection_passes_over_modules_but_not_what_is_the_users(spark: SparkSession) -> None:
    """PySpark collects all garbage after each task, however short."""
    rows = unordered_wait(numbers(spark, 4, 4), Collected(), "frozen int, is_seen boolean", timeout=TIMEOUT_S).collect()

    assert all(row.frozen > 10_000 for row in rows)
    assert all(row.is_seen for row in rows)


def test_connection_is_closed_when_no_task_has_used_it_for_a_while(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"

    found = ordered_wait(
        numbers(spark, 2, 1), Logged(log), "id long, worker int", timeout=TIMEOUT_S, idle_timeout=0.05
    ).collect()

    wait_for_line(log, f"close {found[0].worker}")


def test_connection_is_closed_when_a_signal_ends_the_worker(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    found = ordered_wait(numbers(spark, 2, 1), Logged(log), "id long, worker int", timeout=TIMEOUT_S).collect()

    os.kill(found[0].worker, signal.SIGHUP)

    wait_for_line(log, f"close {found[0].worker}")


def test_limit_gives_up_the_calls_under_way(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    # More rows than Spark buffers, so that the worker notices that the reader stopped.
    table = numbers(spark, 100_000, 1)
    function = Logged(log, hangs_at=3)

    found = unordered_wait(table, function, "id long, worker int", timeout=TIMEOUT_S, capacity=10).limit(5).collect()

    assert [row.id for row in found] == [0, 1, 2, 4, 5]
    wait_for_line(log, "cancelled")
    wait_for_line(log, f"close {found[0].worker}")


def test_failed_task_gives_up_its_calls_and_closes_the_connection(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    function = Logged(log, hangs_at=1, fails_at=5)

    with pytest.raises(Exception, match="on purpose"):
        ordered_wait(numbers(spark, 10, 1), function, "id long, worker int", timeout=TIMEOUT_S).collect()

    wait_for_line(log, "cancelled")
    wait_for_line(log, log.read_text().splitlines()[0].replace("open", "close"))
