"""The report over journals of 1, 10 and 50 million events on two cores, and one of its aggregations by DuckDB.

A report over the smallest journal warms the JVM up. The time covers all tables and the page, but not Spark's start.
The memory is the driver's, which also runs the local tasks: this process, and its JVM's heap after a collection.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from journal.big_journals import replay_sample, write_big_journal
from measure import Figures, Settings
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dispatcher.journal import EVENTS
from pipeline.journal.scan import read_batches
from pipeline.spark import read_journal, spark_session, write_report

MILLION = 1_000_000
SIZES = (1, 10, 50)
CORES = 2
COLUMNS = ("event_class", "event_type", "outcome", "queue_ns", "handling_ns")
BY_TYPE = """
    SELECT event_class, event_type, count(*) AS count, count(*) FILTER (WHERE outcome = 'failed') AS failed,
           avg(queue_ns) AS queue_mean, max(queue_ns) AS queue_max,
           avg(handling_ns) AS handling_mean, max(handling_ns) AS handling_max
    FROM events GROUP BY ALL
"""


def report(settings: Settings) -> Figures:
    figures: Figures = {}
    # What makes the journals, and DuckDB, are in a process of their own: this one's memory is the driver's.
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(1, get_context("spawn")) as others,
        spark_session(f"local[{CORES}]", "bench", long_run=True) as spark,
    ):
        folder = Path(name)
        sample = others.submit(replay_sample, folder / "sample").result()
        print(f"\nReport on {CORES} cores, warm{'':20} {'events':>12} {'seconds':>10} {'events/s':>12} {'heap MiB':>9}")
        for place, millions in enumerate(SIZES):
            journal = folder / "journal"
            events = others.submit(write_big_journal, sample, journal, settings.count(millions * MILLION)).result()
            if place == 0:
                write_report(spark, journal, folder / "warm-up")
            repeats = settings.repeats if millions == 1 else 1
            took_s = statistics.median(
                _seconds(write_report, spark, journal, folder / "report") for _ in range(repeats)
            )
            heap = _heap_mib(spark)
            print(f"{'  the whole report':46} {events:12,} {took_s:10.1f} {events / took_s:12,.0f} {heap:9,.0f}")
            figures |= {f"report.{millions}": events / took_s, f"report.{millions}-s": took_s / events * millions}
            figures |= {f"report.{millions}-heap": heap, f"report.{millions}-rss": _resident_mib()}
            if millions == 10:
                figures |= _beside_duckdb(spark, others, journal, events)
            shutil.rmtree(journal)
            shutil.rmtree(folder / "report", ignore_errors=True)
    for large, small in ((10, 1), (50, 10)):
        figures[f"report.growth-{large}"] = figures[f"report.{large}-s"] / figures[f"report.{small}-s"]
    figures["report.rss-growth"] = figures["report.50-rss"] / figures["report.1-rss"] - 1
    figures["report.heap-growth"] = figures["report.50-heap"] / figures["report.1-heap"] - 1
    print(
        f"Driver: this process {figures['report.1-rss']:,.0f} MiB after {SIZES[0]} million events, "
        f"{figures['report.50-rss']:,.0f} MiB after {SIZES[-1]}"
    )
    return figures


def _beside_duckdb(spark: SparkSession, others: ProcessPoolExecutor, journal: Path, events: int) -> Figures:
    """Events by type with counts, means and maxima, of the same segments, in the same columns."""
    figures = {}
    for key, name, took_s in (
        ("spark", "events by type: Spark", _seconds(_by_spark, spark, journal)),
        ("duckdb", "the same: DuckDB", others.submit(_seconds, _by_duckdb, journal).result()),
    ):
        figures[f"report.by-type-{key}"] = events / took_s
        print(f"{'  ' + name:46} {events:12,} {took_s:10.1f} {events / took_s:12,.0f}")
    return figures


def _by_spark(spark: SparkSession, journal: Path) -> None:
    events = read_journal(spark, journal, columns={"events": COLUMNS}).events
    figures = [function(name) for name in ("queue_ns", "handling_ns") for function in (F.mean, F.max)]
    failed = F.count_if(F.col("outcome") == "failed")
    assert events.groupBy("event_class", "event_type").agg(F.count("*"), failed, *figures).collect()


def _by_duckdb(journal: Path) -> None:
    import duckdb  # here, because merely importing it makes the process print leak reports at its end

    batches = read_batches(journal, EVENTS, COLUMNS)
    first = next(batches)
    rest = (batch for some in ([first], batches) for batch in some)
    with duckdb.connect(config={"threads": CORES}) as connection:
        connection.register("events", pa.RecordBatchReader.from_batches(first.schema, rest))
        assert connection.execute(BY_TYPE).fetchall()


def _seconds(run: Callable[..., Any], *arguments: Any) -> float:
    started = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - started


def _heap_mib(spark: SparkSession) -> float:
    """The JVM's heap after a garbage collection."""
    gc.collect()
    jvm: Any = spark._jvm  # type: ignore[attr-defined]
    jvm.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    return float(memory.getHeapMemoryUsage().getUsed()) / 2**20


def _resident_mib() -> float:
    """The most that this process has had resident."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024
