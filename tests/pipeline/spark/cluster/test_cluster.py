"""Commands and library on a standalone cluster whose executors have not installed this project."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ....kit.commands import COMMAND, run_here
from ...sweep.small import JOBS
from . import cluster_jobs, connect_server
from .standalone import driver_environment, executor_python, standalone_cluster

pytestmark = [pytest.mark.slow, pytest.mark.minutes, pytest.mark.timeout(900)]

DRIVER_TIMEOUT_S = 600.0
LOG = (
    "2024-05-01 10:00:00,000 INFO  [AsyncDispatcher event handler] rmapp.RMAppImpl (RMAppImpl.java:handle(912)) - "
    "application_1_0001 State change from NEW to NEW_SAVING on event = START\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def python(folder: Path) -> Path:
    """A Python of the executors, without this project."""
    return executor_python(folder / "python")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[str]:
    with standalone_cluster(folder) as url:
        yield url


@pytest.fixture(scope="module")
def workload(folder: Path) -> Path:
    path = folder / "jobs.json"
    path.write_text(JOBS)
    return path


@pytest.fixture(scope="module")
def journal(folder: Path, workload: Path) -> Path:
    done = run_here("replay", workload, "--no-report", "--output", folder / "run")
    assert done.code == 0, done.err
    return folder / "run" / "journal"


@pytest.fixture(scope="module")
def inputs(folder: Path, journal: Path) -> list[str]:
    """A journal, a log and a database, for `cluster_jobs`."""
    (folder / "rm.log").write_text(LOG)
    with sqlite3.connect(folder / "items.db") as items:
        items.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        items.execute("INSERT INTO item VALUES (2, 'two'), (3, 'three')")
    items.close()
    return [str(journal), str(folder / "rm.log"), str(folder / "items.db")]


@pytest.fixture
def connect(cluster: str, python: Path, folder: Path) -> Iterator[str]:
    """The URL of a server of Spark Connect on the cluster."""
    for package in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect needs pyspark[connect]")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, connect_server.__file__, cluster, str(port)],
        cwd=folder,
        env=driver_environment(python),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server.stdout.readline() == "serving\n"
        yield f"sc://127.0.0.1:{port}"
        server.communicate(timeout=60)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.communicate()


def run_on_cluster(folder: Path, python: Path, *command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=driver_environment(python),
        capture_output=True,
        text=True,
        timeout=DRIVER_TIMEOUT_S,
        check=False,
    )


def check_jobs(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    failure = found.pop("failure").splitlines()
    assert found.pop("events") > 0
    assert {"FINISHED", "FAILED"} < set(found.pop("states"))
    assert found == {
        "ordered": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
        "unordered": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
        "joined": [[2, "two"], [3, "three"]],
        "logged": ["NEW_SAVING"],
        "zips": [],
    }
    assert failure[0].startswith("ordered_wait(run.<locals>.refuse): the row Row(id=")
    assert failure[0].endswith("has failed: ValueError: refused")
    frames = [line for line in failure if line.strip().startswith("File ")]
    assert len(frames) == 1, "only the user's frame, none of the packages in the zip"
    assert "cluster_jobs.py" in frames[0]


def test_the_library_runs_on_executors_without_the_packages(
    cluster: str, python: Path, folder: Path, inputs: list[str]
) -> None:
    check_jobs(run_on_cluster(folder, python, sys.executable, cluster_jobs.__file__, cluster, *inputs))


def test_the_library_and_a_sweep_run_over_connect(
    connect: str, python: Path, folder: Path, inputs: list[str], workload: Path
) -> None:
    check_jobs(run_on_cluster(folder, python, sys.executable, cluster_jobs.__file__, connect, *inputs))

    output = folder / "sweep"
    args = ["--set", "nodes=1.0,2.0", "--output", output, "--master", connect]
    done = run_on_cluster(folder, python, *COMMAND, "sweep", workload, *args)

    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in output.iterdir()) == ["sweep.csv", "sweep.html", "sweep.parquet"]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows if row[:1] in (["1.0"], ["2.0"])] == [["1.0", "1"], ["2.0", "2"]]


def test_the_report_runs_on_executors_without_the_packages(
    cluster: str, python: Path, folder: Path, journal: Path
) -> None:
    output = folder / "report"

    done = run_on_cluster(folder, python, *COMMAND, "report", journal, "--output", output, "--master", cluster)

    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()][:3] == [
        ["Applications", "2"],
        ["FAILED", "1"],
        ["FINISHED", "1"],
    ]
    assert sorted(path.name for path in output.iterdir()) == ["report.html", "tables"]


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("dispatcher: ")]
    return line


def test_a_missing_package_is_one_line_with_the_package_and_the_executor(
    cluster: str, folder: Path, workload: Path
) -> None:
    python = executor_python(folder / "without-pyarrow", without=("pyarrow",))

    line = refusal(
        run_on_cluster(folder, python, *COMMAND, "sweep", workload, "--set", "nodes=1.0", "--master", cluster)
    )

    assert line.startswith(f"dispatcher: an executor on {os.uname().nodename} runs {python} (Python 3.")
    assert "lacks the package pyarrow. Run there: pip install 'central-dispatcher[spark]'." in line


def test_an_executor_without_the_python_is_one_line(cluster: str, folder: Path, workload: Path) -> None:
    python = folder / "no-such-python"

    line = refusal(
        run_on_cluster(folder, python, *COMMAND, "sweep", workload, "--set", "nodes=1.0", "--master", cluster)
    )

    assert line.startswith(f"dispatcher: an executor on 127.0.0.1 has no Python at {python}. Set PYSPARK_PYTHON")
