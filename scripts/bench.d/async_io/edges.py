"""What a demanding user meets first: a look at a few rows, and a job with a cache that runs again.

Each is measured once, by the service's own counts.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from async_io.http_service import ask
from async_io.service import CAPACITY, TASKS
from async_io.workers import SparkWorker
from measure import Figures, Settings

ROWS_TO_LOOK_AT = 50_000
QUIET_S = 2.0
CACHED_ROWS = 2_000


def edges(spark: SparkWorker, settings: Settings) -> Figures:
    print(f"\n{f'A few of {ROWS_TO_LOOK_AT:,} rows':46} {'calls beyond':>13} {'2 s later':>13} {'seconds':>13}")
    figures: Figures = {}
    for mode in ("unordered", "ordered", "column"):
        for latency_ms in (10, 2_000):
            for action, rows in (("take", 5), ("limit", 10)):
                figures |= _look(spark, mode, latency_ms, action, rows)
    print(f"{TASKS} tasks of {CAPACITY} calls at a time.")
    return figures | _again(spark, settings.count(CACHED_ROWS))


def _look(spark: SparkWorker, mode: str, latency_ms: int, action: str, rows: int) -> Figures:
    what = f"{mode}-http-{latency_ms}"
    ask("reset")
    took_s = spark.look_s(what, ROWS_TO_LOOK_AT, action, rows)
    time.sleep(QUIET_S)
    calls = ask("counts")["calls"]
    time.sleep(QUIET_S)
    later = ask("counts")["calls"] - calls
    name = "async_column" if mode == "column" else f"{mode}_wait"
    print(f"{f'{name}, {latency_ms} ms, {action}({rows})':46} {calls - rows:13,} {later:13,} {took_s:13.1f}")
    key = f"async-look.{mode}.{action}.{latency_ms}"
    return {f"{key}.beyond": float(calls - rows), f"{key}.later": float(later)}


def _again(spark: SparkWorker, rows: int) -> Figures:
    """The same job twice, with a cache that outlives it."""
    with tempfile.TemporaryDirectory() as folder:
        cache = str(Path(folder) / "results.sqlite")
        figures: Figures = {}
        print(f"\n{f'A job of {rows:,} rows with a cache':46} {'calls':>13} {'seconds':>13}")
        for key, name in (("first", "the first run"), ("second", "the second run")):
            ask("reset")
            took_s = spark.took_s("unordered-http-10", rows, cache_path=cache)
            calls = ask("counts")["calls"]
            print(f"{name:46} {calls:13,} {took_s:13.1f}")
            figures[f"async-cached.{key}"] = float(calls)
    return figures
