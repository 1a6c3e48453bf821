"""A service that answers 429 to calls beyond its limit: a job's time against the ideal, and the calls refused.

And what a job that keeps to the limit costs, next to one by hand with a limiter of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from async_io.processes import tree_cpu_s
from async_io.service import TASKS
from async_io.workers import SparkWorker
from measure import Figures, Settings, Spread, print_table

LIMIT_PER_S = 300
BURST_S = 0.2
CALL_S = 0.01
STEADY = ((0.0, 1.0),)
CHANGING = ((0.0, 1.0), (4.0, 0.4), (8.0, 1.0))
"""From which second on, and how much of the limit."""
ROWS = {STEADY: 1500, CHANGING: 3000}
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Log:
    """The calls of one run, and its token bucket. The loop's thread only, until the run has ended."""

    schedule: tuple[tuple[float, float], ...]
    limit_per_s: float
    burst_s: float
    accepted: int = 0
    refused: int = 0
    at_s: float = 0.0
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.tokens = self.burst_s * self.limit_per_s

    def try_accept(self) -> bool:
        at_s = time.monotonic() - self.began_s
        limit = [part for from_s, part in self.schedule if from_s <= at_s][-1] * self.limit_per_s
        self.tokens = min(self.burst_s * limit, self.tokens + (at_s - self.at_s) * limit)
        self.at_s = at_s
        if self.tokens < 1:
            self.refused += 1
            return False
        self.tokens -= 1
        self.accepted += 1
        return True


class LimitedService:
    """On a loop of its own. Each path is a run: its first call begins the schedule."""

    def __init__(self) -> None:
        self.schedule = STEADY
        self.limit_per_s: float = LIMIT_PER_S
        self.burst_s = BURST_S
        self.call_s = CALL_S
        self.logs: dict[str, Log] = {}
        self.port = 0
        self.ended = asyncio.Event()

    async def serve(self, started: threading.Event) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        async with server:
            await self.ended.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split()[1].decode()
                log = self.logs.setdefault(path, Log(self.schedule, self.limit_per_s, self.burst_s))
                if log.try_accept():
                    await asyncio.sleep(self.call_s)
                    writer.write(ANSWER)
                else:
                    writer.write(REFUSAL)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()


@contextmanager
def limited_service() -> Iterator[LimitedService]:
    loop, service, started = asyncio.new_event_loop(), LimitedService(), threading.Event()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(service.serve(started))

    thread = threading.Thread(target=serve, name="limited service", daemon=True)
    thread.start()
    started.wait()
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(service.ended.set)
        thread.join()


def limits(spark: SparkWorker, settings: Settings) -> Figures:
    """Each way of limiting on each schedule, round by round."""
    ways = {
        "adaptive": ('rate_limit="adaptive"', {"rate_limit": "adaptive"}),
        "plain": ("RetryAfter alone", {}),
        "told": (f"RateLimit({LIMIT_PER_S})", {"calls_per_s": LIMIT_PER_S}),
    }
    schedules = {"": STEADY, "-changing": CHANGING}
    found: dict[str, list[tuple[float, float]]] = {}
    with limited_service() as service:
        for _ in range(settings.repeats):
            for suffix, schedule in schedules.items():
                for key, (_, options) in ways.items():
                    found.setdefault(key + suffix, []).append(_run(spark, service, schedule, options, settings))
    print(f"\nA service that accepts {LIMIT_PER_S} calls/s and then answers 429, Retry-After: 1; {TASKS} tasks")
    print(f"{'':46} {'time : ideal':>13} {'highest':>13} {'refused':>13} {'highest':>13}")
    figures: Figures = {}
    for suffix in schedules:
        for key, (name, _) in ways.items():
            times, refused = zip(*found[key + suffix], strict=True)
            title = f"{name}, a limit that changes" if suffix else name
            shown = f"{statistics.median(times):13.2f} {max(times):13.2f}"
            print(f"{title:46} {shown} {statistics.median(refused):13.1%} {max(refused):13.1%}")
            figures[f"async.limits.{key}{suffix}-time"] = statistics.median(times)
            figures[f"async.limits.{key}{suffix}-refused"] = statistics.median(refused)
    return figures


COST_LIMIT_PER_S = 600
COST_CALL_S = 0.02
COST_BURST_S = 1.0
"""A machine that others use may stop the service for longer than `BURST_S`."""
COST_ROWS = 9_000


def limit_costs(spark: SparkWorker, settings: Settings) -> Figures:
    """Processor seconds of a job that keeps to the service's limit, round by round: of the JVM and the workers."""
    ways = {
        "operator": ("unordered_wait, RateLimit", "unordered-limited"),
        "by_hand": ("mapInPandas, gather, a limiter", "limited_by_hand"),
    }
    rows = settings.count(COST_ROWS)
    costs: dict[str, list[float]] = {key: [] for key in ways}
    refused = dict.fromkeys(ways, 0)
    with limited_service() as service:
        service.limit_per_s, service.call_s, service.burst_s = COST_LIMIT_PER_S, COST_CALL_S, COST_BURST_S
        for what in (what for _, what in ways.values()):
            spark.took_s(what, rows // 4, port=service.port, calls_per_s=COST_LIMIT_PER_S)
        for _ in range(settings.repeats):
            for key, (_, what) in ways.items():
                service.logs.clear()
                before_s = tree_cpu_s(spark.pid)
                spark.took_s(what, rows, port=service.port, calls_per_s=COST_LIMIT_PER_S)
                costs[key].append(tree_cpu_s(spark.pid) - before_s)
                log = service.logs[f"/{rows}"]
                assert log.accepted == rows, f"{log.accepted} calls accepted of {rows} rows"
                refused[key] += log.refused
    title = f"Processor seconds of {rows:,} calls of {COST_CALL_S * 1000:g} ms at {COST_LIMIT_PER_S}/s, {TASKS} tasks"
    print_table(title, {name: Spread.of(costs[key]) for key, (name, _) in ways.items()}, digits=2)
    print(", ".join(f"{name}: {refused[key]} calls refused" for key, (name, _) in ways.items()))
    pairs = zip(costs["operator"], costs["by_hand"], strict=True)
    return {
        "async.limits.cost": statistics.median(ours / by_hand for ours, by_hand in pairs),
        "async.limits.cost-refused": float(refused["operator"]),
    }


def _run(
    spark: SparkWorker,
    service: LimitedService,
    schedule: tuple[tuple[float, float], ...],
    options: dict[str, object],
    settings: Settings,
) -> tuple[float, float]:
    """Time : ideal, and the share of calls refused."""
    rows = settings.count(ROWS[schedule])
    service.schedule = schedule
    service.logs.clear()
    took_s = spark.took_s("unordered-limited", rows, port=service.port, **options)
    log = service.logs[f"/{rows}"]
    assert log.accepted == rows, f"{log.accepted} calls accepted of {rows} rows"
    return took_s / _ideal_s(schedule, rows), log.refused / (log.refused + log.accepted)


def _ideal_s(schedule: tuple[tuple[float, float], ...], rows: float) -> float:
    ends = [from_s for from_s, _ in schedule[1:]]
    for (from_s, part), end_s in zip(schedule, [*ends, float("inf")], strict=True):
        if rows <= part * LIMIT_PER_S * (end_s - from_s):
            return from_s + rows / (part * LIMIT_PER_S)
        rows -= part * LIMIT_PER_S * (end_s - from_s)
    raise AssertionError("the last part has no end")
