"""The report on a standalone cluster of this machine: with one worker of one core, and with two."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
from measure import Figures

_WORKER = Path(__file__).with_name("report_worker.py")
_STOP_S = 20.0


def speed_up(journal: Path, events: int, folder: Path) -> Figures:
    """`report.cluster-1` and `report.cluster-2`: events/s by the number of workers."""
    figures: Figures = {}
    print(f"\n{events:,} events on a standalone cluster, warm {'':10} {'seconds':>10} {'events/s':>12}")
    for workers in (1, 2):
        with _cluster(folder / f"cluster-{workers}", workers) as url:
            command = [sys.executable, str(_WORKER), url, str(journal), str(folder / "clustered"), str(workers)]
            answer = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
        took_s = json.loads(answer.stdout.splitlines()[-1])
        figures[f"report.cluster-{workers}"] = events / took_s
        print(f"{f'  workers of one core: {workers}':56} {took_s:10.1f} {events / took_s:12,.0f}")
    return figures


@contextlib.contextmanager
def _cluster(folder: Path, workers: int) -> Iterator[str]:
    """The URL of a master on a free port, with workers of one core each."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        master = _start(stack, "master.Master", "--port", "0")
        url = _seen(master, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            place = str(folder / f"work-{number}")
            worker = _start(stack, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", place, url)
            _seen(worker, r"(Successfully registered with master)")
        yield url


def _start(stack: contextlib.ExitStack, name: str, *args: str) -> subprocess.Popen[str]:
    program = str(Path(pyspark.__path__[0]) / "bin" / "spark-class")
    command = [program, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0", *args]
    process = subprocess.Popen(
        command, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    stack.callback(_stop, process)
    return process


def _seen(process: subprocess.Popen[str], pattern: str) -> str:
    """The pattern's group in the first line of the log that has it. Later lines are few enough for the pipe."""
    assert process.stderr is not None, "it is a pipe"
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found[1]
    raise RuntimeError(f"a process of Spark ended before it printed {pattern}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate(timeout=_STOP_S)


def _environment() -> dict[str, str]:
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
