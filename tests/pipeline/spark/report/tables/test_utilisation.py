"""Shares of nodes and queues in use over time: against literal rows. A node has 1024 MB, 8 cores and 2 GPUs."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.spark.report.digests.buckets import TimeBuckets
from pipeline.spark.report.tables.utilisation import node_utilisation, queue_utilisation

CONTAINERS = (
    "container string, application string, node string, memory_mb long, vcores_milli long, gpus long, gpu_milli long, "
    "started_at long, ended_at long"
)
CAPACITIES = "node string, memory_mb long, vcores_milli long, gpus long"
SHARES = "bucket int, starts_at long, memory_share double, vcores_share double, gpu_share double"
THREE = TimeBuckets(1000, 100, 3)


def containers(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    order = {"started_seq": F.col("started_at"), "ended_seq": F.col("ended_at")}
    return spark.createDataFrame(list(rows), CONTAINERS).withColumns(order)


def nodes(spark: SparkSession, *names: str) -> DataFrame:
    return spark.createDataFrame([(name, 1024, 8000, 2) for name in names], CAPACITIES)


def test_a_containers_use_is_weighted_by_its_time(spark: SparkSession, assert_table: Any) -> None:
    held = containers(
        spark,
        ("c1", "a", "h1", 512, 8000, 1, 500, 1050, 1250),
        ("c2", "a", "h1", 256, 0, 0, 1000, 1100, 1150),
        ("c3", "a", "h2", 1024, 4000, 2, 1000, 1275, None),
    )

    found = node_utilisation(held, nodes(spark, "h1", "h2"), THREE)

    rows = [
        ("h1", 0, 1000, 0.25, 0.5, 0.125),
        ("h1", 1, 1100, 0.625, 1.0, 0.25),
        ("h1", 2, 1200, 0.25, 0.5, 0.125),
        ("h2", 0, 1000, 0.0, 0.0, 0.0),
        ("h2", 1, 1100, 0.0, 0.0, 0.0),
        ("h2", 2, 1200, 0.25, 0.125, 0.25),
        (None, 0, 1000, 0.125, 0.25, 0.0625),
        (None, 1, 1100, 0.3125, 0.5, 0.125),
        (None, 2, 1200, 0.25, 0.3125, 0.1875),
    ]
    assert_table(found, f"node string, {SHARES}", rows)


def test_a_container_within_one_bucket_counts_in_that_bucket_only(spark: SparkSession) -> None:
    held = containers(spark, ("c1", "a", "h1", 1024, 0, 0, 0, 1125, 1150), ("c2", "a", "h1", 1024, 0, 0, 0, 1160, 1160))

    found = node_utilisation(held, nodes(spark, "h1"), THREE).where("node = 'h1'")

    assert sorted((row["bucket"], row["memory_share"]) for row in found.collect()) == [(0, 0.0), (1, 0.25), (2, 0.0)]


def test_a_node_of_unknown_capacity_has_no_shares(spark: SparkSession, assert_table: Any) -> None:
    held = containers(
        spark, ("c1", "a", "lost", 1024, 1000, 0, 0, 1000, None), ("c2", None, None, 1, 1, 1, 1, 1000, None)
    )
    one = TimeBuckets(1000, 100, 1)
    without_gpus = spark.createDataFrame([("h1", 1024, 8000, 0)], CAPACITIES)

    found = node_utilisation(held, without_gpus, one)

    rows = [("lost", 0, 1000, None, None, None), ("h1", 0, 1000, 0.0, 0.0, None), (None, 0, 1000, 0.0, 0.0, None)]
    assert_table(found, f"node string, {SHARES}", rows)


def test_queues_share_the_whole_cluster(spark: SparkSession, assert_table: Any) -> None:
    held = containers(
        spark,
        ("c1", "app1", "h1", 512, 8000, 0, 0, 1000, 1050),
        ("c2", "app2", "h2", 1024, 4000, 2, 1000, 1000, None),
        ("c3", "app9", "h2", 1024, 0, 0, 0, 1000, None),
    )
    applications = spark.createDataFrame(
        [("app1", "prod"), ("app2", "dev"), ("app3", "idle")], "id string, queue string"
    )

    found = queue_utilisation(held, applications, nodes(spark, "h1", "h2"), TimeBuckets(1000, 100, 1))

    rows = [
        ("prod", 0, 1000, 0.125, 0.25, 0.0),
        ("dev", 0, 1000, 0.5, 0.25, 0.5),
        ("idle", 0, 1000, 0.0, 0.0, 0.0),
        (None, 0, 1000, 0.5, 0.0, 0.0),
    ]
    assert_table(found, f"queue string, {SHARES}", rows)


def test_without_containers_and_nodes_the_tables_are_empty(spark: SparkSession, assert_table: Any) -> None:
    none = spark.createDataFrame([], "id string, queue string")

    assert_table(node_utilisation(containers(spark), nodes(spark), THREE), f"node string, {SHARES}", [])
    assert_table(queue_utilisation(containers(spark), none, nodes(spark), THREE), f"queue string, {SHARES}", [])
