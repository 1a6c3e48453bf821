from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame, Row, SparkSession

from pipeline.spark import CallMetricsListener, call_metrics, ordered_wait
from pipeline.streaming import AsyncFunction, RetryStrategy

from ....kit import until
from . import enriching_query
from .enriching_query import FILES, ROWS_PER_FILE, TIMEOUT_S, finish, read, start_query, with_source

SHIPPED = (enriching_query,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source of FILES micro-batches."""
    return with_source(tmp_path)


class Connected(AsyncFunction[Row, tuple[int]]):
    """Notes in `log` which worker opens it."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def open(self) -> None:
        with self.log.open("a") as lines:
            lines.write(f"open {os.getpid()}\n")

    def close(self) -> None: ...

    async def async_invoke(self, row: Row) -> list[tuple[int]]:
        return [(row.id,)]


def stream_of_rows(stream: DataFrame, function: Connected) -> Any:
    return ordered_wait(stream, function, "id long", timeout=TIMEOUT_S).writeStream.format("noop")


def batch_by_batch(stream: DataFrame, function: Connected) -> Any:
    """Each micro-batch opened its function again, and left the one of the micro-batch before open."""

    def each(batch: DataFrame, number: int) -> None:
        fewest = 1
        retry = RetryStrategy.fixed_delay(1, 10, retry_on_result=lambda results: len(results) < fewest)
        options: dict[str, Any] = {"retry": retry, "dedupe_by": "id", "idle_timeout": TIMEOUT_S}
        found = ordered_wait(batch, Connected(function.log), "id long", timeout=TIMEOUT_S, **options)
        found.write.format("noop").mode("append").save()

    return stream.writeStream.foreachBatch(each)


@pytest.mark.parametrize("writer", [stream_of_rows, batch_by_batch])
def test_micro_batches_share_their_connection(spark: SparkSession, tmp_path: Path, writer: Callable[..., Any]) -> None:
    """Spark hands idle workers out in turns, and keeps up to four of earlier tests."""
    folder = with_source(tmp_path, files=6)
    query = writer(read(spark, folder), Connected(folder / "log")).trigger(availableNow=True).start()
    progress = finish(query)

    lines = (folder / "log").read_text().splitlines()
    assert len(progress) >= 6
    assert len(lines) == len(set(lines))  # each worker once
    assert len(lines) <= 4


def rows_in(progress: Any) -> int:
    """Some releases of PySpark give a plain dict."""
    return int(progress["numInputRows"] if type(progress) is dict else progress.numInputRows)


def test_progress_has_the_counts_of_each_micro_batch_and_a_listener_exports_their_sums(
    either: SparkSession, folder: Path
) -> None:
    registry = CollectorRegistry()
    listener = CallMetricsListener(registry)
    either.streams.addListener(listener)
    everything = FILES * ROWS_PER_FILE
    try:
        query = start_query(either, folder, metrics="look up")
        progress = finish(query)
        operator = f"{query.id}/look up"
        until(lambda: operator in listener.totals() and listener.totals()[operator].calls == everything, "all progress")
    finally:
        either.streams.removeListener(listener)

    batches = [call_metrics(each, "look up") for each in progress if rows_in(each)]
    assert [metrics.completed for metrics in batches] == [ROWS_PER_FILE] * FILES
    assert registry.get_sample_value("async_calls_total", {"operator": operator}) == everything
    assert registry.get_sample_value("async_call_seconds_count", {"operator": operator}) == everything
