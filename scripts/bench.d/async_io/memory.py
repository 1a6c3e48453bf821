"""Millions of rows through the operator on Spark: does the memory of the Python workers stay flat?"""

from __future__ import annotations

import threading
import time

from async_io.processes import PROC, python_workers, resident_bytes
from async_io.service import TASKS
from async_io.workers import SparkWorker
from measure import Figures, Settings

ROWS = 5_000_000
INTERVAL_S = 0.25
PARTS_TOLD = (0.1, 0.25, 0.5, 0.75, 1.0)


class WorkersMemory:
    """Samples of the resident bytes of all Python workers below a process, from a thread of its own."""

    def __init__(self, pid: int) -> None:
        self.samples: list[tuple[float, int]] = []  # the sampling thread's until it has ended
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory of the workers", daemon=True)

    def __enter__(self) -> WorkersMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def at(self, part: float) -> int:
        """Bytes after that part of the time."""
        first_s, last_s = self.samples[0][0], self.samples[-1][0]
        wanted_s = first_s + part * (last_s - first_s)
        return min(self.samples, key=lambda sample: abs(sample[0] - wanted_s))[1]

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            workers = python_workers(self._pid)
            if len(workers) == TASKS:
                self.samples.append((time.perf_counter(), sum(map(resident_bytes, workers))))


def memory(settings: Settings) -> Figures:
    """Measured once, in a Spark session of its own. All rows cost the same: a part of the time is that part of them."""
    if not PROC.joinpath("self", "statm").exists():
        print("\nMemory is skipped: there is no /proc to read the resident size of the workers from.")
        return {}
    rows = settings.count(ROWS)
    with SparkWorker() as spark:
        spark.check("ordered-echo", max(20, rows // 100))
        spark.prepare(rows)
        with WorkersMemory(spark.pid) as sampled:
            took_s = spark.took_s("ordered-echo", rows)
    if not sampled.samples:
        print(f"\nMemory: no sample within {took_s:.1f} s; take more rows")
        return {}
    growth = sampled.at(1.0) / sampled.at(0.1) - 1
    print(f"\nMemory of {TASKS} Python workers, {rows:,} rows without latency through ordered_wait on Spark")
    samples = ", ".join(f"{part:.0%}: {sampled.at(part) / 2**20:,.1f}" for part in PARTS_TOLD)
    print(f"RSS in MiB at {samples} ({growth:+.1%} from 10 %); {took_s:,.1f} s, {rows / took_s:,.0f} rows/s")
    return {"async.memory.growth": growth, "async.memory.rows": rows}
