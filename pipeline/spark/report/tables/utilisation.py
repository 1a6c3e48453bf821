"""Jobs over what containers take, as a share of what there is: by node and by queue, over time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.spark.report.digests.time_buckets import TimeBuckets
from pipeline.spark.report.tables.usage import WHOLE_GPU_MILLI

_TAKEN = {"memory_mb": "memory_share", "vcores_milli": "vcores_share", "gpu_milli": "gpu_share"}
_DECIMALS = 9


def node_utilisation(intervals: DataFrame, capacities: DataFrame, times: TimeBuckets) -> DataFrame:
    """One row per node and part of the run: the share of its capacity that was in use, weighted by time.

    In:  rows of `container_intervals` and `node_capacities`; no container starts or ends outside `times`.
    Out: node string (null: the whole cluster), bucket int (unique together), starts_at long, memory_share,
         vcores_share, gpu_share double >= 0 (1: all of it; null where there is none, or none is known). Nodes that
         neither registered nor held a container have no rows; all others have one for each part.
    """
    taken = _taken(intervals.where(F.col("node").isNotNull()).withColumnRenamed("node", "scope"), times)
    of_nodes = capacities.select(F.col("node").alias("scope"), *_capacities())
    nodes = of_nodes.select("scope").unionAll(taken.select("scope")).distinct()
    each = _over_time(nodes, taken, times).join(of_nodes, on="scope", how="left")  # n:0..1
    # A node that did not tell its capacity counts for nothing on either side.
    known = {name: F.when(F.col(f"{name}_capacity").isNotNull(), F.col(name)) for name in _TAKEN}
    whole = each.groupBy("bucket").agg(
        *(F.sum(column).alias(name) for name, column in known.items()),
        *(F.sum(f"{name}_capacity").alias(f"{name}_capacity") for name in _TAKEN),
    )
    return each.unionByName(whole.withColumn("scope", F.lit(None).cast("string"))).select(
        F.col("scope").alias("node"),
        "bucket",
        times.starts_at(F.col("bucket")).alias("starts_at"),
        *_shares(),
    )


def queue_utilisation(
    intervals: DataFrame, applications: DataFrame, capacities: DataFrame, times: TimeBuckets
) -> DataFrame:
    """One row per queue and part of the run: the share of the cluster that its containers had, weighted by time.

    In:  rows of `container_intervals`, `applications` and `node_capacities`; no container starts or ends outside
         `times`.
    Out: queue string (null: not in the journal), bucket int (unique together), starts_at long, memory_share,
         vcores_share, gpu_share double >= 0 (of the whole cluster; null where it has none, or none is known). Every
         queue to which an application was submitted has a row for each part.
    """
    queues = applications.select(F.col("id").alias("application"), F.coalesce("queue", F.lit("")).alias("scope"))
    of_queues = intervals.join(queues, on="application", how="left").fillna("", ["scope"])  # n:0..1
    taken = _taken(of_queues, times)
    cluster = capacities.select(*_capacities()).agg(
        *(F.sum(f"{name}_capacity").alias(f"{name}_capacity") for name in _TAKEN)
    )
    scopes = queues.select("scope").unionAll(taken.select("scope")).distinct()
    # One row on the right: an aggregate without keys.
    each = _over_time(scopes, taken, times).join(F.broadcast(cluster), how="cross")
    return each.select(
        F.nullif("scope", F.lit("")).alias("queue"),
        "bucket",
        times.starts_at(F.col("bucket")).alias("starts_at"),
        *_shares(),
    )


def _capacities() -> list[Column]:
    gpu_milli = F.col("gpus") * WHOLE_GPU_MILLI
    amounts = {"memory_mb": F.col("memory_mb"), "vcores_milli": F.col("vcores_milli"), "gpu_milli": gpu_milli}
    return [amount.alias(f"{name}_capacity") for name, amount in amounts.items()]


def _shares() -> list[Column]:
    return [_share(name).alias(share) for name, share in _TAKEN.items()]


def _share(name: str) -> Column:
    share = F.try_divide(F.col(name), F.col(f"{name}_capacity"))
    # Sums of doubles that should be nothing can be a little less.
    return F.when(share.isNotNull(), F.greatest(F.lit(0.0), F.round(share, _DECIMALS)))


def _taken(intervals: DataFrame, times: TimeBuckets) -> DataFrame:
    """Per scope and part in which a container started or ended: scope, bucket, and of each amount two sums.

    NAME_level: what is taken more (or less) at the part's end than at its beginning; NAME_part: what of that there is
    in this part already, weighted by time.
    """
    amounts = {
        "memory_mb": F.col("memory_mb"),
        "vcores_milli": F.col("vcores_milli"),
        "gpu_milli": F.col("gpus") * F.col("gpu_milli"),
    }
    change = F.explode(
        F.array(
            F.struct(F.col("started_at").alias("at"), F.lit(1).alias("sign")),
            F.struct(F.col("ended_at").alias("at"), F.lit(-1).alias("sign")),
        )
    )
    changes = (
        intervals.select(
            "scope", change.alias("change"), *(F.coalesce(a, F.lit(0)).alias(n) for n, a in amounts.items())
        )
        .where(F.col("change.at").isNotNull())
        .select("scope", "change.at", "change.sign", times.bucket(F.col("change.at")).alias("bucket"), *amounts)
    )
    left = (times.starts_at(F.col("bucket")) + times.width_ns - F.col("at")) / times.width_ns
    return changes.groupBy("scope", "bucket").agg(
        *(F.sum(F.col("sign") * F.col(name)).alias(f"{name}_level") for name in amounts),
        *(F.sum(F.col("sign") * F.col(name) * left).alias(f"{name}_part") for name in amounts),
    )


def _over_time(scopes: DataFrame, taken: DataFrame, times: TimeBuckets) -> DataFrame:
    """Per scope and part of the run, all of them: of each amount the mean that was taken."""
    before = Window.partitionBy("scope").orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    every = scopes.select("scope", F.explode(F.sequence(F.lit(0), F.lit(times.number - 1))).alias("bucket"))
    mean = {
        name: F.coalesce(F.sum(f"{name}_level").over(before), F.lit(0)) + F.coalesce(F.col(f"{name}_part"), F.lit(0.0))
        for name in _TAKEN
    }
    return every.join(taken, on=["scope", "bucket"], how="left").select(  # 1:0..1
        "scope", "bucket", *(column.alias(name) for name, column in mean.items())
    )
