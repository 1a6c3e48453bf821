"""Starts the processes that measure asynchronous I/O: one with a Spark session, and one for each other measurement."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from async_io.service import CAPACITY, LATENCY_S, TASKS, TIMEOUT_S
from ops.processes import Worker, measured_by, on_last_cores

HERE = Path(__file__).resolve().parent
WORKER = HERE / "worker.py"
PYFLINK_SCRIPT = HERE / "pyflink_async.py"
PYFLINK_VARIABLE = "PYFLINK_PYTHON"
PYFLINK_ENVIRONMENT = HERE.parents[2] / ".venv-pyflink"


class SparkWorker(Worker):
    """A process with a Spark session on TASKS cores, which stops at the end. One request at a time."""

    def __init__(self) -> None:
        super().__init__(str(WORKER))

    @property
    def pid(self) -> int:
        return self._process.pid

    def took_s(self, what: str, rows: int, **options: Any) -> float:
        """Seconds that the stage with the calls of `rows` rows took; blocks until it is done."""
        return float(self.ask("measure", what=what, rows=rows, **options)["took_s"])

    def look_s(self, what: str, rows: int, action: str, few: int) -> float:
        """Seconds until `take(few)` or `limit(few).collect()` of the rows has returned."""
        return float(self.ask("look", what=what, rows=rows, action=action, few=few)["took_s"])

    def check(self, what: str, rows: int, **options: Any) -> None:
        self.ask("check", what=what, rows=rows, **options)

    def prepare(self, rows: int) -> None:
        """Make the input of that many rows, which is otherwise made before the first measurement of it."""
        self.ask("prepare", rows=rows)


def neutral_took_s(what: str, rows: int) -> float:
    """Seconds without an engine, on one core."""
    return float(measured_by(WORKER, "neutral", {"what": what, "rows": rows}, cores=1)["took_s"])


def pyflink_python() -> Path | None:
    """A Python that has PyFlink, or None with a message that tells how to get one."""
    named = os.environ.get(PYFLINK_VARIABLE)
    python = Path(named) if named else PYFLINK_ENVIRONMENT / "bin" / "python"
    wrong = "there is none" if not python.exists() else _wrong_pyflink(python)
    if wrong is None:
        return python
    folder = PYFLINK_ENVIRONMENT.name
    print(
        f"\nPyFlink is skipped: {python}: {wrong}. It needs an environment of its own, in the project's folder:\n"
        f"    python3.11 -m venv {folder} && {folder}/bin/pip install apache-flink==2.3.0\n"
        f"or {PYFLINK_VARIABLE} set to a Python that has it."
    )
    return None


def _wrong_pyflink(python: Path) -> str | None:
    tried = subprocess.run(
        [python, "-c", "from pyflink.datastream import AsyncDataStream"], capture_output=True, text=True
    )
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else None


def pyflink_took_s(python: Path, rows: int, mode: str, **options: Any) -> float:
    """Seconds from the first call to the last answer of a job of its own."""
    options = {
        "rows": rows,
        "mode": mode,
        "tasks": TASKS,
        "capacity": CAPACITY,
        "latency_s": LATENCY_S,
        "timeout_s": TIMEOUT_S,
        **options,
    }
    command = [str(python), str(PYFLINK_SCRIPT), json.dumps(options)]
    ran = subprocess.run(command, capture_output=True, text=True, preexec_fn=on_last_cores(TASKS))
    if ran.returncode:
        raise SystemExit(f"bench: PyFlink failed:\n{ran.stderr[-4000:]}")
    return float(json.loads(ran.stdout.splitlines()[-1])["took_s"])


def cores_of(count: int) -> int:
    """How many of `count` cores a process started here may use."""
    return min(count, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
