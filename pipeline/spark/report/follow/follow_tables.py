"""Computes the report's tables from a followed journal's digests, with the batch report's jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.spark.report.digests.event_digest import DEPTH_BUCKETS, DEPTHS_PER_BUCKET, SLOWEST, TIME_BUCKETS
from pipeline.spark.report.digests.time_buckets import TimeBuckets
from pipeline.spark.report.digests.transition_digest import Ends
from pipeline.spark.report.follow.follow_digests import over_time
from pipeline.spark.report.tables import event_times, jobs, lifecycles, usage
from pipeline.spark.report.tables.comparison import key_figures
from pipeline.spark.report.tables.failures_by_cause import failures
from pipeline.spark.report.tables.report_tables import (
    TableFolder,
    removed_at_the_end,
    write_application_tables,
    write_node_tables,
    write_tables_over_time,
)

_STAGING = "_staging"

FOLLOWED = (
    "run_totals",
    "events_by_type",
    "event_times",
    "queue_depth",
    "slowest_handlers",
    "transition_counts",
    "unknown_transitions",
    "mined_graph",
    "time_in_state",
    "stuck_entities",
    "containers",
    "applications",
    "applications_by_final_state",
    "waiting_by_queue",
    "waiting_by_user",
    "application_timeline",
    "critical_paths",
    "node_usage",
    "gpu_device_peaks",
    "node_peaks",
    "containers_over_time",
    "node_utilisation",
    "queue_utilisation",
    "failures",
    "key_figures",
)
"""The tables that following a journal writes: all of the report's, equal to those of the batch report."""


def write_followed(
    spark: SparkSession, events: DataFrame, transitions: DataFrame, folder: Path, declared: DataFrame
) -> Mapping[str, DataFrame]:
    """Write the tables `FOLLOWED` to `folder`/NAME; returns them by name. Blocks.

    In: merged digests of `merge_events` and `merge_transitions`; `declared` as for `transition_counts`.
    """
    report = TableFolder(spark, folder)
    with removed_at_the_end(folder / _STAGING) as held:
        staging = TableFolder(spark, held)
        _write_all(report, staging.write("events", events), staging.write("transitions", transitions), declared)
    return report.written


def _write_all(report: TableFolder, events: DataFrame, transitions: DataFrame, declared: DataFrame) -> None:
    [totals] = report.write("run_totals", _run_totals(_of(events, "totals"), _of(transitions, "totals"))).collect()
    span = (totals["first_at"] or 0, totals["last_at"] or 0)
    _write_event_tables(report, events, *span)
    _write_machine_tables(report, transitions, declared, span[1])
    kept, moves = _of(events, "kept"), _of(transitions, "move")
    _write_cluster_tables(report, kept, moves, *span)
    report.write("failures", failures(kept, moves))
    report.write("key_figures", key_figures(report.written))


def _of(digest: DataFrame, kind: str) -> DataFrame:
    return digest.where(F.col("kind") == kind)


def _run_totals(of_events: DataFrame, of_transitions: DataFrame) -> DataFrame:
    # One row on either side.
    return (
        of_events.alias("e")
        .join(of_transitions.alias("t"), how="cross")
        .select(
            F.col("e.count").alias("events"),
            F.col("e.failed").alias("failed_events"),
            F.col("t.count").alias("transitions"),
            F.least("e.first_at", "t.first_at").alias("first_at"),
            F.greatest("e.last_at", "t.last_at").alias("last_at"),
        )
    )


def _write_event_tables(report: TableFolder, digest: DataFrame, start_at: int, end_at: int) -> None:
    times = TimeBuckets.over(start_at, end_at, TIME_BUCKETS)
    groups = over_time(_of(digest, "group"), times)
    report.write("events_by_type", event_times.events_by_type(groups))
    report.write("event_times", event_times.event_times(groups, times))
    depths = TimeBuckets.over(start_at, end_at, DEPTH_BUCKETS)
    parts = min(DEPTHS_PER_BUCKET, depths.width_ns)
    fine = TimeBuckets(depths.start_at, depths.width_ns // parts, depths.number * parts)
    report.write("queue_depth", event_times.queue_depth(over_time(_of(digest, "depth"), fine), depths, parts))
    report.write("slowest_handlers", event_times.slowest_handlers(_of(digest, "slow"), SLOWEST))


def _write_machine_tables(report: TableFolder, digest: DataFrame, declared: DataFrame, end_at: int) -> None:
    ends = Ends.of(_rows(declared.select(*jobs.KIND).distinct()))
    counts = report.write("transition_counts", jobs.summed_transitions(_of(digest, "count"), declared))
    report.write("unknown_transitions", jobs.unknown_transitions(counts))
    report.write("mined_graph", jobs.mined_graph(counts, declared))
    times = report.write("time_in_state", lifecycles.time_in_state(_of(digest, "stay")))
    still_open = lifecycles.open_stays(_of(digest, "stretch"), ends, end_at)
    report.write("stuck_entities", lifecycles.stuck_entities(_of(digest, "long_stay"), still_open, times))


def _write_cluster_tables(report: TableFolder, kept: DataFrame, moves: DataFrame, start_at: int, end_at: int) -> None:
    report.write("containers", usage.container_intervals(kept, moves))
    capacities = usage.node_capacities(kept)
    write_application_tables(report, kept, moves, capacities, start_at, end_at)
    write_node_tables(report, capacities)
    write_tables_over_time(report, capacities, start_at, end_at)


def _rows(table: DataFrame) -> Iterable[tuple[Any, ...]]:
    return [tuple(row) for row in table.collect()]
