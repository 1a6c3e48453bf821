"""Partitions side by side: a MultiDispatcher of two against one, two processes, two bare threads and its peers.

Each round is a process of a free-threaded Python, once without the GIL and once with it (`-X gil=1`). That Python has
the package and pykka: it is the one in .venv-free-threaded, the one that FREE_THREADED_PYTHON names, or this one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

from measure import Figures, Settings

ROOT = Path(__file__).resolve().parents[3]
WORKER = Path(__file__).with_name("parallel_worker.py")
VARIABLE = "FREE_THREADED_PYTHON"
ENVIRONMENT = ROOT / ".venv-free-threaded"
MODES = {"0": "without the GIL", "1": "with it"}
ROWS = {
    "two": "MultiDispatcher, two partitions",
    "one": "one partition",
    "processes": "two processes, a partition each",
    "bare": "two bare threads",
    "bare-one": "one bare thread",
    "queue": "queue.Queue, two threads",
    "pool": "ThreadPoolExecutor(2)",
    "pykka": "two pykka actors",
    "asyncio": "two asyncio loops",
}
PEERS = ("queue", "pool", "pykka", "asyncio")
FEEDS = {"queued": "queued beforehand", "posted": "posted by two producers"}
MAKERS = {"poster": "made by the poster", "other": "made by another thread"}

Rounds = defaultdict[tuple[str, str, str], list[tuple[float, float]]]
"""By mode, table and row: events per second, and us of processor time an event."""


class Parallel:
    """A round takes about a minute at scale 1."""

    def __init__(self, settings: Settings) -> None:
        self._scale = settings.scale
        self._python = free_threaded_python()
        self._rounds: Rounds = defaultdict(list)

    def warm_up(self) -> None: ...

    def round(self) -> None:
        if self._python is None:
            return
        for mode in MODES:
            command = [self._python, "-X", f"gil={mode}", str(WORKER), str(self._scale)]
            paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
            done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, **paths}, text=True, check=True)
            answer = json.loads(done.stdout)
            if answer["gil"] != (mode == "1"):
                raise SystemExit(f"bench: -X gil={mode} did not take effect in {self._python}")
            for table, rows in answer["rows"].items():
                for row, figures in rows.items():
                    self._rounds[mode, table, row].append(figures)

    def report(self) -> Figures:
        if self._python is None:
            print(f"\nPartitions side by side are skipped: there is no {ENVIRONMENT.name}, and {VARIABLE} is not set.")
            return {}
        figures: Figures = {}
        for mode, how in MODES.items():
            for table in dict.fromkeys(table for of, table, _ in self._rounds if of == mode):
                figures |= self._report_table(mode, how, table)
        return figures

    def _report_table(self, mode: str, how: str, table: str) -> Figures:
        us, feed, maker = table.split("-")
        print(f"\nFree-threaded Python {how}: handlers of {us} us, events {FEEDS[feed]}, {MAKERS[maker]}")
        print(f"{'':36} {'events/s':>12} {'us CPU':>8} {'two / this':>11}")
        rows = {row: self._rounds[mode, table, row] for row in ROWS}
        two = [rate for rate, _ in rows["two"]]
        ratios = {
            row: statistics.median(own / rate for own, (rate, _) in zip(two, measured, strict=True))
            for row, measured in rows.items()
        }
        for row, measured in rows.items():
            rate, cpu_us = (statistics.median(column) for column in zip(*measured, strict=True))
            print(f"{ROWS[row]:36} {rate:12,.0f} {cpu_us:8.2f} {ratios[row]:9.2f} x")
        gains = [
            own / one / (bare / bare_one)
            for own, (one, _), (bare, _), (bare_one, _) in zip(
                two, rows["one"], rows["bare"], rows["bare-one"], strict=True
            )
        ]
        name = f"parallel.{'free' if mode == '0' else 'gil'}.{table}"
        figures = {f"{name}.gain": ratios["one"], f"{name}.of-bare": statistics.median(gains)}
        return figures | {f"{name}.{peer}": ratios[peer] for peer in PEERS}


def free_threaded_python() -> str | None:
    """Return the Python to measure with, or None if there is no free-threaded one."""
    if named := os.environ.get(VARIABLE):
        return named
    if (ENVIRONMENT / "bin" / "python").exists():
        return str(ENVIRONMENT / "bin" / "python")
    return sys.executable if sysconfig.get_config_var("Py_GIL_DISABLED") else None
