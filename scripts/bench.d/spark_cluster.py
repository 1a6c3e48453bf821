"""A standalone cluster of Spark on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark

_STOP_S = 20.0


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
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
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
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


def environment() -> dict[str, str]:
    """Of the cluster's processes and its driver, which stay on the loopback."""
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
