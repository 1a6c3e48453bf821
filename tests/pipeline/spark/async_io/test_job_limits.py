"""The share of a job's rate limit that each task gets, by the session, and by the service's own log of calls."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from dispatcher.aio import RateLimit
from pipeline.spark import unordered_wait
from pipeline.spark.async_io.job_limits import TasksAtOnce, share_of_task, slots_of, tasks_at_once
from pipeline.streaming import AdaptiveRateLimit

from ... import limited_service
from ...limited_service import LimitedService, client, token_bucket

TIMEOUT_S = 60.0
CALLS_PER_S = 40

cloudpickle.register_pickle_by_value(limited_service)  # workers cannot import the tests


def slots(settings: dict[str, str], cores: int = 0) -> TasksAtOnce:
    """`cores`: of the executors there are; 0: they may not be counted."""

    def count_cores() -> int:
        assert cores, "counted the cores, which takes a job"
        return cores

    return slots_of(settings, count_cores)


YARN = {"spark.master": "yarn", "spark.executor.instances": "5"}
DYNAMIC = {"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "4"}
MOST = "spark.dynamicAllocation.maxExecutors"


@pytest.mark.parametrize(
    ("settings", "cores", "count"),
    [
        ({"spark.master": "local"}, 0, 1),
        ({"spark.master": "local[3]"}, 0, 3),
        ({"spark.master": "local[6,4]"}, 0, 6),
        ({"spark.master": "local[6]", "spark.task.cpus": "4"}, 0, 1),
        ({"spark.master": "local-cluster[2,3,1024]"}, 0, 6),
        ({"spark.master": "local-cluster[2,3,1024]", "spark.task.cpus": "2"}, 0, 2),
        (YARN, 0, 5),
        (YARN | {"spark.executor.cores": "4"}, 0, 20),
        ({"spark.master": "k8s://https://host:443", "spark.executor.instances": "3"}, 0, 3),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "12", "spark.task.cpus": "3"}, 0, 4),
        # As many executors as there may be.
        (DYNAMIC | {MOST: "10", "spark.executor.instances": "2"}, 0, 40),
        ({"spark.master": "local[*]"}, 7, 7),
    ],
    ids=str,
)
def test_the_configuration_says_how_many_tasks_run_at_once(settings: dict[str, str], cores: int, count: int) -> None:
    found = slots(settings, cores)

    assert (found.count, found.may_grow) == (count, False)
    assert MOST not in settings or MOST in found.reason


@pytest.mark.parametrize("settings", [{}, DYNAMIC, DYNAMIC | {MOST: "2147483647"}], ids=str)
def test_without_a_bound_the_executors_there_are_count_and_may_grow(settings: dict[str, str]) -> None:
    now = slots(settings, cores=8)

    assert (now.count, now.may_grow) == (8, True)


def test_fewer_partitions_than_cores_are_fewer_tasks(spark: SparkSession) -> None:
    table = spark.range(0, 100, 1, 8)

    assert tasks_at_once(spark, table).count == 2
    assert tasks_at_once(spark, table.coalesce(1)) == TasksAtOnce(1, "1 partition")
    assert tasks_at_once(spark, spark.sql("SELECT * FROM VALUES (1)")).count == 1
    assert tasks_at_once(spark, table.groupBy("id").count()).count == 2
    assert tasks_at_once(spark, None).count == 2


def test_the_partitions_of_a_stream_are_not_known(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").option("numPartitions", 1).load()

    assert tasks_at_once(spark, stream).count == 2


def test_the_partitions_over_connect_are_not_known(connect: Any) -> None:
    assert tasks_at_once(connect, connect.range(0, 10, 1, 1)).count == 2


def test_a_share_is_said_in_the_log(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pipeline.spark")

    share = share_of_task(RateLimit(100), spark, spark.range(0, 100, 1, 8), "ordered_wait(price)")
    adaptive = share_of_task("adaptive", spark, None, "ordered_wait(price)")

    assert share == RateLimit(50, scope="worker")
    assert adaptive == AdaptiveRateLimit(10, scope="worker")
    assert caplog.messages == [
        "ordered_wait(price): rate limit 100/s of the job: 50/s for each of 2 tasks at once (2 cores of local[2])",
        "ordered_wait(price): adaptive rate limit of the job: from 10/s for each of 2 tasks at once "
        "(2 cores of local[2])",
    ]


@pytest.mark.parametrize(
    "limit", [None, RateLimit(100, scope="worker"), RateLimit(100, scope="task"), RateLimit(100).split(4)], ids=str
)
def test_a_limit_that_is_not_the_job_s_is_not_divided(spark: SparkSession, limit: RateLimit | None) -> None:
    assert share_of_task(limit, spark, None, "ordered_wait(price)") == limit


# ------------------------------------------------------------------------------------- by the service's log of calls


def call_for_each(spark: SparkSession, rows: int, tasks: int, service: LimitedService, rate_limit: Any) -> None:
    table = spark.range(0, rows, 1, tasks)
    found = unordered_wait(table, client(service.port), "id long", timeout=TIMEOUT_S, rate_limit=rate_limit).collect()
    assert sorted(row.id for row in found) == list(range(rows))


def test_a_limit_holds_for_the_job_though_two_tasks_run(spark: SparkSession) -> None:
    """The service saw twice the limit."""
    with LimitedService() as service:
        call_for_each(spark, 100, 2, service, RateLimit(CALLS_PER_S, burst=1))

    assert service.took_s() >= 0.65 * 100 / CALLS_PER_S  # the first calls may come late


@pytest.mark.slow
def test_two_tasks_follow_a_service_s_limit(spark: SparkSession) -> None:
    """At most 5 % of the calls are refused.

    On a quiet machine they take less than 1.3 times the ideal time of 5 s, and at the first rate 50 s.
    """
    with LimitedService(token_bucket([(0.0, 200.0)])) as service:
        call_for_each(spark, 1000, 2, service, "adaptive")

    assert len(service.accepted_s) == 1000
    assert service.took_s() <= 6 * 5
    assert service.refused_share <= 0.05
