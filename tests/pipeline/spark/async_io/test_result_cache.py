"""Results that outlive a job on Spark: which calls are made, by the service's own count."""

from __future__ import annotations

import os
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql.functions import lit
from pyspark.util import PythonEvalType

from pipeline.spark import SqliteResults, async_column, call_metrics, ordered_wait, unordered_wait

from ...counting_server import CountingServer

TIMEOUT_S = 60.0
THREADS = 4


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Callable[..., SqliteResults]:
    return lambda **options: SqliteResults(tmp_path / "results.db", **options)


class Service:
    """Calls the service, and says in `folder` in which processes."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def open(self) -> None:
        (self.folder / str(os.getpid())).touch()

    def close(self) -> None: ...

    def __call__(self, row: Row) -> tuple[int]:
        with urllib.request.urlopen(f"{self.url}/{row.id}", timeout=30) as answer:
            return (int(answer.read()),)


def rows(spark: SparkSession, end: int) -> DataFrame:
    return spark.range(0, end, 1, 2).selectExpr("id", "id % 10 AS item", "timestamp_seconds(id) AS at")


def numbers(df: DataFrame) -> list[int]:
    return sorted(row.twice for row in df.collect())


def test_a_job_that_runs_again_pays_for_new_rows_only(
    spark: SparkSession, server: CountingServer, cache: Callable[..., SqliteResults], tmp_path: Path
) -> None:
    found = []
    for end in (60, 80):
        calls = Observation()
        service = Service(server.url, tmp_path)
        options: dict[str, Any] = {"timeout": TIMEOUT_S, "cache": cache(), "metrics": calls}
        priced = unordered_wait(rows(spark, end), service, "twice long", **options)
        found.append(numbers(priced))
        metrics = call_metrics(calls)

    assert found == [[2 * key for key in range(end)] for end in (60, 80)]
    assert server.calls == {str(key): 1 for key in range(80)}
    assert (metrics.calls, metrics.remembered, metrics.completed) == (20, 60, 80)


def test_a_key_is_called_for_once_by_all_workers(
    spark: SparkSession, server: CountingServer, cache: Callable[..., SqliteResults], tmp_path: Path
) -> None:
    by_item = cache(key="item")

    priced = ordered_wait(
        rows(spark, 80), Service(server.url, tmp_path), "twice long", timeout=TIMEOUT_S, cache=by_item, keep_input=True
    )

    assert len(priced.collect()) == 80
    assert sum(server.calls.values()) == 10


def test_another_schema_has_its_own_results(
    spark: SparkSession, server: CountingServer, cache: Callable[..., SqliteResults], tmp_path: Path
) -> None:
    for schema in ("twice long", "twice int", "twice long"):
        ordered_wait(rows(spark, 5), Service(server.url, tmp_path), schema, timeout=TIMEOUT_S, cache=cache()).collect()

    assert server.calls == {str(key): 2 for key in range(5)}


def test_after_a_worker_is_killed_only_what_was_under_way_is_called_again(
    spark: SparkSession, server: CountingServer, cache: Callable[..., SqliteResults], tmp_path: Path
) -> None:
    workers = tmp_path / "workers"
    workers.mkdir()
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "cache": cache(), "pool_size": THREADS}
    service = Service(server.url, workers)
    numbers(unordered_wait(rows(spark, 150), service, "twice long", **options))
    priced = unordered_wait(rows(spark, 200), service, "twice long", **options)
    server.hold_from(150)
    failures: list[Exception] = []

    def run() -> None:
        try:
            priced.collect()
        except Exception as error:
            failures.append(error)

    job = threading.Thread(target=run)
    job.start()
    under_way = server.await_held(THREADS)
    for worker in workers.iterdir():
        os.kill(int(worker.name), signal.SIGKILL)
    job.join(TIMEOUT_S)
    server.release()
    unknown = cache().unknown()
    found = numbers(priced)

    assert failures
    assert found == [2 * key for key in range(200)]
    assert {key for key, calls in server.calls.items() if calls == 2} == under_way
    assert sum(server.calls.values()) == 200 + THREADS
    assert {key for each in unknown for key in under_way if f'["id",{key}]' in each.key} == under_way


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "results.db"}, "cache is 'results.db'; give a SqliteResults"),
        ({"cache": SqliteResults("x", key="id2")}, "id2"),
    ],
)
def test_a_cache_that_does_not_fit_is_refused_at_once(
    spark: SparkSession, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ordered_wait(rows(spark, 1), Service("", tmp_path), "twice long", timeout=1, **options)


def test_a_cache_that_cannot_be_used_fails_the_job_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    path.write_text("no database" * 500)
    priced = ordered_wait(
        rows(spark, 5),
        Service("", tmp_path),
        "twice long",
        timeout=TIMEOUT_S,
        cache=SqliteResults(path),
        on_error="drop",
    )

    with pytest.raises(Exception, match=r"results\.db: the file is damaged, or not an SQLite database"):
        priced.collect()


@pytest.mark.skipif(not hasattr(PythonEvalType, "SQL_SCALAR_ARROW_ITER_UDF"), reason="async_column needs PySpark 4.1")
def test_a_column_asks_the_cache(
    spark: SparkSession, server: CountingServer, cache: Callable[..., SqliteResults]
) -> None:
    url = server.url

    def twice(number: int, _: str) -> int:
        with urllib.request.urlopen(f"{url}/{number}", timeout=30) as answer:
            return int(answer.read())

    found = []
    for note in ("first", "second"):
        column = async_column(twice, "id", lit(note), timeout=TIMEOUT_S, cache=cache(key="id"))
        found.append(numbers(spark.range(0, 20, 1, 2).select(column.alias("twice"))))

    assert found == [[2 * key for key in range(20)]] * 2
    assert server.calls == {str(key): 1 for key in range(20)}
