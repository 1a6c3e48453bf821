"""A sweep of eight combinations: as Spark tasks on two cores, against one after the other in one process.

Both run the same function on the same combinations, round by round. The time covers Spark's tasks, but not its start.
The first sweep of a session also starts the Python workers, so it has a row of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from measure import Figures, Settings, Spread, print_table

from dispatcher.util.garbage import tune_garbage_collection
from pipeline.spark.session import spark_session
from pipeline.spark.sweep import sweep
from pipeline.sweep.combinations import Combination, combine
from pipeline.sweep.outcome import run_row
from pipeline.sweep.settings import parse_settings
from statemachines.simulation.workload import Workload, read_workload

ROOT = Path(__file__).resolve().parents[3]
CORES = 2
VARIED = ("scheduler=fifo,capacity", "nodes=0.5,0.75,1.0,1.25")

Rows = Sequence[dict[str, Any]]


def sweep_speedup(settings: Settings) -> Figures:
    """`sweep.speedup`: how many times as fast the tasks are, from the medians of both."""
    workload = read_workload(ROOT / "config" / "workloads" / "sample")
    applications = list(workload.applications)
    workload = replace(workload, applications=tuple(applications[: settings.count(len(applications))]))
    combinations = combine(workload, parse_settings(VARIED))
    tune_garbage_collection()  # as the tasks do
    with spark_session(f"local[{CORES}]", "sweep benchmark") as spark:

        def by_tasks() -> Rows:
            return [row.asDict() for row in sweep(spark, workload, combinations).collect()]

        first_s, _ = _timed(by_tasks)
        rounds = [_round(workload, combinations, by_tasks) for _ in range(settings.repeats)]
    tasks, alone = Spread.of([pair[0] for pair in rounds]), Spread.of([pair[1] for pair in rounds])
    print_table(
        f"Seconds for a sweep of {len(combinations)} combinations of the sample workload, {os.cpu_count()} cores",
        {f"Spark tasks, {CORES} at a time": tasks, "one after the other in this process": alone},
        digits=2,
    )
    speedup = alone.median / tasks.median
    print(f"{'speed-up':46} {speedup:13.2f}   first sweep of a session: {first_s:.2f} s, {alone.median / first_s:.2f}")
    return {"sweep.speedup": speedup, "sweep.first-speedup": alone.median / first_s}


def _round(
    workload: Workload, combinations: Sequence[Combination], by_tasks: Callable[[], Rows]
) -> tuple[float, float]:
    """Seconds of both, which must find the same."""
    tasks_s, found = _timed(by_tasks)
    alone_s, expected = _timed(lambda: [run_row(workload, each) for each in combinations])
    if _figures(found) != _figures(expected):
        raise AssertionError("the tasks have found something else than this process")
    return tasks_s, alone_s


def _figures(rows: Rows) -> list[dict[str, Any]]:
    return sorted(({**row, "wall_s": None} for row in rows), key=lambda row: row["number"])


def _timed(work: Callable[[], Rows]) -> tuple[float, Rows]:
    started_s = time.perf_counter()
    rows = work()
    return time.perf_counter() - started_s, rows
