"""Async I/O over Spark Connect, served by the test run's own Spark."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import PySparkException
from pyspark.sql import Row

from pipeline.spark import (
    CallMetricsListener,
    async_column,
    call_metrics,
    ordered_wait,
    register_async,
    task_failure,
    unordered_wait,
)
from pipeline.streaming import AsyncFunction

TIMEOUT_S = 180.0


pytestmark = pytest.mark.usefixtures("connect_mode")


def halves() -> Any:
    """A local function, which pickles by value: workers cannot import the tests."""

    async def half(row: Row) -> dict[str, Any]:
        if row.id == 7:
            raise ValueError("seven is odd")
        return {"id": row.id, "half": row.id / 2}

    return half


def test_results_and_captured_errors_come_over_connect(connect: Any) -> None:
    found = ordered_wait(
        connect.range(0, 10, 1, 2), halves(), "id long, half double", timeout=TIMEOUT_S, on_error="capture"
    ).collect()

    assert [row.half for row in found] == [None if i == 7 else i / 2 for i in range(10)]
    assert found[7].error.input.id == 7
    assert found[7].error.message == "seven is odd"


def test_nested_types_come_over_connect(connect: Any) -> None:
    async def same(row: Row) -> Row:
        return row

    table = connect.sql(
        "SELECT id, named_struct('tags', array('a', null), 'sizes', map('x', 1)) AS nested FROM range(3)"
    )

    found = unordered_wait(table, same, table.schema, timeout=TIMEOUT_S)

    assert sorted(found.collect()) == sorted(table.collect())


def test_connection_hooks_run_in_the_workers(connect: Any) -> None:
    class Connected(AsyncFunction[Row, tuple[int]]):
        def open(self) -> None:
            self.offset = 100

        def close(self) -> None:
            pass

        async def async_invoke(self, row: Row) -> list[tuple[int]]:
            return [(row.id + self.offset,)]

    found = ordered_wait(connect.range(3), Connected(), "id long", timeout=TIMEOUT_S).collect()

    assert [row.id for row in found] == [100, 101, 102]


def test_observation_comes_over_connect(connect: Any) -> None:
    from pyspark.sql import Observation

    observation = Observation("calls")
    table = connect.range(0, 10, 1, 2)
    found = ordered_wait(
        table, halves(), "id long, half double", timeout=TIMEOUT_S, on_error="drop", metrics=observation
    ).collect()

    metrics = call_metrics(observation)
    assert len(found) == 9
    assert (metrics.calls, metrics.completed, metrics.dropped, metrics.call_time.count) == (10, 9, 1, 10)


def test_failure_is_short_and_found_over_connect(connect: Any) -> None:
    with pytest.raises(PySparkException) as info:
        ordered_wait(connect.range(0, 10, 1, 1), halves(), "id long, half double", timeout=TIMEOUT_S).collect()

    text = task_failure(info.value)
    assert text is not None
    assert "the row Row(id=7) of partition 0 has failed: ValueError: seven is odd" in text.splitlines()[0]
    assert "in half" in text
    assert "org.apache.spark" not in text


def test_stream_and_its_progress_come_over_connect(connect: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "rows.json").write_text("".join(json.dumps({"id": i}) + "\n" for i in range(10)))
    registry = CollectorRegistry()
    listener = CallMetricsListener(registry)
    connect.streams.addListener(listener)
    stream = connect.readStream.schema("id long").json(str(source))
    found = ordered_wait(stream, halves(), "id long, half double", timeout=TIMEOUT_S, on_error="drop", metrics="calls")

    query = found.writeStream.format("noop").trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(TIMEOUT_S))
        batches = [call_metrics(progress, "calls") for progress in query.recentProgress if progress.numInputRows]
        deadline_s = time.monotonic() + TIMEOUT_S
        while not listener.totals():
            assert time.monotonic() < deadline_s, "no progress has reached the listener"
            threading.Event().wait(0.02)
    finally:
        query.stop()
        connect.streams.removeListener(listener)

    assert [(metrics.completed, metrics.dropped) for metrics in batches] == [(9, 1)]
    assert registry.get_sample_value("async_dropped_total", {"operator": f"{query.id}/calls"}) == 1


def test_failure_of_a_stream_is_found_over_connect(connect: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "rows.json").write_text('{"id": 7}\n')
    stream = connect.readStream.schema("id long").json(str(source))
    found = ordered_wait(stream, halves(), "id long, half double", timeout=TIMEOUT_S)
    query = found.writeStream.format("noop").trigger(availableNow=True).start()

    with pytest.raises(PySparkException) as info:
        query.awaitTermination(int(TIMEOUT_S))

    for error in (info.value, query.exception()):
        text = task_failure(error)
        assert text is not None
        assert "the row Row(id=7) of partition 0 has failed: ValueError: seven is odd" in text
        assert "Streaming Query" not in text


def test_columns_and_functions_of_sql_come_over_connect(connect: Any) -> None:
    async def half(number: int) -> float:
        return number / 2

    registered = register_async(connect, "half", half, timeout=TIMEOUT_S)
    column = async_column(half, "id", timeout=TIMEOUT_S)

    assert [tuple(row) for row in connect.range(0, 3, 1, 1).withColumn("half", column).collect()] == [
        (i, i / 2) for i in range(3)
    ]
    assert [row.half for row in connect.sql("SELECT half(id) AS half FROM range(0, 3, 1, 1)").collect()] == [0, 0.5, 1]
    assert connect.range(1).select(registered("id").alias("half")).collect() == [(0.0,)]
