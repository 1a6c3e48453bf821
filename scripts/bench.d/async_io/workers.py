"""Starts the processes that measure asynchronous I/O: one with a Spark session, and one for each other measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from async_io.service import CAPACITY, LATENCY_S, TASKS, TIMEOUT_S

HERE = Path(__file__).resolve().parent
WORKER = HERE / "worker.py"
PYFLINK_SCRIPT = HERE / "pyflink_async.py"
PYFLINK_VARIABLE = "PYFLINK_PYTHON"
PYFLINK_ENVIRONMENT = HERE.parents[2] / ".venv-pyflink"


class SparkWorker:
    """A process with a Spark session. One request at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def took_s(self, what: str, rows: int, **options: Any) -> float:
        """Seconds that the stage with the calls of `rows` rows took; blocks until it is done."""
        return float(self._ask({"do": "measure", "what": what, "rows": rows, **options})["took_s"])

    def look_s(self, what: str, rows: int, action: str, few: int) -> float:
        """Seconds until `take(few)` or `limit(few).collect()` of the rows has returned."""
        return float(self._ask({"do": "look", "what": what, "rows": rows, "action": action, "few": few})["took_s"])

    def check(self, what: str, rows: int, **options: Any) -> None:
        self._ask({"do": "check", "what": what, "rows": rows, **options})

    def prepare(self, rows: int) -> None:
        """Make the input of that many rows, which is otherwise made before the first measurement of it."""
        self._ask({"do": "prepare", "what": "the input", "rows": rows})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"bench: the Spark process ended while it measured {request['what']}; see its message above")


@contextmanager
def spark_worker() -> Iterator[SparkWorker]:
    """Starts Spark, and stops it at the end; it stays on TASKS cores."""
    process = subprocess.Popen(
        [sys.executable, str(WORKER), "spark"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Spark's Python workers are this environment's; PYTHONPATH, set by scripts/bench, has the functions.
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        preexec_fn=_on_cores(TASKS),
    )
    with process:
        yield SparkWorker(process)
        assert process.stdin is not None
        process.stdin.close()


def neutral_took_s(what: str, rows: int) -> float:
    """Seconds without an engine, on one core."""
    command = [sys.executable, str(WORKER), "neutral", json.dumps({"what": what, "rows": rows})]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=_on_cores(1)).stdout
    return float(json.loads(answer)["took_s"])


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
    ran = subprocess.run(command, capture_output=True, text=True, preexec_fn=_on_cores(TASKS))
    if ran.returncode:
        raise SystemExit(f"bench: PyFlink failed:\n{ran.stderr[-4000:]}")
    return float(json.loads(ran.stdout.splitlines()[-1])["took_s"])


def cores_of(count: int) -> int:
    """How many of `count` cores a process started here may use."""
    return min(count, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _on_cores(count: int) -> Any:
    """A hook that pins a child process to the last `count` cores, so that its rates hold for that number."""

    def stay() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])

    return stay
