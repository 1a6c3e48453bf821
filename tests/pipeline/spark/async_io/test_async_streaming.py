from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pipeline.spark import CallMetricsListener, call_metrics, ordered_wait, unordered_wait
from pipeline.streaming import AsyncFunction, RetryStrategy

from . import enriching_query

TIMEOUT_S = 120.0
FILES = 4
ROWS_PER_FILE = 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source of FILES micro-batches."""
    return with_source(tmp_path)


def with_source(folder: Path) -> Path:
    source = folder / "in"
    source.mkdir()
    for number in range(FILES):
        file = source / f"{number}.json"
        first = number * ROWS_PER_FILE
        file.write_text("".join(json.dumps({"id": i}) + "\n" for i in range(first, first + ROWS_PER_FILE)))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads them in this order
    (folder / "log").touch()
    return folder


@pytest.fixture
def hanging_query(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Callable[[], None]]]:
    """The folder of a query that hangs in another process, and a function that kills that process."""
    folder = with_source(tmp_path_factory.mktemp("hanging"))
    # A group of its own, so that its JVM is killed with it.
    command = [sys.executable, enriching_query.__file__, str(folder)]
    with (folder / "victim.log").open("wb") as output:
        victim = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def kill() -> None:
        if victim.returncode is None:
            os.killpg(victim.pid, signal.SIGKILL)
            victim.wait(TIMEOUT_S)

    yield folder, kill
    kill()


@pytest.fixture(autouse=True)
def _query_travels_by_value() -> object:
    """Workers cannot import the tests."""
    cloudpickle.register_pickle_by_value(enriching_query)
    yield
    cloudpickle.unregister_pickle_by_value(enriching_query)


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"not within {TIMEOUT_S} s: {what}"
        threading.Event().wait(0.02)


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()


@pytest.mark.slow
def test_query_whose_worker_is_killed_is_complete_after_its_restart(spark: SparkSession, folder: Path) -> None:
    class Fragile(AsyncFunction[Row, tuple[int]]):
        """Kills its worker once, at one row."""

        def __init__(self, marker: Path) -> None:
            self.marker = marker

        async def async_invoke(self, row: Row) -> list[tuple[int]]:
            if row.id == 15 and not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return [(row.id,)]

    def start() -> StreamingQuery:
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        found = unordered_wait(stream, Fragile(folder / "marker"), "id long", timeout=TIMEOUT_S)
        writer = found.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        return writer.option("path", str(folder / "out")).trigger(availableNow=True).start()

    with pytest.raises(Exception, match="crashed"):
        finish(start())

    finish(start())

    found = spark.read.parquet(str(folder / "out")).orderBy("id").collect()
    assert [row.id for row in found] == list(range(FILES * ROWS_PER_FILE))


class Connected(AsyncFunction[Row, tuple[int]]):
    """Notes in `log` which worker opens it."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def open(self) -> None:
        with self.log.open("a") as lines:
            lines.write(f"open {os.getpid()}\n")

    def close(self) -> None:
        pass

    async def async_invoke(self, row: Row) -> list[tuple[int]]:
        return [(row.id,)]


def test_connection_is_kept_across_micro_batches(spark: SparkSession, folder: Path) -> None:
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    found = ordered_wait(stream, Connected(folder / "log"), "id long", timeout=TIMEOUT_S)
    query = found.writeStream.format("noop").trigger(availableNow=True).start()
    finish(query)

    lines = (folder / "log").read_text().splitlines()
    assert len(query.recentProgress) >= FILES
    assert len(lines) == len(set(lines))  # each worker once
    assert len(lines) < FILES


def test_operators_that_foreach_batch_builds_again_share_their_connection(spark: SparkSession, folder: Path) -> None:
    """Each micro-batch opened its function again, and left the one of the micro-batch before open."""

    def each(batch: DataFrame, number: int) -> None:
        fewest = 1
        found = ordered_wait(
            batch,
            Connected(folder / "log"),
            "id long",
            timeout=TIMEOUT_S,
            retry=RetryStrategy.fixed_delay(1, 10, retry_on_result=lambda results: len(results) < fewest),
            dedupe_by="id",
            idle_timeout=TIMEOUT_S,
        )
        found.write.format("noop").mode("append").save()

    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    query = stream.writeStream.foreachBatch(each).trigger(availableNow=True).start()
    finish(query)

    lines = (folder / "log").read_text().splitlines()
    assert len(query.recentProgress) >= FILES
    assert len(lines) == len(set(lines))  # each worker once
    assert len(lines) < FILES


def test_progress_has_the_counts_of_each_micro_batch(spark: SparkSession, folder: Path) -> None:
    query = enriching_query.start_query(spark, folder, metrics="look up")
    finish(query)

    batches = [call_metrics(progress, "look up") for progress in query.recentProgress if progress["numInputRows"]]

    assert [metrics.completed for metrics in batches] == [ROWS_PER_FILE] * FILES


def test_listener_sums_the_micro_batches_and_exports_them(spark: SparkSession, folder: Path) -> None:
    registry = CollectorRegistry()
    listener = CallMetricsListener(registry)
    spark.streams.addListener(listener)
    try:
        query = enriching_query.start_query(spark, folder, metrics="look up")
        finish(query)
        operator = f"{query.id}/look up"
        everything = FILES * ROWS_PER_FILE
        until(lambda: operator in listener.totals() and listener.totals()[operator].calls == everything, "all progress")
    finally:
        spark.streams.removeListener(listener)

    assert registry.get_sample_value("async_calls_total", {"operator": operator}) == everything
    assert registry.get_sample_value("async_call_seconds_count", {"operator": operator}) == everything


@pytest.mark.slow
def test_query_that_is_killed_in_a_batch_is_complete_after_its_restart(
    spark: SparkSession, hanging_query: tuple[Path, Callable[[], None]]
) -> None:
    folder, kill = hanging_query
    try:
        until(lambda: str(enriching_query.HANGS_AT) in (folder / "log").read_text().splitlines(), "the third batch")
    finally:
        kill()
    before = [int(line) for line in (folder / "log").read_text().splitlines()]
    (folder / "log").write_text("")

    finish(enriching_query.start_query(spark, folder))

    after = [int(line) for line in (folder / "log").read_text().splitlines()]
    found = spark.read.parquet(str(folder / "out")).orderBy("id").collect()
    assert [tuple(row) for row in found] == [(i, f"fact {i}") for i in range(FILES * ROWS_PER_FILE)]
    assert set(before) >= set(range(2 * ROWS_PER_FILE))
    assert after == list(range(2 * ROWS_PER_FILE, FILES * ROWS_PER_FILE))  # the interrupted batch, and the last one
