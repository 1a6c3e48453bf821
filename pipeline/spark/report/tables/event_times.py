"""Jobs over a journal's events: the cost of each type, in total and over time, and the depth of the queue.

Queue and handling times are wall-clock even in a replay; points in time are in the clock of the run.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.spark.report.digests.buckets import TimeBuckets, grouped, summed_up

NS_PER_MS = 1e6
NS_PER_US = 1e3
_TYPE = ["event_class", "event_type"]
_MEASURES = {"queue_ns": "queue", "handling_ns": "handling"}


def event_groups(events: DataFrame, times: TimeBuckets) -> DataFrame:
    """Histograms of the events' times, the input of `events_by_type` and `event_times`.

    In:  journal events: event_class, event_type, outcome, started_at, queue_ns, handling_ns.
    Out: event_class, event_type, outcome string, bucket int (of `times`, by started_at), measure string (queue_ns or
         handling_ns), log_bucket int (unique together), count long > 0, total, least, greatest long (ns).
    """
    read = events.select(*_TYPE, "outcome", times.bucket(F.col("started_at")).alias("bucket"), *_MEASURES)
    keys = [*_TYPE, "outcome", "bucket", "measure"]
    measured = (read.withColumn("measure", F.lit(measure)) for measure in _MEASURES)
    return reduce(
        DataFrame.unionAll, (grouped(rows, keys, measure) for rows, measure in zip(measured, _MEASURES, strict=True))
    )


def events_by_type(groups: DataFrame) -> DataFrame:
    """One row per event type: its count and its cost in wall-clock time.

    In:  rows of `event_groups`; several rows may have the same keys.
    Out: event_class string, event_type string (unique together), count long > 0, failed long, unregistered
         long, queue_mean_us, queue_p99_us, handling_mean_us, handling_p99_us, handling_total_ms double >= 0; means and
         total exact, percentiles off by 1.6 % at most.
    """
    outcomes = (
        groups.where(F.col("measure") == "handling_ns")
        .groupBy(*_TYPE)
        .agg(*(of_outcome(outcome).alias(outcome) for outcome in ("failed", "unregistered")))
    )
    queue, handling = _measured(groups, _TYPE)
    return (
        handling.join(queue, on=_TYPE, how="inner")  # 1:1, each event has both
        .join(outcomes, on=_TYPE, how="inner")  # 1:1
        .select(
            *_TYPE,
            "count",
            "failed",
            "unregistered",
            *(f"{measure}_{figure}_us" for measure in _MEASURES.values() for figure in ("mean", "p99")),
            (F.col("handling_total_ns") / NS_PER_MS).alias("handling_total_ms"),
        )
    )


def event_times(groups: DataFrame, times: TimeBuckets) -> DataFrame:
    """One row per event type and interval in which the type was handled: count and cost.

    In:  rows of `event_groups` over `times`; several rows may have the same keys.
    Out: bucket int, starts_at long, event_class, event_type string (unique together with bucket), count long > 0,
         queue_mean_us, queue_p50_us, queue_p99_us, queue_max_us, handling_mean_us, handling_p50_us, handling_p99_us,
         handling_max_us double >= 0; percentiles off by 1.6 % at most, the rest exact.
    """
    keys = ["bucket", *_TYPE]
    queue, handling = _measured(groups, keys)
    figures = ("mean_us", "p50_us", "p99_us", "max_us")
    return handling.join(queue, on=keys, how="inner").select(  # 1:1, each event has both
        "bucket",
        times.starts_at(F.col("bucket")).alias("starts_at"),
        *_TYPE,
        "count",
        *(f"{measure}_{figure}" for measure in _MEASURES.values() for figure in figures),
    )


def of_outcome(outcome: str) -> Column:
    return F.coalesce(F.sum(F.when(F.col("outcome") == outcome, F.col("count"))), F.lit(0).cast("long"))


def _measured(groups: DataFrame, keys: list[str]) -> tuple[DataFrame, DataFrame]:
    """For each measure one row per combination of keys, with prefixed figures; only `handling` has count."""
    queue, handling = (
        summed_up(groups.where(F.col("measure") == measure), keys, {"p50": 0.5, "p99": 0.99}).select(
            *keys,
            *(["count"] if measure == "handling_ns" else []),
            F.col("total").alias(f"{name}_total_ns"),
            (F.col("total") / F.col("count") / NS_PER_US).alias(f"{name}_mean_us"),
            (F.col("p50") / NS_PER_US).alias(f"{name}_p50_us"),
            (F.col("p99") / NS_PER_US).alias(f"{name}_p99_us"),
            (F.col("greatest") / NS_PER_US).alias(f"{name}_max_us"),
        )
        for measure, name in _MEASURES.items()
    )
    return queue, handling


def slowest_handlers(events: DataFrame, number: int = 100) -> DataFrame:
    """The `number` events with the longest handling; among equals the lowest seq wins.

    In:  journal events: seq, event_class, event_type, entity, handling_ns, started_at.
    Out: seq long (unique), event_class, event_type string, entity string (nullable), handling_ms double, at long
         (start of handling).
    """
    return (
        events.orderBy(F.desc("handling_ns"), "seq")
        .limit(number)
        .select(
            "seq",
            *_TYPE,
            "entity",
            (F.col("handling_ns") / NS_PER_MS).alias("handling_ms"),
            F.col("started_at").alias("at"),
        )
    )


def arrivals_and_starts(events: DataFrame, times: TimeBuckets) -> DataFrame:
    """The input of `queue_depth`: one row per interval of `times` in which an event arrived or was started.

    In:  journal events: enqueued_at, started_at.
    Out: bucket int (unique), arrivals, starts long.
    """
    arrived, started = (
        events.select(times.bucket(F.col(name)).alias("bucket"), F.lit(name).alias("what"))
        for name in ("enqueued_at", "started_at")
    )
    counted = arrived.unionAll(started).groupBy("bucket")
    return counted.agg(
        F.count_if(F.col("what") == "enqueued_at").alias("arrivals"),
        F.count_if(F.col("what") == "started_at").alias("starts"),
    )


def queue_depth(changes: DataFrame, times: TimeBuckets, parts: int = 1) -> DataFrame:
    """One row per interval of the run: how many events waited to be handled.

    Counts journaled events only: events that were never handled do not count as waiting, and the final depth is 0. In
    virtual time an event is handled at the instant of its arrival, so its queue appears empty; `event_times` has the
    wall-clock time in the queue.

    In:  rows of `arrivals_and_starts` over intervals that divide each of `times` into `parts`; several rows may have
         the same bucket.
    Out: bucket int (unique, all of `times`), starts_at long, arrivals, starts long, depth long (at its end),
         greatest_depth long (the maximum at its ends and the borders of its parts). No rows without events.
    """
    each = Window.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    every = changes.agg(F.count("*").alias("found")).where(F.col("found") > 0)
    all_buckets = every.select(F.explode(F.sequence(F.lit(0), F.lit(times.number * parts - 1))).alias("bucket"))
    summed = changes.groupBy("bucket").agg(F.sum("arrivals").alias("arrivals"), F.sum("starts").alias("starts"))
    # One partition with one row per part.
    fine = (
        all_buckets.join(summed, on="bucket", how="left")  # 1:0..1
        .fillna(0, ["arrivals", "starts"])
        .select("*", F.sum(F.col("arrivals") - F.col("starts")).over(each).alias("depth"))
        .select("*", F.lag("depth", 1, 0).over(Window.orderBy("bucket")).alias("before"))
    )
    bucket = F.call_function("div", F.col("bucket"), F.lit(parts)).cast("int")
    return (
        fine.groupBy(bucket.alias("coarse"))
        .agg(
            F.sum("arrivals").alias("arrivals"),
            F.sum("starts").alias("starts"),
            F.max_by("depth", "bucket").alias("depth"),
            F.max(F.greatest("before", "depth")).alias("greatest_depth"),
        )
        .select(
            F.col("coarse").alias("bucket"),
            times.starts_at(F.col("coarse")).alias("starts_at"),
            "arrivals",
            "starts",
            "depth",
            "greatest_depth",
        )
    )
