from __future__ import annotations

import asyncio
import itertools
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
from .counting_service import CountingService

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


async def same(value: Any) -> Any:
    return value


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


_TYPES = """
    SELECT true AS flag, bigint(9007199254740993 + id) AS big, decimal(12.50) AS money, CAST('abc' AS binary) AS bytes,
      DATE'2026-02-28' AS day, TIMESTAMP'2026-07-01 12:00:00.000001' AS at, INTERVAL '1' DAY AS span,
      array(1, null, int(id)) AS list, array(map(1, named_struct('at', DATE'2026-01-01'))) AS deep,
      if(id = 1, null, named_struct('x', id)) AS maybe, parse_json('{"a": [1, 2]}') AS variant
    FROM range(3)
"""


def test_values_keep_their_types(spark: SparkSession) -> None:
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        table = spark.sql(_TYPES).coalesce(1)
        whole = async_column(same, F.struct(*table.columns), returns=table.schema, timeout=TIMEOUT_S)
        at = async_column(same, "at", returns=table.schema["at"].dataType, timeout=TIMEOUT_S)

        rows = table.collect()
        assert [str(row) for row in rows] == [str(row) for (row,) in table.select(whole).collect()]
        assert [row.at for row in rows] == [at for (at,) in table.select(at).collect()]


def test_types_come_from_the_function_and_a_list_of_a_plain_function_is_an_array(spark: SparkSession) -> None:
    async def offer(item: int) -> Offer:
        return Offer(item * 1.5, None)

    def tags(item: int) -> list[str]:
        return [str(item)] * item

    found = spark.range(0, 3, 1, 1).select(
        async_column(offer, "id", timeout=TIMEOUT_S).alias("offer"),
        async_column(tags, "id", timeout=TIMEOUT_S, pool_size=2).alias("tags"),
    )

    assert found.dtypes == [("offer", "struct<price:double,stock:bigint>"), ("tags", "array<string>")]
    assert [(row.offer.price, row.offer.stock, row.tags) for row in found.collect()] == [
        (0.0, None, []),
        (1.5, None, ["1"]),
        (3.0, None, ["2", "2"]),
    ]


def test_nested_columns_literals_and_columns_of_columns(spark: SparkSession) -> None:
    async def add(left: int, right: int) -> int:
        return left + right

    table = spark.range(0, 3, 1, 1).select(F.struct(F.col("id").alias("item")).alias("order"))
    inner = async_column(add, "order.item", F.lit(10), returns="long", timeout=TIMEOUT_S)
    outer = async_column(add, inner, "order.item", returns="long", timeout=TIMEOUT_S)

    assert [row[0] for row in table.select(outer).collect()] == [10, 12, 14]


class Connected(AsyncFunction[Any, float]):
    """Takes the rows of a batch; a key without a result gets none."""

    async def async_invoke_batch(self, values: list[Any]) -> list[list[float] | Exception]:
        return [[item * 1.5 + shift] if item != 2 else [] for item, shift in values]


def test_a_batch_function_gets_tuples_and_no_result_is_a_null(spark: SparkSession) -> None:
    price = async_column(Connected(), "id", F.lit(1), returns="double", timeout=TIMEOUT_S, max_batch_size=2)

    assert [row[0] for row in spark.range(0, 4, 1, 1).select(price).collect()] == [1.0, 2.5, None, 5.5]


def test_tasks_and_queries_of_a_worker_share_what_the_function_opened(spark: SparkSession, tmp_path: Path) -> None:
    class Connection(AsyncFunction[int, int]):
        def open(self) -> None:
            with (tmp_path / "opened").open("a") as log:
                log.write("opened\n")

        def close(self) -> None: ...

        async def async_invoke(self, value: int) -> int:
            return value

    column = async_column(Connection(), "id", timeout=TIMEOUT_S)
    for _ in range(2):
        assert spark.range(0, 4, 1, 4).select(column.alias("id")).count() == 4
        spark.range(0, 4, 1, 4).select(column).collect()

    workers = (tmp_path / "opened").read_text().count("opened")
    assert 1 <= workers <= 2  # of local[2]; eight tasks ran


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


def untyped(number, other=0):  # type: ignore[no-untyped-def]
    return number / 2 + other


def test_a_function_of_columns_takes_them_as_that_of_udf_does(spark: SparkSession) -> None:
    table = spark.range(0, 2, 1, 1)
    forms = {
        "as udf": async_column(half, "double")("id"),
        "a type": async_column(half, T.DoubleType())(F.col("id")),
        "a class": async_column(half, float, timeout=TIMEOUT_S)("id"),
        "its own type": async_column(half)("id"),
        "by name": async_column(half, returns="double", timeout=TIMEOUT_S)("id"),
        "with a timeout": async_column(untyped, "double", timeout=TIMEOUT_S)("id"),  # type: ignore[operator]
        "several": async_column(untyped, "double")("id", F.lit(0.0)),
        "a key": async_column(untyped, "double", dedupe_by="id")("id", F.lit(0.0)),
        "a column": async_column(half, "id", timeout=TIMEOUT_S),
    }

    for form, column in forms.items():  # one query for all would start a worker for each
        found = table.select(column.alias("half"))
        assert (found.dtypes, found.collect()) == ([("half", "double")], [(0.0,), (0.5,)]), form


def test_a_text_with_a_timeout_is_a_column_if_the_function_has_a_type(spark: SparkSession) -> None:
    dates = spark.range(0, 1, 1, 1).select(F.col("id").alias("date"))

    assert dates.select(async_column(half, "date", timeout=TIMEOUT_S)).collect() == [(0.0,)]


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


def test_a_null_is_none_by_default(spark: SparkSession) -> None:
    halves = async_column(half, F.when(F.col("id") > 0, F.col("id")), timeout=TIMEOUT_S)

    assert [row[0] for row in spark.range(0, 3, 1, 1).select(halves).collect()] == [None, 0.5, 1.0]


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


def test_captured_errors_stand_beside_the_results(spark: SparkSession) -> None:
    column = async_column(odd, "id", timeout=TIMEOUT_S, on_error="capture").alias("odd")

    found = spark.range(0, 4, 1, 1).select("id", column)

    error = "struct<error_class:string,message:string,attempts:int,time_spent_ms:double>"
    assert found.dtypes == [("id", "bigint"), ("odd", f"struct<result:bigint,error:{error}>")]
    rows = found.collect()
    assert [row.odd.result for row in rows] == [0, 1, None, 3]
    assert [row.id for row in rows if row.odd.error is not None] == [2]
    assert rows[2].odd.error[:3] == ("ValueError", "two is even", 1)


def test_a_value_that_does_not_fit_fails_its_row_only(spark: SparkSession) -> None:
    column = async_column(same, F.col("id"), returns="string", timeout=TIMEOUT_S, on_error="capture").alias("text")

    found = spark.range(0, 1, 1, 1).select(column).select("text.error.message").collect()

    assert found[0].message == "the column result.result of the result does not fit the schema: 0 (int) is not a string"


def test_a_late_call_may_have_a_value_of_its_own(spark: SparkSession) -> None:
    class Never(AsyncFunction[int, str]):
        async def async_invoke(self, value: int) -> str:
            await asyncio.Event().wait()
            return ""

        def timeout(self, value: int) -> str:
            return f"{value} is late"

    assert [row[0] for row in spark.range(0, 1, 1, 1).select(async_column(Never(), "id", timeout=0.1)).collect()] == [
        "0 is late"
    ]


def test_results_can_ask_for_another_call(spark: SparkSession) -> None:
    class Once(AsyncFunction[int, str]):
        def open(self) -> None:
            self.seen: set[int] = set()

        def close(self) -> None: ...

        async def async_invoke(self, value: int) -> str:
            is_new = value not in self.seen
            self.seen.add(value)
            return "pending" if is_new else "done"

    retry = RetryStrategy.fixed_delay(2, 1, retry_on_result=lambda results: results == ["pending"])
    column = async_column(Once(), "id", timeout=TIMEOUT_S, retry=retry, rate_limit=RateLimit(1000, scope="task"))

    assert [row[0] for row in spark.range(0, 3, 1, 1).select(column).collect()] == ["done"] * 3


def test_a_limit_of_the_job_is_divided_by_the_cores(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        async_column(half, "id", timeout=1, rate_limit=RateLimit(1000))

    assert "async_column(half): rate limit 1000/s of the job: 500/s for each of 2 tasks at once" in caplog.text


def test_a_row_s_function_takes_a_struct(spark: SparkSession) -> None:
    async def describe(row: Row) -> str:
        return f"{row.id} {row.name}"

    column = async_column(describe, F.struct("id", F.lit("x").alias("name")), timeout=TIMEOUT_S)

    assert [row[0] for row in spark.range(0, 2, 1, 1).select(column).collect()] == ["0 x", "1 x"]
