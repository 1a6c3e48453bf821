"""Jobs over resource use as a share of capacity: by node and by queue, over time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.spark.report.digests.buckets import TimeBuckets
from pipeline.spark.report.tables.usage import WHOLE_GPU_MILLI, changes_of_use

_TAKEN = {"memory_mb": "memory_share", "vcores_milli": "vcores_share", "gpu_milli": "gpu_share"}
_DECIMALS = 9


def node_utilisation(intervals: DataFrame, capacities: DataFrame, times: TimeBuckets) -> DataFrame:
    """One row per node and interval: the share of its capacity in use, weighted by time.

    In:  rows of `container_intervals` and `node_capacities`; no container starts or ends outside `times`.
    Out: node string (null: the whole cluster), bucket int (unique together), starts_at long, memory_share,
         vcores_share, gpu_share double >= 0 (1: all of it; null if the capacity is 0 or unknown). Each node that
         registered or held a container has a row for every interval.
    """
    taken = _taken(intervals.where(F.col("node").isNotNull()).withColumnRenamed("node", "scope"), times)
    of_nodes = capacities.select(F.col("node").alias("scope"), *_capacities())
    nodes = of_nodes.select("scope").unionAll(taken.select("scope")).distinct()
    each = _over_time(nodes, taken, times).join(of_nodes, on="scope", how="left")  # n:0..1
    # A node of unknown capacity counts neither as capacity nor as use.
    known = {name: F.when(F.col(f"{name}_capacity").isNotNull(), F.col(name)) for name in _TAKEN}
    whole = each.groupBy("bucket").agg(
        *(F.sum(column).alias(name) for name, column in known.items()),
        *(F.sum(f"{name}_capacity").alias(f"{name}_capacity") for name in _TAKEN),
    )
    both = each.unionByName(whole.withColumn("scope", F.lit(None).cast("string")))
    return _shares(both, F.col("scope").alias("node"), times)


def queue_utilisation(
    intervals: DataFrame, applications: DataFrame, capacities: DataFrame, times: TimeBuckets
) -> DataFrame:
    """One row per queue and interval: its containers' share of the cluster, weighted by time.

    In:  rows of `container_intervals`, `applications` and `node_capacities`; no container starts or ends outside
         `times`.
    Out: queue string (null: not in the journal), bucket int (unique together), starts_at long, memory_share,
         vcores_share, gpu_share double >= 0 (of the whole cluster; null if its capacity is 0 or unknown). Every queue
         with an application has a row for every interval.
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
    return _shares(each, F.nullif("scope", F.lit("")).alias("queue"), times)


def _capacities() -> list[Column]:
    gpu_milli = F.col("gpus") * WHOLE_GPU_MILLI
    amounts = {"memory_mb": F.col("memory_mb"), "vcores_milli": F.col("vcores_milli"), "gpu_milli": gpu_milli}
    return [amount.alias(f"{name}_capacity") for name, amount in amounts.items()]


def _shares(each: DataFrame, scope: Column, times: TimeBuckets) -> DataFrame:
    shares = {share: F.try_divide(F.col(name), F.col(f"{name}_capacity")) for name, share in _TAKEN.items()}
    return each.select(
        scope,
        "bucket",
        times.starts_at(F.col("bucket")).alias("starts_at"),
        # Rounding errors can make a sum slightly negative.
        *(
            F.when(share.isNotNull(), F.greatest(F.lit(0.0), F.round(share, _DECIMALS))).alias(name)
            for name, share in shares.items()
        ),
    )


def _taken(intervals: DataFrame, times: TimeBuckets) -> DataFrame:
    """Per scope and interval in which a container started or ended: scope, bucket, and two sums of each amount.

    NAME_level: the change of use from the interval's start to its end; NAME_part: that change's contribution to the
    interval's mean.
    """
    amounts = {name: F.coalesce(name, F.lit(0)) for name in ("memory_mb", "vcores_milli")}
    amounts["gpu_milli"] = F.coalesce(F.col("gpus") * F.col("gpu_milli"), F.lit(0))
    changes = changes_of_use(intervals.withColumns(amounts), "scope", *amounts).withColumn(
        "bucket", times.bucket(F.col("at"))
    )
    left = (times.starts_at(F.col("bucket")) + times.width_ns - F.col("at")) / times.width_ns
    return changes.groupBy("scope", "bucket").agg(
        *(F.sum(F.col("sign") * F.col(name)).alias(f"{name}_level") for name in amounts),
        *(F.sum(F.col("sign") * F.col(name) * left).alias(f"{name}_part") for name in amounts),
    )


def _over_time(scopes: DataFrame, taken: DataFrame, times: TimeBuckets) -> DataFrame:
    """One row per scope and interval, without gaps: the mean use of each amount."""
    before = Window.partitionBy("scope").orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    every = scopes.select("scope", F.explode(F.sequence(F.lit(0), F.lit(times.number - 1))).alias("bucket"))
    mean = {
        name: F.coalesce(F.sum(f"{name}_level").over(before), F.lit(0)) + F.coalesce(F.col(f"{name}_part"), F.lit(0.0))
        for name in _TAKEN
    }
    return every.join(taken, on=["scope", "bucket"], how="left").select(  # 1:0..1
        "scope", "bucket", *(column.alias(name) for name, column in mean.items())
    )
