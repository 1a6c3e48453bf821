"""Async I/O over Spark Connect, served by the test run's own Spark. See also the tests with `either`."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Observation, Row

from pipeline.spark import async_column, call_metrics, ordered_wait, register_async, unordered_wait
from pipeline.streaming import AsyncFunction

TIMEOUT_S = 180.0

pytestmark = pytest.mark.usefixtures("connect_mode")


class Half(AsyncFunction[Row, dict[str, Any]]):
    def open(self) -> None:
        self.divisor = 2

    def close(self) -> None: ...

    async def async_invoke(self, row: Row) -> list[dict[str, Any]]:
        if row.id == 7:
            raise ValueError("seven is odd")
        return [{"id": row.id, "half": row.id / self.divisor}]


def test_results_captured_errors_and_counts_come_over_connect(connect: Any) -> None:
    calls = Observation("calls")
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "on_error": "capture", "metrics": calls}

    found = ordered_wait(connect.range(0, 10, 1, 2), Half(), "id long, half double", **options).collect()

    metrics = call_metrics(calls)
    assert [row.half for row in found] == [None if i == 7 else i / 2 for i in range(10)]
    assert (found[7].error.input.id, found[7].error.message) == (7, "seven is odd")
    assert (metrics.calls, metrics.completed, metrics.captured, metrics.call_time.count) == (10, 9, 1, 10)


def test_nested_types_come_over_connect(connect: Any) -> None:
    async def same(row: Row) -> Row:
        return row

    nested = "named_struct('tags', array('a', null), 'sizes', map('x', 1)) AS nested"
    table = connect.sql(f"SELECT id, {nested} FROM range(3)")

    assert sorted(unordered_wait(table, same, table.schema, timeout=TIMEOUT_S).collect()) == sorted(table.collect())


def test_columns_and_functions_of_sql_come_over_connect(connect: Any) -> None:
    async def half(number: int) -> float:
        return number / 2

    registered = register_async(connect, "half", half, timeout=TIMEOUT_S)
    column = async_column(half, "id", timeout=TIMEOUT_S)
    three = connect.range(0, 3, 1, 1)

    assert three.select("id", column, registered("id")).collect() == [(i, i / 2, i / 2) for i in range(3)]
    assert connect.sql("SELECT half(id) FROM range(0, 3, 1, 1)").collect() == [(0.0,), (0.5,), (1.0,)]
