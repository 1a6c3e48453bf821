"""What it costs to look at a few rows of many, by the service's own count, and how soon a row reaches its reader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.spark import ordered_wait, unordered_wait

from . import counting_service
from .counting_service import AskService, CountingService

TIMEOUT_S = 60.0
SHIPPED = (counting_service,)
CONCURRENCY = 100
"""The default."""

Wait = Callable[..., DataFrame]


def asked(spark: SparkSession, service: CountingService, wait: Wait = unordered_wait) -> DataFrame:
    return wait(spark.range(0, 50_000, 1, 2), AskService(service.port), "id long", timeout=TIMEOUT_S)


LOOKS: dict[str, tuple[int, Callable[[DataFrame], list[Any]]]] = {
    "take": (5, lambda table: table.take(5)),
    "limit": (10, lambda table: table.limit(10).collect()),
}


@pytest.mark.parametrize(("wait", "look", "delay_s"), [(unordered_wait, "take", 0.01), (ordered_wait, "limit", 1.0)])
def test_a_look_at_a_few_rows_costs_the_calls_of_a_task_beyond_them(
    spark: SparkSession, wait: Wait, look: str, delay_s: float
) -> None:
    rows, action = LOOKS[look]
    with CountingService(delay_s) as service:
        found = action(asked(spark, service, wait))

        assert len({row.id for row in found}) == rows
        service.wait_until_quiet()
        assert service.calls <= rows + CONCURRENCY


def test_a_limit_in_front_of_an_aggregate_costs_the_calls_of_each_task(spark: SparkSession) -> None:
    with CountingService(0.01) as service:
        assert asked(spark, service).limit(10).count() == 10

        service.wait_until_quiet()
        assert service.calls <= 2 * (10 + CONCURRENCY)


def test_calls_of_a_cancelled_job_are_cut_off_while_none_of_them_ends(spark: SparkSession) -> None:
    failures = []

    def collect() -> None:
        try:
            asked(spark, service).collect()
        except Exception as error:
            failures.append(error)

    with CountingService(None) as service:
        job = threading.Thread(target=collect)
        job.start()
        service.wait_for_calls(2 * CONCURRENCY)

        spark.sparkContext.cancelAllJobs()

        service.wait_until_quiet(within_s=TIMEOUT_S / 2)  # before the calls are late
        job.join(TIMEOUT_S)
        assert service.cut_off == service.calls == 2 * CONCURRENCY
        assert "cancelled" in str(failures[0])
