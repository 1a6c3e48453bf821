"""Asynchronous I/O: on Spark against the limit of its capacity, without latency, and beside its peers.

The rows of all chosen tables run in rounds, one after the other, on one Spark session. A rate on Spark is measured from
the submission of the stage with the calls to its completion, after a warm-up that starts the Python workers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from async_io.edges import edges
from async_io.http_service import LATENCY_MS, http_service
from async_io.limits import limit_costs, limits
from async_io.memory import memory
from async_io.millions import millions
from async_io.row_costs import row_costs
from async_io.service import CAPACITY, LATENCY_S, TASKS, limit, mean_tail_latency_s
from async_io.workers import (
    SparkWorker,
    cores_of,
    neutral_took_s,
    pyflink_python,
    pyflink_took_s,
)
from measure import Figures, RatePart, RateTable, Row, Settings

PARTS = (
    "latency",
    "tail",
    "none",
    "rows",
    "tasks",
    "lookup",
    "blocking",
    "peers",
    "http",
    "limits",
    "limit_costs",
    "edges",
    "memory",
    "millions",
)
ROWS_PER_TASK = 10
SETTING = f"{TASKS} tasks, capacity {CAPACITY}, {LATENCY_S * 1000:g} ms a call"


class JobRow(Row):
    """Something that starts again for each run, so there is nothing to warm up."""

    def warm_up(self) -> None: ...


@dataclass
class SparkRow(Row):
    """Warms up on fewer rows, of which it looks whether all have come out."""

    check: Callable[[int], None] = lambda count: None

    def warm_up(self) -> None:
        self.check(max(20, self.count // 20))


@dataclass
class Tables:
    """Makes the tables of the parts chosen."""

    spark: SparkWorker
    settings: Settings
    pyflink: Path | None

    def calls(self, with_peers: bool) -> RateTable:
        """Calls of 10 ms, with and without the operator."""
        rows = [
            self._on_spark("unordered", "unordered_wait", "unordered-wait", 200_000),
            self._on_spark("ordered", "ordered_wait", "ordered-wait", 200_000),
            self._on_spark("column", "async_column", "column-call", 200_000),
            self._alone("bare", "a bare asyncio loop, no Spark", 200_000),
        ]
        if with_peers:
            rows += [
                self._on_spark("gather", "mapInArrow, gather of 100 at a time", "gather_chunks", 100_000),
                self._on_spark("semaphore", "mapInArrow, gather of a batch, semaphore", "gather_semaphore", 100_000),
                self._on_spark("level", "Spark's arrow.concurrency.level 100", "concurrency_level", 60_000),
                self._on_spark("blocking", "mapInArrow, blocking calls", "blocking", 600),
                *(self._on_pyflink(self.pyflink) if self.pyflink is not None else ()),
            ]
        return RateTable("async", f"Rows/s, {SETTING}; the limit is {limit():,.0f}/s", rows)

    def tail(self) -> RateTable:
        """1 call in 100 takes 500 ms."""
        count = self.settings.count(200_000)
        rows = [
            self._on_spark("unordered", "unordered_wait", "unordered-wait_with_tail", 200_000),
            self._on_spark("ordered", "ordered_wait", "ordered-wait_with_tail", 100_000),
            self._on_spark("column", "async_column", "column-call_with_tail", 100_000),
            self._on_spark("semaphore", "mapInArrow, gather of a batch, semaphore", "gather_semaphore_tail", 50_000),
        ]
        most = limit(mean_tail_latency_s(count))
        return RateTable("async-tail", f"Rows/s where 1 call in 100 takes 500 ms; the limit is {most:,.0f}/s", rows)

    def none(self) -> list[RateTable]:
        """The operator's own cost."""
        neutral = [
            self._alone("task-ordered", "StreamTask, AsyncWaitOperator, ordered"),
            self._alone("task-unordered", "StreamTask, AsyncWaitOperator, unordered"),
            self._alone("wait-ordered", "ordered_wait"),
            self._alone("wait-unordered", "unordered_wait"),
            self._alone("gather", "asyncio.gather of 100 at a time"),
        ]
        on_spark = [
            self._on_spark("unordered", "unordered_wait", "unordered-echo", 1_000_000),
            self._on_spark("ordered", "ordered_wait", "ordered-echo", 1_000_000),
            self._on_spark("column", "async_column", "column-call_without_latency", 1_000_000),
            self._on_spark("gather", "mapInArrow, gather of 100 at a time", "gather_chunks_none", 1_000_000),
        ]
        cores = f"{cores_of(TASKS)} cores"
        return [
            RateTable("async-core", "Records/s without latency, no engine, one core", neutral),
            RateTable("async-spark", f"Rows/s without latency on Spark, {TASKS} tasks on {cores}", on_spark),
        ]

    def tasks(self) -> RateTable:
        """What a task costs besides its calls."""
        few = {"rows_per_task": ROWS_PER_TASK}
        rows = [
            self._on_spark("unordered", "unordered_wait", "unordered-echo", 4_000, **few),
            self._on_spark("ordered", "ordered_wait", "ordered-echo", 4_000, **few),
            self._on_spark("column", "async_column", "column-call_without_latency", 4_000, **few),
            self._on_spark("pandas", "mapInPandas, nothing called", "pandas", 4_000, **few),
        ]
        return RateTable("async-tasks", f"Rows/s in tasks of {ROWS_PER_TASK} rows, {TASKS} at a time, no latency", rows)

    def lookup(self) -> list[RateTable]:
        """Joins with a table of a database, and where the time of those without a cache goes."""
        names = {
            "none": "lookup_join",
            "partial": 'lookup_join, cache="partial"',
            "full": 'lookup_join, cache="full"',
            "by_hand": "mapInPandas, a query for each batch",
            "by_hand_kept": "mapInPandas, and a dict",
        }
        rows = [self._on_spark(key, name, f"lookup_{key}", 100_000) for key, name in names.items()]
        phases = [
            self._alone(f"lookup-{whose}-{phase}", f"{name}: {phase}", 100_000)
            for phase in ("keys", "query", "columns")
            for whose, name in (("ours", "lookup_join"), ("by_hand", "by hand"))
        ]
        return [
            RateTable("async-lookup", f"Rows/s joined with a table of SQLite, {TASKS} tasks", rows),
            RateTable("async-lookup-phases", "Rows/s of each phase of a join, without Spark, one core", phases),
        ]

    def blocking(self) -> RateTable:
        """Functions that block."""
        pool = {"pool_size": CAPACITY}
        rows = [
            self._on_spark("unordered", "unordered_wait", "unordered-wait_blocking", 100_000, **pool),
            self._on_spark("ordered", "ordered_wait", "ordered-wait_blocking", 100_000, **pool),
            self._on_spark("column", "async_column", "column-call_blocking", 100_000, **pool),
            self._on_spark("threads", "mapInArrow, ThreadPoolExecutor(100)", "threads", 60_000),
            self._on_spark("level", "Spark's arrow.concurrency.level 100", "concurrency_level", 60_000),
        ]
        return RateTable("async-blocking", f"Rows/s of functions that block, on 100 threads; {SETTING}", rows)

    def http(self) -> RateTable:
        """Calls of a real service, of which each costs client and service processor time."""
        rows = [
            self._on_spark("unordered", "unordered_wait, aiohttp", "unordered-http", 20_000),
            self._on_spark("ordered", "ordered_wait, aiohttp", "ordered-http", 20_000),
            self._on_spark("column", "async_column, aiohttp", "column-http", 20_000),
            self._alone("http-bare", "a bare asyncio loop, aiohttp, no Spark", 20_000),
            self._on_spark("gather", "mapInPandas, gather of a batch, aiohttp", "http_gather", 20_000),
            self._on_spark("threads", "mapInPandas, ThreadPoolExecutor(100), requests", "http_threads", 10_000),
            self._on_spark("level", "arrow.concurrency.level 100, requests", "http_level", 10_000),
        ]
        most = limit(LATENCY_MS / 1000)
        return RateTable("async-http", f"Rows/s, an HTTP service of {LATENCY_MS} ms; the limit is {most:,.0f}/s", rows)

    def _on_spark(self, key: str, name: str, what: str, count: int, **options: int) -> Row:
        run: Callable[[int], float] = partial(self.spark.took_s, what, **options)
        return SparkRow(key, name, self.settings.count(count), run, check=partial(self.spark.check, what, **options))

    def _alone(self, key: str, name: str, count: int = 400_000) -> Row:
        """Without an engine."""
        return JobRow(key, name, self.settings.count(count), partial(neutral_took_s, key))

    def _on_pyflink(self, python: Path) -> list[Row]:
        """As a script gets it; with a Python process for each task; and that with all that slows it down left out."""
        count, took_s = self.settings.count(20_000), partial(pyflink_took_s, python)
        fast = {"worker_processes": True, "timeout_s": 0, "bundle_size": 100_000}
        kinds: dict[str, tuple[str, dict[str, Any]]] = {
            "pyflink": ("PyFlink", {"worker_processes": False}),
            "pyflink-processes": ("PyFlink, a process for each task", {"worker_processes": True}),
            "pyflink-fast": ("  and large bundles, no timeout", fast),
        }
        return [
            JobRow(f"{key}-{mode}", f"{name}, {mode}", count, partial(took_s, mode=mode, **options))
            for key, (name, options) in kinds.items()
            for mode in ("unordered", "ordered")
        ]


def async_io(chosen: list[str], settings: Settings) -> Figures:
    figures: Figures = {}
    with ExitStack() as stack:
        if {"http", "edges"} & set(chosen):
            stack.enter_context(http_service())
        if set(chosen) - {"memory", "millions"}:
            spark = stack.enter_context(SparkWorker())
            pyflink = pyflink_python() if "peers" in chosen else None
            if tables := _tables(chosen, Tables(spark, settings, pyflink)):
                figures |= _measure(RatePart(*tables), settings)
            if "rows" in chosen:
                figures |= row_costs(spark, settings)
            if "limits" in chosen:
                figures |= limits(spark, settings)
            if "limit_costs" in chosen:
                figures |= limit_costs(spark, settings)
            if "edges" in chosen:
                figures |= edges(spark, settings)
    if "memory" in chosen:
        figures |= memory(settings)
    if "millions" in chosen:
        figures |= millions(settings)
    return figures


def _tables(chosen: list[str], tables: Tables) -> list[RateTable]:
    made = []
    if {"latency", "peers"} & set(chosen):
        made.append(tables.calls(with_peers="peers" in chosen))
    if "tail" in chosen:
        made.append(tables.tail())
    if "none" in chosen:
        made += tables.none()
    if "tasks" in chosen:
        made.append(tables.tasks())
    if "lookup" in chosen:
        made += tables.lookup()
    if "blocking" in chosen:
        made.append(tables.blocking())
    if "http" in chosen:
        made.append(tables.http())
    return made


def _measure(part: RatePart, settings: Settings) -> Figures:
    part.warm_up()
    for _ in range(settings.repeats):
        part.round()
    figures = part.report()
    figures |= {
        "async.limit": limit(),
        "async.tail-limit": limit(mean_tail_latency_s(settings.count(200_000))),
        "async-http.limit": limit(LATENCY_MS / 1000),
    }
    figures |= {
        f"{key}-per-core": rate / cores_of(TASKS) for key, rate in figures.items() if key.startswith("async-spark.")
    }
    return figures
