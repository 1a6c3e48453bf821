"""What no task could do is refused when the query is built, by a DataFrame's operator and by a column."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.util import PythonEvalType

import pipeline.spark
import pipeline.streaming
from dispatcher import DispatcherError
from pipeline.spark import async_column, ordered_wait
from pipeline.streaming import AsyncFunction

from ....kit.spark import setting

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


def test_a_deadline_that_leaves_the_timeout_without_effect_is_told(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    of_table(spark, square, SQUARES, timeout=10, deadline=10)
    assert not caplog.records

    of_table(spark, square, SQUARES, timeout=10, deadline=2.5)

    assert caplog.messages == ["deadline is 2.5 s, less than timeout, 10 s, which has no effect then"]


def locked() -> Any:
    lock = threading.Lock()

    async def locked(number: Any) -> int:
        with lock:
            raise NotImplementedError

    return locked


async def roots(number):  # type: ignore[no-untyped-def]
    yield number


class Plain(AsyncFunction[Any, int]):
    def async_invoke(self, number: Any) -> int:  # type: ignore[override]
        raise NotImplementedError


MONTHS = T.StructType().add("months", T.YearMonthIntervalType())

# The function and its schema, the options, and how the error reads.
BY_BOTH: list[tuple[Any, Any, dict[str, Any], str]] = [
    (square, None, {"timeout": 0}, "ValueError: .*timeout is 0"),
    (square, None, {"deadline": 0}, "ValueError: .*deadline is 0"),
    (square, None, {"capacity": 0}, "ValueError: .*capacity is 0"),
    (square, None, {"on_error": "ignore"}, "ValueError: .*on_error is 'ignore'"),
    (square, None, {"concurrency": 0}, "ValueError: .*concurrency is 0"),
    (square, None, {"pool_size": 0}, "ValueError: .*pool_size is 0"),
    (square, None, {"idle_timeout": -1}, "ValueError: .*idle_timeout is -1"),
    (square, None, {"extra": "drop"}, r"ValueError: .*extra is 'drop'; choose \"refuse\" or \"ignore\""),
    (square, None, {"dedupe_by": "key"}, "ValueError: .* names key; the (columns are id|arguments are number, id)"),
    (locked(), None, {}, r"TypeError: .*locked\): the function, or what .* cannot pickle '_thread.lock' object"),
    ("square", SQUARES, {}, "TypeError: .*'square' is not callable"),
    (untyped, None, {}, "ResultTypeError: .*untyped: .* declares no return type; annotate it, or give the schema"),
    # The job failed in the middle: async_generator is not of type bigint.
    (roots, SQUARES, {}, "TypeError: .*roots (is a generator, but its return type|yields any number of results)"),
    # The job failed in the middle: object dict can't be used in 'await' expression.
    (Plain(), SQUARES, {}, r"TypeError: .*Plain\.async_invoke is a plain method, so its calls would block"),
    (square, MONTHS, {}, "UnsupportedTypeError: .*(of the results: the column months|square.: the column result)"),
    # The JVM failed on the first batch, with a message about Arrow's buffers.
    (square, "a int, a int", {}, r"ValueError: .*2 columns (result\.)?a; rename them"),
    (square, "s array<struct<a: int, a: int>>", {}, r"ValueError: .*2 columns (result\.)?s\.a; rename them"),
]
CAPTURES = {"on_error": "capture"}
BY_TABLE: list[tuple[Any, Any, dict[str, Any], str]] = [
    (square, SQUARES, CAPTURES | {"error_column": "square"}, "ValueError: .*has a column square; rename it"),
    (square, SQUARES, CAPTURES | {"error_column": "Square"}, "ValueError: .*has a column square; rename it"),
    (square, SQUARES, {"dead_letter": print}, "TypeError: .*unexpected keyword argument 'dead_letter'"),
    (square, SQUARES, {"metrics": "m"}, "ValueError: .*the name 'm', as for a stream; for a batch query give an"),
]
BY_COLUMN: list[tuple[Any, Any, dict[str, Any], str]] = [
    (square, SQUARES, {"on_error": "drop"}, 'ValueError: .*on_error is "drop", but a column'),
    (square, SQUARES, {"metrics": "m"}, "TypeError: .*unexpected keyword argument 'metrics'"),
    (square, SQUARES, {"skip_nulls": 1}, "TypeError: .*skip_nulls is 1"),
    (square, SQUARES, {"deterministic": "yes"}, "TypeError: .*deterministic is 'yes'; give True or False"),
    (square, SQUARES, {"dedupe_by": 1}, "TypeError: .*dedupe_by is 1; name arguments"),
    (square, 5, {}, "TypeError: .*returns is 5; give a type of Spark"),
]


@pytest.mark.parametrize(
    ("door", "function", "schema", "options", "error"),
    [
        *((of_table, *case) for case in BY_BOTH + BY_TABLE),
        *(pytest.param(of_column, *case, marks=needs_columns) for case in BY_BOTH + BY_COLUMN),
    ],
)
def test_what_no_task_could_do(
    spark: SparkSession, door: Door, function: Any, schema: Any, options: dict[str, Any], error: str
) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        door(spark, function, schema, **options)

    kind, _, message = error.partition(": ")
    assert kind in [each.__name__ for each in refused.type.__mro__]
    assert re.match(message, str(refused.value), re.DOTALL)


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


def test_an_input_without_a_counterpart_in_python_or_without_columns(spark: SparkSession) -> None:
    for month, kind in (
        ("INTERVAL '1' MONTH", "interval month"),
        ("array(INTERVAL '1' MONTH)", "array<interval month>"),
    ):
        with pytest.raises(TypeError, match=f"the DataFrame: the column months has the type {kind}"):
            ordered_wait(spark.sql(f"SELECT {month} AS months"), square, timeout=1.0)
    with pytest.raises(ValueError, match="the DataFrame has no columns"):
        ordered_wait(spark.range(1).select(), square, timeout=1.0)


def test_two_columns_of_one_name_in_a_captured_row(spark: SparkSession) -> None:
    twice = spark.range(1).selectExpr("id", "id AS id")

    with pytest.raises(ValueError, match=r"2 columns error\.input\.id; rename them"):
        ordered_wait(twice, square, timeout=1.0, on_error="capture")


@pytest.mark.parametrize("door", [of_table, pytest.param(of_column, marks=needs_columns)])
def test_a_time_zone_that_python_does_not_know(spark: SparkSession, door: Door) -> None:
    with (
        setting(spark, "spark.sql.session.timeZone", "PST"),
        pytest.raises(ValueError, match=r"time zone is 'PST', .* such as America/Los_Angeles"),
    ):
        door(spark)


@needs_columns
def test_a_column_of_no_type(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"async_column\(square\): 'id' is no type of Spark\. If it is a col"):
        async_column(square, "id")
    with pytest.raises(TypeError, match=r"async_column\(square\) has no timeout; give seconds"):
        async_column(square, "id", "id")  # type: ignore[call-overload]


@needs_columns
def test_a_column_with_an_old_pyspark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(PythonEvalType, "SQL_SCALAR_ARROW_ITER_UDF")

    with pytest.raises(DispatcherError, match=r"async_column\(square\) needs PySpark 4.1 or newer"):
        of_column(spark)
