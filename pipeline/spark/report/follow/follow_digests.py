"""Digests of micro-batches, from which the batch report's own jobs compute its tables.

A digest is one table with rows of several kinds; columns that a kind lacks are null. `merge_events` and
`merge_transitions` merge the digests of a journal's parts into the digest of the whole.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.spark.report.digests.event_digest import (
    DEPTH_BUCKETS,
    DEPTHS_PER_BUCKET,
    KEPT,
    READS,
    SLOWEST,
    TIME_BUCKETS,
)
from pipeline.spark.report.digests.time_buckets import TimeBuckets
from pipeline.spark.report.digests.transition_digest import LONGEST
from pipeline.spark.report.tables.event_times import arrivals_and_starts, event_groups
from pipeline.spark.report.tables.jobs import has_moved
from pipeline.spark.report.tables.lifecycles import stay_groups, stretches
from pipeline.spark.report.tables.usage import CONTAINER_END_STATES
from pipeline.spark.source.journal import PAYLOADS

EVENT_COLUMNS = ("dispatcher", *READS, "finished_at")
"""The columns of journal events that following reads."""

_GROUP = ["event_class", "event_type", "outcome", "bucket", "width_ns", "measure", "log_bucket"]
_KIND = ["machine", "from_state", "event_type", "to_state", "valid"]
_STAY = ["machine", "entity", "state", "seq", "from_at", "stay_ns"]
_MOVE = ["seq", "machine", "entity", "from_state", "event_type", "to_state", "at", "valid"]
_STRETCH = ["machine", "entity", "from_state", "seq", "at", "to_state", "last_seq", "last_at"]


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
    totals = events.agg(
        F.count("*").alias("count"),
        F.count_if(F.col("outcome") == "failed").alias("failed"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        F.min("enqueued_at").alias("first_at"),
        F.max("finished_at").alias("last_at"),
    )
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
    figures = {"count": F.sum, "total": F.sum, "least": F.min, "greatest": F.max}
    groups = _kind(digests, "group").transform(_widened, times.width_ns)
    changes = _kind(digests, "depth").transform(_widened, depths.width_ns)
    return _of_kinds(
        totals=totals,
        group=groups.groupBy(*_GROUP).agg(*(of(name).alias(name) for name, of in figures.items())),
        depth=changes.groupBy("bucket", "width_ns").agg(*(F.sum(name).alias(name) for name in ("arrivals", "starts"))),
        kept=_kind(digests, "kept").select(*KEPT, "payload"),
        slow=_slowest(_kind(digests, "slow").select(*KEPT)),
    ).select(*digests.columns)


def over_time(rows: DataFrame, times: TimeBuckets) -> DataFrame:
    """Convert buckets that count widths since 1970 into buckets of `times`, whose width is a multiple of theirs.

    In:  bucket, width_ns long, and others. Out: the same without width_ns, with bucket int of `times`.
    """
    columns = [name for name in rows.columns if name != "width_ns"]
    relative = F.col("bucket") - times.start_at // times.width_ns
    return _widened(rows, times.width_ns).withColumn("bucket", relative.cast("int")).select(*columns)


def digest_transitions(transitions: DataFrame) -> DataFrame:
    """The digest of some transitions, in rows of six kinds.

    In:  journal transitions with entered_seq and stay_ns, as from `with_stays`.
    Out: kind string, and for each kind:
         totals: count, first_at, last_at long; one row.
         count: machine, from_state, event_type, to_state string, valid boolean (unique together), count long > 0.
         stay: rows of `stay_groups`.
         long_stay: rows of `stays`, the `LONGEST` longest of each state.
         stretch: rows of `stretches`.
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
    of_containers = F.col("to_state").isin("ALLOCATED", *CONTAINER_END_STATES)
    is_kept = F.col("machine").isin("RMApp", "RMAppAttempt") | ((F.col("machine") == "RMContainer") & of_containers)
    staying = transitions.where((F.col("machine") == "RMApp") & F.col("valid") & ~has_moved()).select(*_MOVE)
    totals = transitions.agg(F.count("*").alias("count"), F.min("at").alias("first_at"), F.max("at").alias("last_at"))
    return _of_kinds(
        totals=totals,
        count=transitions.groupBy(*_KIND).agg(F.count("*").alias("count")),
        stay=stay_groups(ended),
        long_stay=_longest(ended),
        stretch=stretches(transitions).select(*_STRETCH),
        move=transitions.where(has_moved() & is_kept).select(*_MOVE).unionAll(_last_of_each(staying)),
    )


def merge_transitions(digests: DataFrame) -> DataFrame:
    """Merge digests of `digest_transitions` into one."""
    moves = _kind(digests, "move").select(*_MOVE)
    first, last = F.struct("seq", "at", "from_state"), F.struct("last_seq", "last_at", "to_state")
    return _of_kinds(
        totals=_kind(digests, "totals").agg(
            F.coalesce(F.sum("count"), F.lit(0)).alias("count"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
        ),
        count=_kind(digests, "count").groupBy(*_KIND).agg(F.sum("count").alias("count")),
        stay=_kind(digests, "stay")
        .groupBy("machine", "state", "log_bucket")
        .agg(
            F.sum("count").alias("count"),
            F.sum("total").alias("total"),
            F.min("least").alias("least"),
            F.max("greatest").alias("greatest"),
        ),
        long_stay=_longest(_kind(digests, "long_stay").select(*_STAY)),
        stretch=_kind(digests, "stretch")
        .groupBy("machine", "entity")
        .agg(F.min(first).alias("first"), F.max(last).alias("last"))
        .select("machine", "entity", "first.from_state", "first.seq", "first.at", "last.*")
        .select(*_STRETCH),
        move=moves.where(has_moved()).unionAll(_last_of_each(moves.where(~has_moved()))),
    ).select(*digests.columns)


def _of_kinds(**kinds: DataFrame) -> DataFrame:
    each = [rows.select(F.lit(kind).alias("kind"), "*") for kind, rows in kinds.items()]
    return reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), each)


def _kind(digests: DataFrame, kind: str) -> DataFrame:
    return digests.where(F.col("kind") == kind)


def _widths(totals: DataFrame) -> tuple[TimeBuckets, TimeBuckets]:
    """The time buckets of groups and of depths, for the time in a row of totals."""
    [row] = totals.select("first_at", "last_at").collect()
    start_at, end_at = row["first_at"] or 0, row["last_at"] or 0
    depths = TimeBuckets.over(start_at, end_at, DEPTH_BUCKETS)
    part_ns = max(1, depths.width_ns // DEPTHS_PER_BUCKET)
    parts = TimeBuckets(depths.start_at, part_ns, depths.number * depths.width_ns // part_ns)
    return TimeBuckets.over(start_at, end_at, TIME_BUCKETS), parts


def _from_1970(rows: DataFrame, times: TimeBuckets) -> DataFrame:
    absolute = F.col("bucket").cast("long") + times.start_at // times.width_ns
    return rows.withColumn("bucket", absolute).withColumn("width_ns", F.lit(times.width_ns).cast("long"))


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
    rest: list[Column] = [F.max_by(F.struct(*_MOVE), "seq").alias("last")]
    return transitions.groupBy("machine", "entity").agg(*rest).select("last.*").select(*_MOVE)
