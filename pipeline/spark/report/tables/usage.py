"""Jobs over a resource manager's journal: containers' use of their nodes over time.

A container occupies its node from its transition into ALLOCATED until its transition into an end state. Running sums
are ordered by `seq`: many changes share one nanosecond of virtual time, and ordered by time alone a container could
appear to start before the container that it replaces has ended.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from pipeline.spark.report.digests.buckets import TimeBuckets
from pipeline.spark.report.tables.jobs import first_payload, has_moved

CONTAINER_END_STATES = ("COMPLETED", "EXPIRED", "RELEASED", "KILLED")
_END_STATES = len(CONTAINER_END_STATES)
WHOLE_GPU_MILLI = 1000


def container_intervals(events: DataFrame, transitions: DataFrame) -> DataFrame:
    """One row per allocated container: its node, its resources, its start and its end.

    In:  the journal's tables.
    Out: container string (unique), application, attempt, node, kind string, memory_mb, vcores_milli, gpus (whole
         devices), gpu_milli (thousandths of each of them) long, gpu_devices array<int>, started_seq,
         started_at, ended_seq, ended_at long, end_state string. The last three are null while it runs; the columns
         from the container's START are null if the journal lacks it.
    """
    starts = first_payload(events, "RMContainerEventType", "START").select("entity", "payload")
    changes = transitions.where((F.col("machine") == "RMContainer") & has_moved())
    has_started, has_ended = F.col("to_state") == "ALLOCATED", F.col("to_state").isin(*CONTAINER_END_STATES)
    # Spark aggregates integers without a sort, so one integer encodes seq and end state.
    number = F.array_position(F.lit(list(CONTAINER_END_STATES)), F.col("to_state"))
    ended = F.min(F.when(has_ended, F.col("seq") * _END_STATES + number - 1))
    return (
        changes.groupBy("entity")
        .agg(
            F.min(F.when(has_started, F.col("seq"))).alias("started_seq"),
            F.min(F.when(has_started, F.col("at"))).alias("started_at"),
            ended.alias("ended"),
            F.min(F.when(has_ended, F.col("at"))).alias("ended_at"),
        )
        .where(F.col("started_seq").isNotNull())
        .join(starts, on="entity", how="left")  # 1:0..1
        .select(
            F.col("entity").alias("container"),
            "payload.*",
            "started_seq",
            "started_at",
            F.call_function("div", F.col("ended"), F.lit(_END_STATES)).alias("ended_seq"),
            "ended_at",
            F.get(F.lit(list(CONTAINER_END_STATES)), (F.col("ended") % _END_STATES).cast("int")).alias("end_state"),
        )
    )


def changes_of_use(intervals: DataFrame, *names: str) -> DataFrame:
    """One row per start and per end of a container: seq, at, sign (1 or -1), and the columns named."""
    start = F.struct(F.col("started_seq").alias("seq"), F.col("started_at").alias("at"), F.lit(1).alias("sign"))
    end = F.struct(F.col("ended_seq").alias("seq"), F.col("ended_at").alias("at"), F.lit(-1).alias("sign"))
    return (
        intervals.select(F.explode(F.array(start, end)).alias("change"), *names)
        .where(F.col("change.seq").isNotNull())
        .select("change.*", *names)
    )


def _until_now(*keys: str) -> WindowSpec:
    return Window.partitionBy(*keys).orderBy("seq").rowsBetween(Window.unboundedPreceding, Window.currentRow)


def _signed(name: str) -> Column:
    return (F.col("sign") * F.col(name)).alias(name)


def node_usage(intervals: DataFrame) -> DataFrame:
    """One row per node and event that changed its containers' resource use: the sums after the event.

    In:  rows of `container_intervals`.
    Out: node string, seq long (unique together), at long, containers long, memory_mb long, vcores_milli long,
         gpu_milli_total long (thousandths of a GPU, over all devices); all >= 0.
    """
    taken = ["containers", "memory_mb", "vcores_milli", "gpu_milli_total"]
    amounts = {"containers": F.lit(1), "gpu_milli_total": F.col("gpus") * F.col("gpu_milli")}
    each = intervals.where(F.col("node").isNotNull()).withColumns(amounts)
    # One row per event first: resources that an event both frees and takes do not add up.
    return (
        changes_of_use(each, "node", *taken)
        .groupBy("node", "seq")
        .agg(F.min("at").alias("at"), *(F.sum(_signed(name)).alias(name) for name in taken))
        .select("node", "seq", "at", *(F.sum(name).over(_until_now("node")).alias(name) for name in taken))
    )


def gpu_device_peaks(intervals: DataFrame) -> DataFrame:
    """One row per GPU that a container held: its peak use.

    In:  rows of `container_intervals`.
    Out: node string, device int (unique together), peak_milli long (thousandths of the device).
    """
    return (
        changes_of_use(intervals.where(F.col("node").isNotNull()), "node", "gpu_milli", "gpu_devices")
        .select("node", "seq", F.explode("gpu_devices").alias("device"), _signed("gpu_milli"))
        .groupBy("node", "device", "seq")
        .agg(F.sum("gpu_milli").alias("gpu_milli"))
        .select("node", "device", F.sum("gpu_milli").over(_until_now("node", "device")).alias("taken_milli"))
        .groupBy("node", "device")
        .agg(F.max("taken_milli").alias("peak_milli"))
        .select("node", "device", "peak_milli")
    )


def node_capacities(events: DataFrame) -> DataFrame:
    """One row per registered node, with the capacity of its first registration.

    In:  journal events.
    Out: node string (unique), host, rack string, gpu_model string (nullable), memory_mb, vcores_milli, gpus long.
    """
    return first_payload(events, "RMNodeEventType", "STARTED").select(F.col("entity").alias("node"), "payload.*")


def node_peaks(usage: DataFrame, devices: DataFrame, capacities: DataFrame) -> DataFrame:
    """One row per node: its capacity and its peak use.

    In:  rows of `node_usage`, `gpu_device_peaks` and `node_capacities`.
    Out: node string (unique), rack, gpu_model string, memory_mb, peak_memory_mb, vcores_milli,
         peak_vcores_milli, gpu_milli (all devices), peak_gpu_milli, peak_gpu_device_milli (of one device),
         peak_containers long, oversubscribed boolean: the peak exceeds the capacity of any resource or of one GPU.
         Capacities are null if the node's registration is not in the journal; peaks are 0 if it never held a container.
    """
    amounts = {name: f"peak_{name}" for name in ("memory_mb", "vcores_milli", "containers")}
    amounts["gpu_milli_total"] = "peak_gpu_milli"
    peaks = usage.groupBy("node").agg(*(F.max(name).alias(peak) for name, peak in amounts.items()))
    device_peaks = devices.groupBy("node").agg(F.max("peak_milli").alias("peak_gpu_device_milli"))
    exceeded = (
        (F.col("peak_memory_mb") > F.col("memory_mb"))
        | (F.col("peak_vcores_milli") > F.col("vcores_milli"))
        | (F.col("peak_gpu_milli") > F.col("gpu_milli"))
        | (F.col("peak_gpu_device_milli") > WHOLE_GPU_MILLI)
    )
    return (
        capacities.withColumn("gpu_milli", F.col("gpus") * WHOLE_GPU_MILLI)
        .join(peaks, on="node", how="full")  # 1:1, either may be absent
        .join(device_peaks, on="node", how="left")  # 1:0..1
        .fillna(0, [*amounts.values(), "peak_gpu_device_milli"])
        .select(
            "node",
            "rack",
            "gpu_model",
            "memory_mb",
            "peak_memory_mb",
            "vcores_milli",
            "peak_vcores_milli",
            "gpu_milli",
            "peak_gpu_milli",
            "peak_gpu_device_milli",
            "peak_containers",
            F.coalesce(exceeded, F.lit(False)).alias("oversubscribed"),
        )
    )


def containers_over_time(intervals: DataFrame, start_at: int, end_at: int, buckets: int = 200) -> DataFrame:
    """One row per node and time bucket: the most containers that it held at once.

    The time from `start_at` to `end_at` (Unix ns; no container may start or end outside) is divided into `buckets`
    equal parts. Every bucket has a row, because containers that continue to run are carried forward.

    In:  rows of `container_intervals`.
    Out: node string (null: the whole cluster), bucket int from 0 (unique together), starts_at long,
         containers long. A node that never held a container has no rows.
    """
    times = TimeBuckets(start_at, max(1, -(-(end_at - start_at + 1) // buckets)), buckets)
    by_bucket = Window.partitionBy("node").orderBy("bucket")
    previous, following = by_bucket.rowsBetween(-1, -1), by_bucket.rowsBetween(1, 1)
    # Every change counts for its node and for the cluster, whose node is null.
    scopes = F.when(F.col("node").isNotNull(), F.array("node", F.lit(None))).otherwise(F.array(F.lit(None)))
    changed = (
        changes_of_use(intervals.select("*", F.explode(scopes).alias("scope")), "scope")
        .select(F.col("scope").alias("node"), "seq", times.bucket(F.col("at")).alias("bucket"), "sign")
        .select("node", "seq", "bucket", F.sum("sign").over(_until_now("node")).alias("containers"))
        .groupBy("node", "bucket")
        .agg(F.max("containers").alias("most"), F.max_by("containers", "seq").alias("last"))
    )
    # Each bucket with a change also covers the buckets up to the next change, and the first those before it.
    stretches = changed.select(
        "*",
        F.lag("last", 1, 0).over(previous).alias("before"),
        F.when(F.lag("bucket").over(previous).isNull(), 0).otherwise(F.col("bucket")).alias("from"),
        (F.lead("bucket", 1, buckets).over(following) - 1).alias("to"),
    )
    held = (
        F.when(F.col("each") < F.col("bucket"), 0)
        .when(F.col("each") == F.col("bucket"), F.greatest("most", "before"))
        .otherwise(F.col("last"))
    )
    return stretches.select("*", F.explode(F.sequence("from", "to")).alias("each")).select(
        "node",
        F.col("each").alias("bucket"),
        times.starts_at(F.col("each")).alias("starts_at"),
        held.alias("containers"),
    )
