"""Digests of micro-batches, and the report's tables, which the batch report's own jobs compute from them.

A digest is one table with rows of several kinds; columns that a kind lacks are null. `merge_events` and
`merge_transitions` merge the digests of a journal's parts into the digest of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pipeline.spark.report.digests.buckets import TimeBuckets, added_up
from pipeline.spark.report.digests.event_digest import (
    DEPTH_BUCKETS,
    DEPTHS_PER_BUCKET,
    KEPT,
    READS,
    SLOWEST,
    TIME_BUCKETS,
)
from pipeline.spark.report.digests.transition_digest import LONGEST
from pipeline.spark.report.tables import jobs, lifecycles, report_tables, usage
from pipeline.spark.report.tables.comparison import key_figures
from pipeline.spark.report.tables.event_times import arrivals_and_starts, event_groups
from pipeline.spark.report.tables.failures_by_cause import failures
from pipeline.spark.source.journal import PAYLOADS

_STAGING = "_staging"

EVENT_COLUMNS = ("dispatcher", *READS, "finished_at")
"""The columns of journal events that following reads."""

_GROUP = ["event_class", "event_type", "outcome", "bucket", "width_ns", "measure"]
_KIND = ["machine", "from_state", "event_type", "to_state", "valid"]
_STAY = ["machine", "entity", "state", "seq", "from_at", "stay_ns"]
_MOVE = ["seq", "machine", "entity", "from_state", "event_type", "to_state", "at", "valid"]


def digest_events(events: DataFrame) -> DataFrame:
    """The digest of some events, in rows of five kinds. Runs a job to find the time that they cover.

    In:  journal events.
    Out: kind string, and for each kind:
         totals: count, failed, first_seq, last_seq, first_at, last_at long; one row.
         group: rows of `event_groups`, with width_ns long; bucket counts widths since 1970.
         depth: rows of `arrivals_and_starts`, likewise.
         kept: events whose payload the jobs read, and unhandled events: seq, event_class, event_type, entity,
             enqueued_at, started_at, handling_ns, outcome, error, payload.
         slow: the `SLOWEST` events with the longest handling: the same columns without payload.
    """
    is_read = reduce(
        lambda known, kind: known | ((F.col("event_class") == kind[0]) & (F.col("event_type") == kind[1])),
        PAYLOADS,
        F.col("outcome") != "handled",
    )
    totals = jobs.event_totals(events)
    times, depths = _widths(totals)
    return _of_kinds(
        totals=totals,
        group=event_groups(events, times).transform(_from_1970, times),
        depth=arrivals_and_starts(events, depths).transform(_from_1970, depths),
        kept=events.where(is_read).select(*KEPT, "payload"),
        slow=_slowest(events.select(*KEPT)),
    )


def merge_events(digests: DataFrame) -> DataFrame:
    """Merge digests of `digest_events` into one. Runs a small job."""
    totals = _kind(digests, "totals").agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("count", "failed")),
        *(F.min(name).alias(name) for name in ("first_seq", "first_at")),
        *(F.max(name).alias(name) for name in ("last_seq", "last_at")),
    )
    times, depths = _widths(totals)
    groups = _kind(digests, "group").transform(_widened, times.width_ns)
    changes = _kind(digests, "depth").transform(_widened, depths.width_ns)
    return _of_kinds(
        totals=totals,
        group=added_up(groups, _GROUP),
        depth=changes.groupBy("bucket", "width_ns").agg(*(F.sum(name).alias(name) for name in ("arrivals", "starts"))),
        kept=_kind(digests, "kept").select(*KEPT, "payload"),
        slow=_slowest(_kind(digests, "slow").select(*KEPT)),
    ).select(*digests.columns)


def digest_transitions(transitions: DataFrame) -> DataFrame:
    """The digest of some transitions, in rows of six kinds.

    In:  journal transitions with entered_seq and stay_ns, as from `with_stays`.
    Out: kind string, and for each kind:
         totals: count, first_at, last_at long; one row.
         count: machine, from_state, event_type, to_state string, valid boolean (unique together), count long > 0.
         stay: rows of `stay_groups`.
         long_stay: rows as of `crossing_stays`, the `LONGEST` longest of each state.
         stretch: rows of `joined_stretches`.
         move: the transitions that other tables need: the changes of state of applications and attempts, the
             allocations and ends of containers, and each application's last self-transition.
    """
    ended = transitions.where(F.col("stay_ns").isNotNull()).select(
        "machine",
        "entity",
        F.col("from_state").alias("state"),
        F.col("entered_seq").alias("seq"),
        (F.col("at") - F.col("stay_ns")).alias("from_at"),
        "stay_ns",
    )
    of_containers = F.col("to_state").isin("ALLOCATED", *usage.CONTAINER_END_STATES)
    is_kept = F.col("machine").isin("RMApp", "RMAppAttempt") | ((F.col("machine") == "RMContainer") & of_containers)
    staying = transitions.where((F.col("machine") == "RMApp") & F.col("valid") & ~jobs.has_moved()).select(*_MOVE)
    return _of_kinds(
        totals=jobs.transition_totals(transitions),
        count=transitions.groupBy(*_KIND).agg(F.count("*").alias("count")),
        stay=lifecycles.stay_groups(ended),
        long_stay=_longest(ended),
        stretch=lifecycles.joined_stretches(lifecycles.stretches(transitions)),
        move=transitions.where(jobs.has_moved() & is_kept).select(*_MOVE).unionAll(_last_of_each(staying)),
    )


def merge_transitions(digests: DataFrame) -> DataFrame:
    """Merge digests of `digest_transitions` into one."""
    moves = _kind(digests, "move").select(*_MOVE)
    return _of_kinds(
        totals=_kind(digests, "totals").agg(
            F.coalesce(F.sum("count"), F.lit(0)).alias("count"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
        ),
        count=_kind(digests, "count").groupBy(*_KIND).agg(F.sum("count").alias("count")),
        stay=added_up(_kind(digests, "stay"), ["machine", "state"]),
        long_stay=_longest(_kind(digests, "long_stay").select(*_STAY)),
        stretch=lifecycles.joined_stretches(_kind(digests, "stretch")),
        move=moves.where(jobs.has_moved()).unionAll(_last_of_each(moves.where(~jobs.has_moved()))),
    ).select(*digests.columns)


def write_followed(
    spark: SparkSession, events: DataFrame, transitions: DataFrame, folder: Path, declared: DataFrame
) -> Mapping[str, DataFrame]:
    """Write all of the report's tables to `folder`/NAME; returns them by name. Blocks.

    In: merged digests of `merge_events` and `merge_transitions`; `declared` as for `transition_counts`.
    """
    report = report_tables.TableFolder(spark, folder)
    with report_tables.removed_at_the_end(folder / _STAGING) as held:
        staging = report_tables.TableFolder(spark, held)
        _write_all(report, staging.write("events", events), staging.write("transitions", transitions), declared)
    return report.written


def _write_all(
    report: report_tables.TableFolder, events: DataFrame, transitions: DataFrame, declared: DataFrame
) -> None:
    [totals] = report.write(
        "run_totals", jobs.run_totals(_kind(events, "totals"), _kind(transitions, "totals"))
    ).collect()
    start_at, end_at = totals["first_at"] or 0, totals["last_at"] or 0
    times, fine = _buckets(start_at, end_at)
    over_time = {
        "group": _over_time(_kind(events, "group"), times),
        "depth": _over_time(_kind(events, "depth"), fine),
        "slow": _kind(events, "slow"),
    }
    parts = fine.number // TimeBuckets.over(start_at, end_at, DEPTH_BUCKETS).number
    report_tables.write_event_tables(report, over_time, start_at, end_at, parts)
    ends = report_tables.ends_of(declared)
    still_open = lifecycles.open_stays(_kind(transitions, "stretch"), ends, end_at)
    counts, stays, longest = (_kind(transitions, kind) for kind in ("count", "stay", "long_stay"))
    report_tables.write_machine_tables(report, counts, declared, stays, longest, still_open)
    kept, moves = _kind(events, "kept"), _kind(transitions, "move")
    report.write("containers", usage.container_intervals(kept, moves))
    capacities = usage.node_capacities(kept)
    report_tables.write_application_tables(report, kept, moves, capacities, start_at, end_at)
    report_tables.write_node_tables(report, capacities)
    report_tables.write_tables_over_time(report, capacities, start_at, end_at)
    report.write("failures", failures(kept, moves))
    report.write("key_figures", key_figures(report.written))


def _of_kinds(**kinds: DataFrame) -> DataFrame:
    each = [rows.select(F.lit(kind).alias("kind"), "*") for kind, rows in kinds.items()]
    return reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), each)


def _kind(digests: DataFrame, kind: str) -> DataFrame:
    return digests.where(F.col("kind") == kind)


def _buckets(start_at: int, end_at: int) -> tuple[TimeBuckets, TimeBuckets]:
    """The intervals of groups and of depths, for a run from `start_at` to `end_at` (Unix ns)."""
    depths = TimeBuckets.over(start_at, end_at, DEPTH_BUCKETS)
    part_ns = max(1, depths.width_ns // DEPTHS_PER_BUCKET)
    parts = TimeBuckets(depths.start_at, part_ns, depths.number * depths.width_ns // part_ns)
    return TimeBuckets.over(start_at, end_at, TIME_BUCKETS), parts


def _widths(totals: DataFrame) -> tuple[TimeBuckets, TimeBuckets]:
    [row] = totals.select("first_at", "last_at").collect()
    return _buckets(row["first_at"] or 0, row["last_at"] or 0)


def _from_1970(rows: DataFrame, times: TimeBuckets) -> DataFrame:
    absolute = F.col("bucket").cast("long") + times.start_at // times.width_ns
    return rows.withColumn("bucket", absolute).withColumn("width_ns", F.lit(times.width_ns).cast("long"))


def _over_time(rows: DataFrame, times: TimeBuckets) -> DataFrame:
    """Convert buckets that count widths since 1970 into buckets of `times`, whose width is a multiple of theirs.

    In:  bucket, width_ns long, and others. Out: the same without width_ns, with bucket int of `times`.
    """
    columns = [name for name in rows.columns if name != "width_ns"]
    relative = F.col("bucket") - times.start_at // times.width_ns
    return _widened(rows, times.width_ns).withColumn("bucket", relative.cast("int")).select(*columns)


def _widened(rows: DataFrame, width_ns: int) -> DataFrame:
    # Both widths are powers of two, and this one is the larger, because its digest covers more time.
    ratio = F.call_function("div", F.lit(width_ns).cast("long"), F.col("width_ns"))
    bucket = F.call_function("div", F.col("bucket"), ratio)
    return rows.withColumn("bucket", bucket).withColumn("width_ns", F.lit(width_ns).cast("long"))


def _slowest(events: DataFrame) -> DataFrame:
    return events.orderBy(F.desc("handling_ns"), "seq").limit(SLOWEST)


def _longest(stays: DataFrame) -> DataFrame:
    of_state = Window.partitionBy("machine", "state").orderBy(F.desc("stay_ns"), "seq", "entity")
    ranked = stays.where(F.col("stay_ns") > 0).select("*", F.row_number().over(of_state).alias("rank"))
    return ranked.where(F.col("rank") <= LONGEST).select(*_STAY)


def _last_of_each(transitions: DataFrame) -> DataFrame:
    last = F.max_by(F.struct(*_MOVE), "seq").alias("last")
    return transitions.groupBy("machine", "entity").agg(last).select("last.*")
