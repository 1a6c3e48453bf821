"""Measurements of asynchronous I/O in processes of their own, which print lines of JSON.

worker.py neutral OPTIONS    one measurement without an engine, then the process ends
worker.py OPTIONS            a Spark session that measures what each line of its input asks for
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from async_io.service import CAPACITY, TASKS, TIMEOUT_S, call, echo
from ops.processes import on_last_cores, serve

Answer = dict[str, float]

_WAKING_ROWS = 20
_OURS = ("port", "calls_per_s", "cache_path", "rows_per_task")
"""Options of a measurement, and not of the operator."""


def neutral(what: str, rows: int) -> Answer:
    """Seconds for `rows` values through a function that answers at once."""
    measured: dict[str, Callable[[int], float]] = {
        "task-ordered": lambda count: _stream_task("ordered", count),
        "task-unordered": lambda count: _stream_task("unordered", count),
        "wait-ordered": lambda count: _wait("ordered", count),
        "wait-unordered": lambda count: _wait("unordered", count),
        "gather": lambda count: asyncio.run(_gather(count)),
        "bare": lambda count: asyncio.run(_bare(count)),
        "http-bare": _http_bare,
        **{
            f"lookup-{whose}-{phase}": partial(_lookup_phase, whose, phase)
            for whose in ("ours", "by_hand")
            for phase in ("keys", "query", "columns")
        },
    }
    measured[what](rows // 20)
    return {"rows": rows, "took_s": measured[what](rows)}


def _stream_task(mode: str, count: int) -> float:
    """A StreamTask on this thread, from its start to its end."""
    from pipeline.streaming.calls.wait_operator import AsyncWaitOperator
    from pipeline.streaming.task.inputs import IterableInput
    from pipeline.streaming.task.stream_task import StreamTask

    latest: deque[Any] = deque(maxlen=1)

    def operator(context: Any) -> AsyncWaitOperator:
        return AsyncWaitOperator(
            echo,
            timeout_ms=TIMEOUT_S * 1000,
            capacity=CAPACITY,
            output_mode=mode,  # type: ignore[arg-type]
            mailbox_executor=context.mailbox_executor,
            processing_time_service=context.processing_time_service,
            output=context.output,
        )

    task = StreamTask(IterableInput(range(count)), [operator], latest.append)
    started = time.perf_counter()
    task.run()
    took = time.perf_counter() - started
    assert task.records_out == count
    return took


def _wait(mode: str, count: int) -> float:
    from pipeline.streaming.wait import ordered_wait, unordered_wait

    wait = ordered_wait if mode == "ordered" else unordered_wait
    started = time.perf_counter()
    outputs = sum(1 for _ in wait(range(count), echo, timeout=TIMEOUT_S, concurrency=CAPACITY))
    took = time.perf_counter() - started
    assert outputs == count
    return took


async def _gather(count: int) -> float:
    """By hand, on one thread, without a timeout."""
    started = time.perf_counter()
    outputs = 0
    for start in range(0, count, CAPACITY):
        outputs += len(await asyncio.gather(*map(echo, range(start, min(count, start + CAPACITY)))))
    took = time.perf_counter() - started
    assert outputs == count
    return took


async def _bare(count: int) -> float:
    """Calls of 10 ms by hand from one loop, as many at a time as all tasks on Spark may make."""
    keys = iter(range(count))

    async def work() -> None:
        for key in keys:
            await call(key)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(TASKS * CAPACITY)))
    return time.perf_counter() - started


def _lookup_phase(whose: str, phase: str, count: int) -> float:
    from async_io.lookups import phase_took_s

    return phase_took_s(whose, phase, count)


def _http_bare(count: int) -> float:
    from async_io.http_calls import bare

    started = time.perf_counter()
    bare(count)
    return time.perf_counter() - started


class SparkMeasurements:
    """A session of local[TASKS]. Its times cover the stage with the calls; the job has no other stage."""

    def __init__(self) -> None:
        from pipeline.spark.session import spark_session

        on_last_cores(TASKS)()
        # Spark's Python workers are this environment's; PYTHONPATH, set by scripts/bench, has the functions.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        self.started: Answer = {}
        self._spark = spark_session(f"local[{TASKS}]", "bench")
        self._context = self._spark.sparkContext
        self._inputs: dict[tuple[int, int], Any] = {}  # by rows and tasks
        self._jobs = 0

    def measure(self, what: str, rows: int, **options: Any) -> Answer:
        """`what` is one of the peers, or MODE-FUNCTION of the operator with its `options`.

        `rows_per_task`, among them, makes many tasks; otherwise there are TASKS.
        """
        # A few rows first: Spark ends Python workers that were idle for a minute, and none is to start meanwhile.
        self._run(self._frame(what, _WAKING_ROWS, {**options, "rows_per_task": None}))
        frame = self._frame(what, rows, options)
        self._jobs += 1
        group = f"job {self._jobs}"
        self._context.setJobGroup(group, what)
        self._run(frame)
        return {"rows": rows, "took_s": self._stage_s(group, _tasks(rows, options))}

    def look(self, what: str, rows: int, action: str, few: int) -> Answer:
        """At the first rows only."""
        frame = self._frame(what, rows, {})
        started = time.perf_counter()
        found = frame.take(few) if action == "take" else frame.limit(few).collect()
        took = time.perf_counter() - started
        assert len(found) == few
        return {"rows": rows, "took_s": took}

    def check(self, what: str, rows: int, **options: Any) -> None:
        """That the keys that come out are those that went in."""
        keys = sorted(row.id for row in self._frame(what, rows, options).collect())
        assert keys == list(range(rows)), f"{what}: {len(keys)} keys of {rows}, the first ones are {keys[:10]}"

    def prepare(self, rows: int) -> None:
        self._input(rows)

    def close(self) -> None:
        self._spark.stop()

    def _run(self, frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _frame(self, what: str, rows: int, options: dict[str, Any]) -> Any:
        from async_io.peers import PEERS

        frame = self._input(rows, _tasks(rows, options))
        if what.startswith("http_"):
            from async_io.http_calls import HTTP_PEERS

            return HTTP_PEERS[what](frame)
        if what == "limited_by_hand":
            from async_io.limited_client import limited_by_hand

            return limited_by_hand(frame, rows, options["port"], options["calls_per_s"])
        if what.startswith("row_"):
            from async_io.row_functions import ROW_COSTS

            return ROW_COSTS[what](frame)
        if what.startswith("lookup_"):
            from async_io.lookups import LOOKUPS

            return LOOKUPS[what](frame)
        return PEERS[what](frame) if what in PEERS else _waiting(frame, what, rows, options)

    def _input(self, rows: int, tasks: int = TASKS) -> Any:
        """The keys from 0, in one partition for each task, made before the stage that is measured."""
        if (rows, tasks) not in self._inputs:
            self._inputs[rows, tasks] = self._spark.range(rows).repartition(tasks).localCheckpoint()
        return self._inputs[rows, tasks]

    def _stage_s(self, group: str, tasks: int) -> float:
        """From the status store, which knows when a stage was submitted and completed also where there is no UI."""
        scala_context = self._context._jsc.sc()
        scala_context.listenerBus().waitUntilEmpty()  # what the store knows comes over this bus
        tracker: Any = self._context.statusTracker()
        stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
        assert len(stages) == 1, f"{len(stages)} stages; only the one with the calls is to be measured"
        stage = scala_context.statusStore().lastStageAttempt(stages[0])
        assert stage.numTasks() == tasks
        return float(stage.completionTime().get().getTime() - stage.submissionTime().get().getTime()) / 1000


def _tasks(rows: int, options: dict[str, Any]) -> int:
    return rows // options["rows_per_task"] if options.get("rows_per_task") else TASKS


def _waiting(frame: Any, what: str, rows: int, options: dict[str, Any]) -> Any:
    """The operator on Spark with a function of `async_io.service`, or with calls of one of the HTTP services.

    "limited": calls of the service at `port`, with `calls_per_s`. `cache_path`: of a cache that outlives the job.
    """
    from pipeline.spark import SqliteResults, async_column, ordered_wait, unordered_wait
    from pipeline.streaming import RateLimit

    mode, _, function = what.partition("-")
    called = _function(function, rows, mode == "column", options)
    given = {name: value for name, value in options.items() if name not in _OURS}
    if "calls_per_s" in options:
        given["rate_limit"] = RateLimit(options["calls_per_s"])
    if "cache_path" in options:
        given["cache"] = SqliteResults(options["cache_path"])
    if mode == "column":
        column = async_column(called, "id", returns="bigint", timeout=TIMEOUT_S, concurrency=CAPACITY, **given)
        return frame.select(column.alias("id"))
    wait = ordered_wait if mode == "ordered" else unordered_wait
    return wait(frame, called, frame.schema, timeout=TIMEOUT_S, concurrency=CAPACITY, **given)


def _function(name: str, rows: int, is_column: bool, options: dict[str, Any]) -> Any:
    match name.split("-"):
        case ["limited"]:
            from async_io.limited_client import LimitedCalls

            return LimitedCalls(options["port"], rows)
        case ["http", *latency_ms]:
            from async_io.http_calls import HttpKey

            return HttpKey(*map(int, latency_ms), is_column=is_column)
    from async_io import service

    return getattr(service, name)


if __name__ == "__main__":
    if sys.argv[1] == "neutral":
        print(json.dumps(neutral(**json.loads(sys.argv[2]))))
    else:
        # What the JVM prints is no answer: it goes to the errors.
        sys.stdout = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        serve(lambda _: SparkMeasurements())
