from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.util import PythonEvalType

from dispatcher.aio import RateLimit
from pipeline.spark import async_column, register_async, task_failure
from pipeline.streaming import AsyncFunction, RetryStrategy

from ....kit.spark import json_lines, setting
from . import jobs
from .counting_service import CountingService
from .jobs import EVERY_TYPE, collected, same

SHIPPED = (jobs,)
TIMEOUT_S = 60.0

if not hasattr(PythonEvalType, "SQL_SCALAR_ARROW_ITER_UDF"):
    pytest.skip("a column needs PySpark 4.1", allow_module_level=True)


@pytest.fixture
def service() -> Iterator[CountingService]:
    with CountingService() as service:
        yield service


@dataclass
class Offer:
    price: float
    stock: int | None


async def half(number: int | None) -> float | None:
    return None if number is None else number / 2


# ----------------------------------------------------------------------------------------------- values and their place


def test_each_row_has_its_value_while_calls_overlap_across_batches(spark: SparkSession) -> None:
    small = 10
    with (
        setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", small),
        CountingService(answers_from=3 * small) as service,
    ):
        price = async_column(service.price(), "id", returns="double", timeout=TIMEOUT_S)

        priced = spark.range(0, 300, 1, 1).withColumn("price", price)

        assert priced.dtypes == [("id", "bigint"), ("price", "double")]
        assert [tuple(row) for row in priced.collect()] == [(i, i * 1.5) for i in range(300)]
        assert sorted(map(int, service.keys)) == list(range(300))
        assert service.most_under_way <= 100


def test_sql_calls_a_registered_function(spark: SparkSession) -> None:
    async def total(item: int, count: int, currency: str) -> str:
        return f"{item * count} {currency}"

    of_columns = register_async(spark, "total", total, returns="string", timeout=TIMEOUT_S)

    found = spark.sql(
        "SELECT id, total(id, id + 1, 'EUR') AS total FROM range(0, 4, 1, 1) WHERE total(1, 2, '') = '2 '"
    )

    assert [tuple(row) for row in found.collect()] == [(i, f"{i * (i + 1)} EUR") for i in range(4)]
    assert spark.range(1).select(of_columns("id", "id", F.lit("EUR"))).collect() == [("0 EUR",)]


def test_a_wrong_number_of_columns_fails_before_a_call(spark: SparkSession) -> None:
    """With on_error="capture", each row of SQL was a failed call of its own."""

    async def total(item: int, count: int) -> int:
        return item * count

    registered = register_async(spark, "total", total, timeout=TIMEOUT_S, on_error="capture")

    for number, function in itertools.product((0, 1, 3), (registered, async_column(total))):
        with pytest.raises(TypeError, match=rf"total\(item, count\) can't be called with {number} column"):
            function(*["id"] * number)
    for columns in ("", "id, id, id"):
        with pytest.raises(Exception, match=r"total\(item, count\) can't be called") as failure:
            spark.sql(f"SELECT total({columns}) FROM range(0, 3, 1, 1)").collect()
        assert "Give one column for each parameter" in str(task_failure(failure.value))


def test_sql_refuses_named_arguments(spark: SparkSession) -> None:
    """The page and the docstring say so. Spark's own check is what keeps a name from being ignored."""
    register_async(spark, "half", half, timeout=TIMEOUT_S)

    with pytest.raises(Exception, match="NAMED_PARAMETERS_NOT_SUPPORTED"):
        spark.sql("SELECT half(number => 4)")


def test_values_keep_their_types(spark: SparkSession) -> None:
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        table = spark.sql(EVERY_TYPE).coalesce(1)
        whole = async_column(same, F.struct(*table.columns), returns=table.schema, timeout=TIMEOUT_S)

        at = async_column(same, "at", returns=table.schema["at"].dataType, timeout=TIMEOUT_S)

        rows = table.collect()
        assert [(str(row), row.at) for row in rows] == [(str(row), at) for row, at in table.select(whole, at).collect()]


class InPairs(AsyncFunction[Any, float]):
    """Takes the rows of a batch; a key without a result gets none."""

    async def async_invoke_batch(self, values: list[Any]) -> list[list[float] | Exception]:
        return [[item * 1.5 + shift] if item != 2 else [] for item, shift in values]


class Never(AsyncFunction[int, str]):
    async def async_invoke(self, value: int) -> str:
        await asyncio.Event().wait()
        return ""

    def timeout(self, value: int) -> str:
        return f"late {value}"


class Once(AsyncFunction[int, str]):
    def open(self) -> None:
        self.seen: set[int] = set()

    def close(self) -> None: ...

    async def async_invoke(self, value: int) -> str:
        is_new = value not in self.seen
        self.seen.add(value)
        return "pending" if is_new else "done"


async def add(left: int, right: int) -> int:
    return left + right


async def offer(item: int) -> Offer:
    return Offer(item * 1.5, None)


OFFERS = "struct<price:double,stock:bigint> {0.0, null} / {1.5, null} / {3.0, null} / {4.5, null}"


def tags(item: int) -> list[str]:
    return [str(item)] * item


async def describe(row: Row) -> str:
    return f"{row.id} {row.name}"


def untyped(number, other=0):  # type: ignore[no-untyped-def]
    return number / 2 + other


def timed(function: Any, *columns: Any, **options: Any) -> Any:
    return async_column(function, *columns, timeout=TIMEOUT_S, **options)


def test_each_kind_of_column_has_its_type_and_its_values(spark: SparkSession) -> None:
    number, halves = F.col("id"), "double 0.0 / 0.5 / 1.0 / 1.5"
    item = F.struct(number.alias("item")).getField("item")
    retry = RetryStrategy.fixed_delay(2, 1, retry_on_result=lambda results: results == ["pending"])
    limit = RateLimit(1000, scope="task")
    columns: dict[str, tuple[Any, str]] = {
        "as udf": (async_column(half, "double")("id"), halves),
        "a type": (async_column(half, T.DoubleType())(number), halves),
        "a class": (timed(half, float)("id"), halves),
        "its own type": (async_column(half)("id"), halves),
        "by name": (timed(half, returns="double")("id"), halves),
        "with a timeout": (timed(untyped, "double")("id"), halves),
        "several": (async_column(untyped, "double")("id", F.lit(0.0)), halves),
        "a key": (async_column(untyped, "double", dedupe_by="id")("id", F.lit(0.0)), halves),
        "a column": (timed(half, "id"), halves),
        "a column with the name of a type": (timed(half, "date"), halves),
        "of a column and a literal": (timed(add, timed(add, item, F.lit(10)), "id"), "bigint 10 / 12 / 14 / 16"),
        "of a null": (timed(half, F.when(number > 0, number)), "double None / 0.5 / 1.0 / 1.5"),
        "batches": (timed(InPairs(), "id", F.lit(1), max_batch_size=2), "double 1.0 / 2.5 / None / 5.5"),
        "of a row": (timed(describe, F.struct("id", F.lit("x").alias("name"))), "string 0 x / 1 x / 2 x / 3 x"),
        "a class as a struct": (timed(offer, "id"), OFFERS),
        "a plain function's list": (timed(tags, "id", pool_size=2), "array<string> [] / [1] / [2, 2] / [3, 3, 3]"),
        "a late call": (async_column(Never(), "id", timeout=0.1), "string late 0 / late 1 / late 2 / late 3"),
        "another call": (timed(Once(), "id", retry=retry, rate_limit=limit), "string done / done / done / done"),
    }
    numbers = spark.range(0, 4, 1, 1).withColumn("date", number)
    tables = {kind: numbers.select(column.alias("value")) for kind, (column, _) in columns.items()}

    found = collected({kind: table.select(F.col("value").cast("string")) for kind, table in tables.items()})

    for kind, (_, expected) in columns.items():
        [(_, data_type)] = tables[kind].dtypes
        assert f"{data_type} {' / '.join(str(row.value) for row in found[kind])}" == expected, kind


def test_tasks_and_queries_of_a_worker_share_what_the_function_opened(spark: SparkSession, tmp_path: Path) -> None:
    class Connection(AsyncFunction[int, int]):
        def open(self) -> None:
            with (tmp_path / "opened").open("a") as log:
                log.write(f"{os.getpid()}\n")

        def close(self) -> None: ...

        async def async_invoke(self, value: int) -> int:
            return value

    column = async_column(Connection(), "id", timeout=TIMEOUT_S)
    for _ in range(2):
        assert spark.range(0, 4, 1, 4).select(column.alias("id")).count() == 4
        spark.range(0, 4, 1, 4).select(column).collect()

    workers = (tmp_path / "opened").read_text().splitlines()
    assert 1 <= len(workers) <= 4  # of local[2], and as many of earlier tests; eight tasks ran
    assert len(workers) == len(set(workers))  # each opened it once


# ------------------------------------------------------------------------------------------------------------ the calls


def test_only_the_rows_that_are_looked_at_are_called_for(spark: SparkSession, service: CountingService) -> None:
    priced = spark.range(0, 5_000, 1, 2).withColumn(
        "price", async_column(service.price(), "id", returns="double", timeout=TIMEOUT_S)
    )

    assert len(priced.take(5)) == 5
    assert len(priced.limit(10).collect()) == 10
    assert priced.count() == 5_000

    assert len(service.keys) == 15


def test_a_limit_above_a_filter_on_the_column_costs_a_task_s_capacity_at_most(
    spark: SparkSession, service: CountingService
) -> None:
    price = async_column(service.price(), "id", returns="double", timeout=TIMEOUT_S, capacity=50)

    found = spark.range(0, 5_000, 1, 2).withColumn("price", price).where("price >= 0").take(5)

    assert [row.price for row in found] == [i * 1.5 for i in range(5)]
    assert 5 <= len(service.keys) <= 5 + 2 * 50


def test_a_filter_on_the_column_does_not_call_twice(spark: SparkSession, service: CountingService) -> None:
    price = async_column(service.price(), "id", returns="double", timeout=TIMEOUT_S)

    dear = spark.range(0, 40, 1, 2).withColumn("price", price).where("price > 30").select("price", "id")

    assert dear.count() == 19
    assert len(service.keys) == 40


@pytest.mark.parametrize(("deterministic", "calls"), [(False, 2000), (True, 100)])
def test_a_deterministic_column_is_called_for_after_a_filter_on_its_input(
    spark: SparkSession, service: CountingService, deterministic: bool, calls: int
) -> None:
    price = async_column(service.price(), "double", deterministic=deterministic)("id")

    found = spark.range(0, 2000, 1, 1).withColumn("price", price).where("id < 100").collect()

    assert [row.price for row in found] == [number * 1.5 for number in range(100)]
    assert len(service.keys) == calls


def test_rows_of_a_key_share_a_call(spark: SparkSession, service: CountingService) -> None:
    price = async_column(
        service.price(), (F.col("id") % 4).alias("key"), dedupe_by="item", remember=100, returns="double", timeout=60
    )

    assert [row[0] for row in spark.range(0, 40, 1, 1).select(price).collect()] == [i % 4 * 1.5 for i in range(40)]
    assert sorted(service.keys) == ["0", "1", "2", "3"]


def test_rows_with_a_null_are_not_called_for_if_asked(spark: SparkSession, service: CountingService) -> None:
    wanted = F.when(F.col("id") % 3 == 1, F.col("id"))
    price = async_column(service.price(), wanted, returns="double", timeout=TIMEOUT_S, skip_nulls=True)

    found = spark.range(0, 40, 1, 1).withColumn("price", price).collect()

    assert [row.price for row in found] == [i * 1.5 if i % 3 == 1 else None for i in range(40)]
    assert len(service.keys) == 13


def test_a_stream_s_rows_are_called_for_once(spark: SparkSession, service: CountingService, tmp_path: Path) -> None:
    for number in range(3):
        json_lines(tmp_path / "in" / f"{number}.json", ({"id": number * 10 + i} for i in range(10)))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    price = async_column(service.price(), "id", returns="double", timeout=TIMEOUT_S)

    writer = stream.withColumn("price", price).writeStream.format("memory").queryName("priced")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(60)
    query.stop()

    found = spark.table("priced").orderBy("id").collect()
    assert [tuple(row) for row in found] == [(i, i * 1.5) for i in range(30)]
    assert len(service.keys) == 30


# --------------------------------------------------------------------------------------------------------------- errors


async def odd(number: int) -> int:
    if number == 2:
        raise ValueError("two is even")
    return number


def test_a_failed_call_fails_the_task_and_names_the_arguments(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="two is even") as failed:
        spark.range(0, 4, 1, 1).select(async_column(odd, "id", timeout=TIMEOUT_S)).collect()

    failure = task_failure(failed.value) or ""
    assert failure.startswith("async_column(odd): the row (2,) of partition 0 has failed: ValueError: two is even\n")


async def odd_or_text(number: int) -> int:
    return "three" if number == 3 else await odd(number)  # type: ignore[return-value]


def test_captured_errors_and_values_that_do_not_fit_stand_beside_the_results(spark: SparkSession) -> None:
    column = async_column(odd_or_text, "id", timeout=TIMEOUT_S, on_error="capture").alias("odd")

    found = spark.range(0, 4, 1, 1).select("id", column)

    error = "struct<error_class:string,message:string,attempts:int,time_spent_ms:double>"
    assert found.dtypes == [("id", "bigint"), ("odd", f"struct<result:bigint,error:{error}>")]
    rows = found.collect()
    assert [(row.id, row.odd.result) for row in rows] == [(0, 0), (1, 1), (2, None), (3, None)]
    assert [row.odd.error for row in rows[:2]] == [None, None]
    assert rows[2].odd.error[:3] == ("ValueError", "two is even", 1)
    misfit = "the column result.result of the result does not fit the schema: 'three' (str) is not of type bigint"
    assert rows[3].odd.error.message == misfit


def test_a_limit_of_the_job_is_divided_by_the_cores(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        async_column(half, "id", timeout=1, rate_limit=RateLimit(1000))

    assert "async_column(half): rate limit 1000/s of the job: 500/s for each of 2 tasks at once" in caplog.text
