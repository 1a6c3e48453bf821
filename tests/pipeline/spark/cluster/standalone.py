"""A standalone Spark cluster on this machine's loopback, from PySpark's wheel, and Pythons for its executors."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import pyspark

CLUSTER_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20.0


class Daemon:
    """A process of Spark, and the lines of its log. Its threads end with it."""

    def __init__(self, name: str, *args: str, folder: Path) -> None:
        spark_class = Path(pyspark.__path__[0]) / "bin" / "spark-class"
        command = [str(spark_class), f"org.apache.spark.deploy.{name}", *args]
        self._process = subprocess.Popen(
            command, cwd=folder, env=_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lock = threading.Condition()
        self._lines: list[str] = []  # guarded by _lock
        self._ended = False  # guarded by _lock
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str, times: int = 1) -> str:
        """The group of the pattern in the line that has it for the nth time; fails if the process ends before."""

        def found() -> list[str]:
            return [match[1] for line in self._lines if (match := re.search(pattern, line))]

        with self._lock:
            self._lock.wait_for(lambda: self._ended or len(found()) >= times, CLUSTER_TIMEOUT_S)
            assert len(found()) >= times, f"no {pattern} in:\n" + "\n".join(self._lines)
            return found()[times - 1]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_STOP_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            with self._lock:
                self._lines.append(line)
                self._lock.notify_all()
        with self._lock:
            self._ended = True
            self._lock.notify_all()


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """The URL of a master on a free port, with workers of one core each. Stops all of them at the end."""
    with contextlib.ExitStack() as stack:

        def start(name: str, *args: str) -> Daemon:
            daemon = Daemon(name, "--host", "127.0.0.1", "--webui-port", "0", *args, folder=folder)
            stack.callback(daemon.stop)
            return daemon

        master = start("master.Master", "--port", "0")
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            start("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"), url)
        master.wait_for(r"(Registering worker)", workers)
        yield url


def executor_python(folder: Path, *, without: tuple[str, ...] = ()) -> Path:
    """A Python for executors: it has what this one has, except for `without` and for this project."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    ours = Path(sysconfig.get_path("purelib"))
    theirs = folder / ours.relative_to(sys.prefix)
    linked = folder / "packages"
    linked.mkdir()
    for entry in ours.iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith(("__editable__", *without)):
            (linked / entry.name).symlink_to(entry)
    # A line in a .pth file adds a folder without reading the .pth files in it, such as this project's.
    (theirs / "executors.pth").write_text(f"{linked}\n")
    python = folder / "bin" / "python"
    code = "import importlib.util as u; print(*map(u.find_spec, ('dispatcher', 'statemachines', 'pipeline')))"
    found = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert found.split() == ["None"] * 3, "the executors' Python must not have the packages that are to be shipped"
    return python


def driver_environment(python: Path, **more: str) -> Mapping[str, str]:
    """The environment of a driver whose executors run `python`."""
    return _environment(None) | {"PYSPARK_PYTHON": str(python), **more}


def _environment(folder: Path | None) -> dict[str, str]:
    """This process' environment without what leads to this project, and a Spark that stays on the loopback."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    more = {} if folder is None else {"SPARK_LOG_DIR": str(folder)}
    return kept | more | {"SPARK_LOCAL_IP": "127.0.0.1"}
