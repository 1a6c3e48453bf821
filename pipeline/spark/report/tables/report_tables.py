"""All tables of the report, each computed once and written as Parquet.

Each table of the journal is read twice: once for the time that the journal covers (outcome, enqueued_at and finished_at
of events, at of transitions), and once for a digest (`event_digest.READS` and `transition_digest.READS`). The tables
are computed from the digests, which exist beside them meanwhile, and from one another.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.spark.report.digests.buckets import TimeBuckets
from pipeline.spark.report.digests.event_digest import (
    DEPTH_BUCKETS,
    DEPTHS_PER_BUCKET,
    SLOWEST,
    TIME_BUCKETS,
    digest_events,
)
from pipeline.spark.report.digests.event_digest import KINDS as EVENT_KINDS
from pipeline.spark.report.digests.journal_digests import JournalDigests, Kinds
from pipeline.spark.report.digests.transition_digest import KINDS as MOVE_KINDS
from pipeline.spark.report.digests.transition_digest import Ends, digest_transitions
from pipeline.spark.report.tables import event_times, jobs, lifecycles, usage, utilisation
from pipeline.spark.report.tables.comparison import key_figures
from pipeline.spark.report.tables.failures_by_cause import failures
from pipeline.spark.source.journal import JournalTables

T = TypeVar("T")

_STAGING = "_staging"
_CONCURRENT_JOBS = 4
"""Most jobs are small: Spark's driver spends more time on a job than its tasks do."""


def write_tables(
    spark: SparkSession,
    tables: JournalTables,
    folder: str | Path,
    declared: DataFrame,
    *,
    digests: JournalDigests | None = None,
) -> Mapping[str, DataFrame]:
    """Compute every table of the report and write it to `folder`/NAME; returns the tables by name.

    Blocks until all are written, and replaces the tables of an earlier report. Spark writes, so with a remote Spark
    both sides must see `folder`. Independent tables are computed concurrently.

    In:  the journal's tables; each partition of transitions holds, for each entity, rows that are consecutive in seq,
         as a journal's partitions do. `declared`: as for `transition_counts`. `digests`: of a journal that Spark's
         tasks can read; `tables` are then not read.
    Out: by name: run_totals, and the table of each job in this package's modules.
    """
    root = Path(folder)
    with removed_at_the_end(root / _STAGING) as staging, ThreadPoolExecutor(_CONCURRENT_JOBS) as pool:
        report = TableFolder(spark, root)
        ends = ends_of(declared)
        if digests is None:
            of_events, of_transitions = jobs.event_totals(tables.events), jobs.transition_totals(tables.transitions)
            [totals] = jobs.run_totals(of_events, of_transitions).collect()
            start_at, end_at = totals["first_at"] or 0, totals["last_at"] or 0
            digested = TableFolder(spark, staging)
            making = (
                lambda: _by_kind(digested.write("events", digest_events(tables.events, start_at, end_at)), EVENT_KINDS),
                lambda: _by_kind(digested.write("moves", digest_transitions(tables.transitions, ends)), MOVE_KINDS),
            )
        else:
            start_at, end_at, known = digests.start_at, digests.end_at, digests
            making = (
                lambda: known.events(spark, staging / "events"),
                lambda: known.transitions(spark, staging / "moves", ends),
            )
        events, moves = _done(pool, making)
        _done(
            pool,
            (
                lambda: report.write("containers", usage.container_intervals(events["kept"], moves["move"])),
                lambda: write_event_tables(report, events, start_at, end_at),
                lambda: _write_machine_tables(report, moves, declared, ends, end_at),
                lambda: report.write("run_totals", _totals(events, moves, start_at, end_at)),
                lambda: report.write("failures", failures(events["kept"], moves["move"])),
            ),
        )
        capacities = usage.node_capacities(events["kept"])
        _done(
            pool,
            (
                lambda: write_application_tables(report, events["kept"], moves["move"], capacities, start_at, end_at),
                lambda: write_node_tables(report, capacities),
                lambda: write_tables_over_time(report, capacities, start_at, end_at),
            ),
        )
        report.write("key_figures", key_figures(report.written))
    return report.written


def ends_of(declared: DataFrame) -> Ends:
    """Where the declared machines begin and end. Runs a job."""
    return Ends.of(map(tuple, declared.select(*jobs.KIND).distinct().collect()))


def _done(pool: ThreadPoolExecutor, steps: Iterable[Callable[[], T]]) -> list[T]:
    """The results of the steps, run concurrently."""
    return [started.result() for started in [pool.submit(step) for step in steps]]


def _by_kind(digest: DataFrame, kinds: Iterable[str]) -> Kinds:
    return {kind: digest.where(F.col("kind") == kind) for kind in kinds}


def _totals(events: Kinds, moves: Kinds, start_at: int, end_at: int) -> DataFrame:
    total = F.coalesce(F.sum("count"), F.lit(0)).cast("long")
    span = [
        F.when(total > 0, F.lit(at)).cast("long").alias(name)
        for name, at in (("first_at", start_at), ("last_at", end_at))
    ]
    failed = event_times.of_outcome("failed").alias("failed")
    of_events = events["group"].where("measure = 'handling_ns'").agg(total.alias("count"), failed, *span)
    return jobs.run_totals(of_events, moves["count"].agg(total.alias("count"), *span))


class TableFolder:
    """Tables in one folder. Each is computed once, when it is written; later jobs read it back."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self.written: dict[str, DataFrame] = {}

    def write(self, name: str, table: DataFrame) -> DataFrame:
        """Compute a table and write it, replacing an earlier one; returns a DataFrame that reads it back. Blocks."""
        path = str(self._folder / name)
        table.write.mode("overwrite").parquet(path)
        # With an explicit schema, Spark starts no job to infer it from the files.
        self.written[name] = self._spark.read.schema(table.schema).parquet(path)
        return self.written[name]


@contextmanager
def removed_at_the_end(folder: Path) -> Iterator[Path]:
    """A temporary folder."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_machine_tables(report: TableFolder, digest: Kinds, declared: DataFrame, ends: Ends, end_at: int) -> None:
    stretches = digest["stretch"]
    crossing = lifecycles.crossing_stays(stretches, ends)
    stayed = digest["stay"].withColumnRenamed("from_state", "state")
    figures = ["machine", "state", "log_bucket", "count", "total", "least", "greatest"]
    groups = stayed.select(*figures).unionAll(lifecycles.stay_groups(crossing).select(*figures))
    longest = digest["long_stay"].select(
        "machine", "entity", F.col("from_state").alias("state"), "seq", F.col("at").alias("from_at"), "stay_ns"
    )
    still_open = lifecycles.open_stays(stretches, ends, end_at)
    write_machine_tables(report, digest["count"], declared, groups, longest.unionByName(crossing), still_open)


def write_event_tables(
    report: TableFolder, digest: Kinds, start_at: int, end_at: int, parts: int = DEPTHS_PER_BUCKET
) -> None:
    """Write the tables of events from the kinds group, depth and slow; `parts`: depths per bucket of `queue_depth`."""
    times = TimeBuckets.over(start_at, end_at, TIME_BUCKETS)
    depths = TimeBuckets.over(start_at, end_at, DEPTH_BUCKETS)
    report.write("events_by_type", event_times.events_by_type(digest["group"]))
    report.write("event_times", event_times.event_times(digest["group"], times))
    report.write("queue_depth", event_times.queue_depth(digest["depth"], depths, parts))
    report.write("slowest_handlers", event_times.slowest_handlers(digest["slow"], SLOWEST))


def write_machine_tables(
    report: TableFolder,
    counts: DataFrame,
    declared: DataFrame,
    stay_groups: DataFrame,
    longest: DataFrame,
    still_open: DataFrame,
) -> None:
    """Write the tables of transitions and of stays; `longest`, `still_open`: stays, as for `stuck_entities`."""
    known = report.write("transition_counts", jobs.transition_counts(counts, declared))
    report.write("unknown_transitions", jobs.unknown_transitions(known))
    report.write("mined_graph", jobs.mined_graph(known, declared))
    times = report.write("time_in_state", lifecycles.time_in_state(stay_groups))
    report.write("stuck_entities", lifecycles.stuck_entities(longest, still_open, times))


def write_application_tables(
    report: TableFolder, events: DataFrame, transitions: DataFrame, capacities: DataFrame, start_at: int, end_at: int
) -> None:
    """Write the tables of applications and queues; `containers` is already written."""
    containers = report.written["containers"]
    applications = report.write("applications", jobs.applications(events, transitions, containers))
    report.write("applications_by_final_state", jobs.applications_by_final_state(applications))
    report.write("waiting_by_queue", jobs.waiting(applications, "queue"))
    report.write("waiting_by_user", jobs.waiting(applications, "queue", "user"))
    report.write("application_timeline", lifecycles.application_timeline(transitions))
    report.write("critical_paths", lifecycles.critical_paths(transitions, applications, end_at))
    times = TimeBuckets.over(start_at, end_at, TIME_BUCKETS)
    by_queue = utilisation.queue_utilisation(containers, applications, capacities, times)
    report.write("queue_utilisation", by_queue)


def write_node_tables(report: TableFolder, capacities: DataFrame) -> None:
    """Write the tables of resource use per node; `containers` is already written."""
    containers = report.written["containers"]
    node_usage = report.write("node_usage", usage.node_usage(containers))
    devices = report.write("gpu_device_peaks", usage.gpu_device_peaks(containers))
    report.write("node_peaks", usage.node_peaks(node_usage, devices, capacities))


def write_tables_over_time(report: TableFolder, capacities: DataFrame, start_at: int, end_at: int) -> None:
    """Write the tables of nodes over time; `containers` is already written."""
    containers = report.written["containers"]
    report.write("containers_over_time", usage.containers_over_time(containers, start_at, end_at))
    times = TimeBuckets.over(start_at, end_at, TIME_BUCKETS)
    report.write("node_utilisation", utilisation.node_utilisation(containers, capacities, times))
