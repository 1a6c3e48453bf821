"""The report over journals of 59 to 50 million events on two cores, beside DuckDB, decoding alone, and an empty job.

A report over the sample warms the JVM up. The time covers all tables and the page, but not Spark's start, except in the
cold runs. The memory is the driver's: this process, whose peak grows with what it alone has had to do, and its JVM's
heap after a collection.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from journal.big_journals import replay_jobs, replay_sample, write_big_journal
from journal.report_clusters import speed_up
from journal.report_cold import cold
from journal.report_peers import count_rows, duckdb_tables, to_parquet
from measure import Figures, Settings, Spread, print_table
from pyspark.sql import SparkSession

from dispatcher.journal.snapshot import look_at
from pipeline.journal.scan import divide
from pipeline.spark import spark_session, write_report

MILLION = 1_000_000
CORES = 2
MOST_REPEATS = 3


class _Size(NamedTuple):
    key: str
    events: int
    """About how many; 0: as many as the replayed workload has."""
    has_peers: bool = True


SIZES = (
    _Size("few", 0, has_peers=False),
    _Size("sample", 0),
    _Size("1", 1 * MILLION, has_peers=False),
    _Size("2", 2 * MILLION),
    _Size("10", 10 * MILLION),
    _Size("50", 50 * MILLION),
)


def report(settings: Settings) -> Figures:
    figures: Figures = {}
    repeats = max(1, min(MOST_REPEATS, settings.repeats))
    # What makes the journals, and the peers, are in processes of their own: this one's memory is the driver's.
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(CORES, get_context("spawn")) as others,
    ):
        folder = Path(name)
        sample = others.submit(replay_sample, folder / "sample").result()
        figures |= cold(sample, folder / "cold", repeats, CORES)
        with spark_session(f"local[{CORES}]", "bench", long_run=True) as spark:
            for _ in range(2):
                write_report(spark, sample, folder / "warm-up")
            for size in SIZES:
                with _journal(size, sample, folder, settings, others) as (journal, events):
                    figures |= _measured(spark, size, journal, events, folder, repeats, others)
        with _journal(SIZES[4], sample, folder, settings, others) as (journal, events):
            figures |= speed_up(journal, events, folder)
    figures["report.rss-growth"] = figures["report.50-rss"] / figures["report.1-rss"]
    figures["report.heap-growth"] = figures["report.50-heap"] / figures["report.1-heap"]
    print(
        f"Driver: this process {figures['report.1-rss']:,.0f} MiB after 1 million events, "
        f"{figures['report.50-rss']:,.0f} MiB after 50; heap {figures['report.1-heap']:,.0f} MiB, "
        f"{figures['report.50-heap']:,.0f} MiB"
    )
    return figures


@contextmanager
def _journal(
    size: _Size, sample: Path, folder: Path, settings: Settings, others: ProcessPoolExecutor
) -> Iterator[tuple[Path, int]]:
    """The journal of a size and its number of events; removed at the end, except the sample."""
    path = sample if size.key == "sample" else folder / f"journal-{size.key}"
    if size.key == "few":
        others.submit(replay_jobs, path).result()
    elif size.events:
        others.submit(write_big_journal, sample, path, settings.count(size.events)).result()
    summaries = (segment.summary for segment in look_at(path).summarized)
    yield path, sum(summary.events for summary in summaries if summary is not None)
    if path != sample:
        shutil.rmtree(path)


def _measured(
    spark: SparkSession,
    size: _Size,
    journal: Path,
    events: int,
    folder: Path,
    repeats: int,
    others: ProcessPoolExecutor,
) -> Figures:
    """The report, round by round with its peers."""
    rows: dict[str, Callable[[], float]] = {
        "report": lambda: _seconds(write_report, spark, journal, folder / "report"),
    }
    parquet = folder / "parquet"
    if size.has_peers:
        others.submit(to_parquet, journal, parquet).result()
        rows["DuckDB, ten bounded tables of the same rows as Parquet"] = lambda: others.submit(
            _seconds, duckdb_tables, parquet, CORES
        ).result()
        rows["decoding alone, no tables"] = lambda: _decoding_s(journal, others)
    took_s: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(repeats):
        for name, run in rows.items():
            took_s[name].append(run())
    print_table(
        f"{events:,} events on {CORES} cores, warm: seconds",
        {name: Spread.of(values) for name, values in took_s.items()},
        digits=2,
    )
    shutil.rmtree(parquet, ignore_errors=True)
    shutil.rmtree(folder / "report")
    medians = [statistics.median(values) for values in took_s.values()]
    figures = {
        f"report.{size.key}-s": medians[0],
        f"report.{size.key}": events / medians[0],
        f"report.{size.key}-heap": _heap_mib(spark),
        f"report.{size.key}-rss": _resident_mib(),
    }
    if size.has_peers:
        figures |= {f"report.{size.key}-duckdb-s": medians[1], f"report.{size.key}-decoding-s": medians[2]}
    return figures


def _decoding_s(journal: Path, others: ProcessPoolExecutor) -> float:
    """Seconds to decode what the report reads, half by each of two processes."""
    halves = divide(look_at(journal).summarized, CORES)
    started = time.perf_counter()
    assert sum(others.map(count_rows, [journal] * len(halves), halves))
    return time.perf_counter() - started


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
