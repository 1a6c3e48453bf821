"""Functions that yield rows, on Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, TypedDict

from pyspark.sql import Row, SparkSession

from pipeline.lookup import FunctionTable
from pipeline.spark import lookup_join, ordered_wait, unordered_wait
from pipeline.streaming import AsyncFunction

from . import jobs
from .jobs import collected

SHIPPED = (jobs,)
TIMEOUT_S = 180.0


class Part(TypedDict):
    part: int


Parts = Iterator[Part]


def parts(row: Row) -> Parts:
    """Its return type is not known in the workers, which cannot import the tests."""
    for part in range(row.id):
        yield {"part": part}


async def parts_async(row: Row) -> AsyncIterator[Part]:
    for part in range(row.id):
        yield {"part": part}


class PartsOfMany(AsyncFunction[Row, Part]):
    async def async_invoke_batch(self, rows: list[Row]) -> AsyncIterator[list[Part]]:
        for row in rows:
            yield [{"part": part} for part in range(row.id)]


def test_each_yield_is_a_row(spark: SparkSession) -> None:
    numbers = spark.range(0, 5, 1, 1)
    functions = {"threads": parts, "loop": parts_async, "batch": PartsOfMany()}
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "keep_input": True}
    tables = {kind: ordered_wait(numbers, function, **options) for kind, function in functions.items()}
    typed = {f"{kind}, typed": unordered_wait(numbers, functions[kind], "part long", **options) for kind in functions}

    found = collected(tables | typed)

    wanted = [(number, part) for number in range(5) for part in range(number)]
    for kind, rows in found.items():
        given = [(row.id, row.part) for row in rows]
        assert (sorted(given) if kind in typed else given) == wanted, kind
    assert tables["threads"].dtypes == [("id", "bigint"), ("part", "bigint")]


def test_a_captured_call_has_no_row_of_those_that_it_had_yielded(spark: SparkSession) -> None:
    def broken(row: Row) -> Iterator[int]:
        yield 1
        yield 2 if row.id else "no number"  # type: ignore[misc]
        if row.id == 1:
            raise OSError("gone")

    found = ordered_wait(spark.range(0, 3, 1, 1), broken, timeout=TIMEOUT_S, on_error="capture").collect()

    errors = [(row.value, row.error and row.error.input.id) for row in found]
    assert errors == [(None, 0), (None, 1), (1, None), (2, None)]


def test_a_lookup_takes_the_rows_that_its_function_yields(spark: SparkSession) -> None:
    async def racks(number: int) -> AsyncIterator[tuple[str]]:
        for rack in range(number):
            yield (f"r{rack}",)

    table = FunctionTable(racks, key="id bigint", columns="rack string")

    found = lookup_join(spark.range(0, 3, 1, 1), table, "id", how="inner", ordered=True, timeout=TIMEOUT_S).collect()

    assert [tuple(row) for row in found] == [(1, "r0"), (2, "r0"), (2, "r1")]
