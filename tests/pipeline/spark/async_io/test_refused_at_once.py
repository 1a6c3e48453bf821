"""What no task could do is refused when the query is built, by a DataFrame's operator and by a column."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.util import PythonEvalType

import pipeline.spark
import pipeline.streaming
from pipeline.spark import async_column, ordered_wait
from pipeline.spark.errors import AsyncIOError, ResultTypeError, UnsupportedTypeError
from pipeline.streaming import AsyncFunction
from pipeline.streaming.options import times_in_ms

Door = Callable[..., Any]

SQUARES = "id long, square long"
HAS_COLUMNS = hasattr(PythonEvalType, "SQL_SCALAR_ARROW_ITER_UDF")


async def square(number: Any) -> int:
    raise NotImplementedError


def untyped(number):  # type: ignore[no-untyped-def]
    raise NotImplementedError


def of_table(spark: SparkSession, function: Any = square, schema: Any = None, /, **options: Any) -> object:
    return ordered_wait(spark.range(1), function, schema, **{"timeout": 1.0, **options})


def of_column(spark: SparkSession, function: Any = square, returns: Any = None, /, **options: Any) -> object:
    return async_column(function, "id", returns=returns, **{"timeout": 1.0, **options})


needs_columns = pytest.mark.skipif(not HAS_COLUMNS, reason="a column needs PySpark 4.1")
BOTH = pytest.mark.parametrize("door", [of_table, pytest.param(of_column, marks=needs_columns)])


def test_a_name_for_the_metrics_of_a_batch_query(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="metrics is the name 'm', as for a stream; for a batch query give an"):
        of_table(spark, metrics="m")


def test_a_deadline_that_leaves_the_timeout_without_effect_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert times_in_ms(10, 10) == {"timeout_ms": 10_000, "deadline_ms": 10_000}
    assert not caplog.records

    times_in_ms(10, 2.5)

    assert caplog.messages == ["deadline is 2.5 s, less than timeout, 10 s, which has no effect then"]


@BOTH
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"deadline": 0}, "deadline is 0"),
        ({"capacity": 0}, "capacity is 0"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"pool_size": 0}, "pool_size is 0"),
        ({"idle_timeout": -1}, "idle_timeout is -1"),
        ({"extra": "drop"}, r"extra is 'drop'; choose \"refuse\" or \"ignore\""),
        ({"dedupe_by": "key"}, r"dedupe_by names key; the (columns are id|arguments are number, id)"),
    ],
)
def test_an_impossible_option(spark: SparkSession, door: Door, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        door(spark, **options)


@pytest.mark.parametrize("name", ["ordered_wait", "unordered_wait"])
def test_a_function_of_the_other_package_says_which_was_called(spark: SparkSession, name: str) -> None:
    """`from pipeline.streaming import *` after the import of pipeline.spark made the error a riddle."""
    of_rows, of_values = getattr(pipeline.spark, name), getattr(pipeline.streaming, name)

    for call in (
        lambda: of_values(spark.range(1), square, SQUARES, timeout=10),
        lambda: of_values(df=spark.range(1), function=square, timeout=10, keep_input=True),
    ):
        with pytest.raises(TypeError, match=rf"pipeline.streaming.{name} takes .* call pipeline.spark.{name}"):
            call()
    with pytest.raises(TypeError, match=rf"pipeline.spark.{name} takes .* a list; .* call pipeline.streaming.{name}"):
        of_rows([1, 2], square, timeout=10)
    with pytest.raises(TypeError, match=rf"pipeline.spark.{name} takes a DataFrame"):
        of_rows(values=[1, 2], function=square, timeout=10, dead_letter=print)


@pytest.mark.parametrize(
    ("door", "options", "kind", "message"),
    [
        (of_table, {"on_error": "capture", "error_column": "square"}, ValueError, "has a column square; rename it"),
        (of_table, {"on_error": "capture", "error_column": "Square"}, ValueError, "has a column square; rename it"),
        (of_column, {"on_error": "drop"}, ValueError, 'on_error is "drop", but a column'),
        (of_column, {"metrics": "m"}, TypeError, "unexpected keyword argument 'metrics'"),
        (of_column, {"skip_nulls": 1}, TypeError, "skip_nulls is 1"),
        (of_column, {"deterministic": "yes"}, TypeError, "deterministic is 'yes'; give True or False"),
        (of_column, {"dedupe_by": 1}, TypeError, "dedupe_by is 1; name arguments"),
    ],
)
def test_an_option_of_one_of_them(
    spark: SparkSession, door: Door, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    if door is of_column and not HAS_COLUMNS:
        pytest.skip("a column needs PySpark 4.1")
    with pytest.raises(kind, match=message):
        door(spark, square, SQUARES, **options)


@BOTH
def test_a_function_that_does_not_pickle(spark: SparkSession, door: Door) -> None:
    lock = threading.Lock()

    async def locked(number: Any) -> int:
        with lock:
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"locked\): the function, or what .* cannot pickle '_thread.lock' object"):
        door(spark, locked)


@BOTH
def test_what_is_not_a_function_or_has_no_return_type(spark: SparkSession, door: Door) -> None:
    with pytest.raises(TypeError, match="'square' is not callable"):
        door(spark, "square", SQUARES)
    with pytest.raises(ResultTypeError, match=r"untyped: .* declares no return type; annotate it, or give the schema"):
        door(spark, untyped)


@BOTH
def test_a_generator_that_does_not_declare_it(spark: SparkSession, door: Door) -> None:
    """The job failed in the middle: async_generator is not of type bigint."""

    async def roots(number):  # type: ignore[no-untyped-def]
        yield number

    with pytest.raises(TypeError, match=r"roots (is a generator, but its return type|yields any number of results)"):
        door(spark, roots, SQUARES)


@BOTH
def test_a_plain_method_of_an_async_function(spark: SparkSession, door: Door) -> None:
    """The job failed in the middle: object dict can't be used in 'await' expression."""

    class Square(AsyncFunction[Any, int]):
        def async_invoke(self, number: Any) -> int:  # type: ignore[override]
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"Square\.async_invoke is a plain method, so its calls would block"):
        door(spark, Square(), SQUARES)


@needs_columns
def test_a_column_of_a_function_that_yields(spark: SparkSession) -> None:
    def roots(number: int) -> Iterator[float]:
        yield number**0.5

    class Roots(AsyncFunction[int, float]):
        async def async_invoke(self, number: int) -> AsyncIterator[float]:  # type: ignore[override]
            yield number**0.5

    for function in (roots, Roots()):
        with pytest.raises(TypeError, match=r"oots yields any number of results, and a column has one value"):
            of_column(spark, function)


@BOTH
def test_a_type_without_a_counterpart_in_python(spark: SparkSession, door: Door) -> None:
    months = T.StructType().add("months", T.YearMonthIntervalType())

    what = r"(the schema of the results: the column months|the values of async_column\(square\): the column result)"
    with pytest.raises(UnsupportedTypeError, match=what):
        door(spark, square, months)


def test_an_input_without_a_counterpart_in_python(spark: SparkSession) -> None:
    months = spark.sql("SELECT INTERVAL '1' MONTH AS months")

    with pytest.raises(TypeError, match="the DataFrame: the column months has the type interval month"):
        ordered_wait(months, square, timeout=1.0)


@BOTH
@pytest.mark.parametrize(
    ("schema", "path"), [("a int, a int", "a"), ("s array<struct<a: int, a: int>>", r"s\.a")], ids=["row", "nested"]
)
def test_two_columns_of_one_name(spark: SparkSession, door: Door, schema: str, path: str) -> None:
    """The JVM failed on the first batch, with a message about Arrow's buffers."""
    with pytest.raises(ValueError, match=rf"2 columns (result\.)?{path}; rename them"):
        door(spark, square, schema)


def test_two_columns_of_one_name_in_a_captured_row(spark: SparkSession) -> None:
    twice = spark.range(1).selectExpr("id", "id AS id")

    with pytest.raises(ValueError, match=r"2 columns error\.input\.id; rename them"):
        ordered_wait(twice, square, timeout=1.0, on_error="capture")


@pytest.fixture
def unknown_zone(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "PST")
    yield
    spark.conf.set("spark.sql.session.timeZone", before or "")


@BOTH
def test_a_time_zone_that_python_does_not_know(spark: SparkSession, door: Door, unknown_zone: None) -> None:
    with pytest.raises(ValueError, match=r"time zone is 'PST', .* such as America/Los_Angeles"):
        door(spark)


@needs_columns
def test_a_column_of_no_type(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"async_column\(square\): 'id' is no type of Spark\. If it is a col"):
        async_column(square, "id")
    with pytest.raises(TypeError, match=r"async_column\(square\) has no timeout; give seconds"):
        async_column(square, "id", "id")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="returns is 5; give a type of Spark"):
        of_column(spark, square, 5)


@needs_columns
def test_a_column_with_an_old_pyspark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(PythonEvalType, "SQL_SCALAR_ARROW_ITER_UDF")

    with pytest.raises(AsyncIOError, match=r"async_column\(square\) needs PySpark 4.1 or newer"):
        of_column(spark)
