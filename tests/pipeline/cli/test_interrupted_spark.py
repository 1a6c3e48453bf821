"""Ctrl-C in the commands that start Spark: one line, exit code 130, nothing left running, outputs as before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ...kit import until
from ...kit.commands import COMMAND, SAMPLE, TIMEOUT_S, living_in_session, run_here

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

LINE = "dispatcher: interrupted"
JOB = {
    "job.start.ms": 0,
    "job.queue.name": "q",
    "job.tasks": [{"container.host": "/r/node1", "container.start.ms": 0, "container.end.ms": 20}],
}
LOG = "2026-01-01 00:00:00,000 INFO rmapp.RMAppImpl: application_1_0001 State change from NEW to NEW_SAVING on START\n"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return replayed(SAMPLE, tmp_path_factory.mktemp("sample"))


@pytest.fixture
def small_journal(tmp_path: Path) -> Path:
    (tmp_path / "jobs.json").write_text(json.dumps(JOB))
    return replayed(tmp_path / "jobs.json", tmp_path / "run")


def replayed(workload: Path, folder: Path) -> Path:
    done = run_here("replay", workload, "--no-report", "--output", folder)
    assert done.code == 0, done.err
    return folder / "journal"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A folder with the outputs of an earlier run."""
    folder = tmp_path / "out"
    for name in ("tables", "log"):
        (folder / name).mkdir(parents=True)
        (folder / name / "old").touch()
    for name in ("report.html", "sweep.html", "sweep.csv", "sweep.parquet"):
        (folder / name).write_text("old")
    return folder


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(*args: object) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [*COMMAND, *map(str, args)]
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        for pid in living_in_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def wait_until(process: subprocess.Popen[str], condition: Callable[[], object]) -> None:
    for _ in range(int(TIMEOUT_S * 4 / 0.01)):
        if condition():
            return
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"ended too early: {process.communicate()}")
    raise AssertionError("the moment has not come")


def interrupt(process: subprocess.Popen[str], *, group: bool, times: int = 1) -> str:
    """Returns what the command has printed to standard output."""
    for _ in range(times):
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    # What comes before the line is the JVM's, which announces itself at its start.
    assert (process.returncode, err.splitlines()[-1]) == (130, LINE), err
    assert "Traceback" not in err
    assert "ERROR" not in err
    assert_session_ends(process.pid)
    return out


def assert_session_ends(session: int) -> None:
    """Workers of Python's and Spark's own notice the end of the JVM, and end."""
    until(lambda: not living_in_session(session), "the end of all its processes")


def assert_as_before(output: Path) -> None:
    found = sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
    assert found == ["log/old", "report.html", "sweep.csv", "sweep.html", "sweep.parquet", "tables/old"]
    assert (output / "report.html").read_text() == "old"
    assert sorted(path.name for path in output.iterdir() if path.is_dir()) == ["log", "tables"]


MOMENTS: dict[str, Callable[[int, Path], object]] = {
    "the JVM starts": lambda pid, output: len(living_in_session(pid)) > 1,
    "the journal is read": lambda pid, output: (output / ".drafts-tables" / "digests" / "run").exists(),
    "tables are written": lambda pid, output: any(output.glob(".drafts-tables/tables/*/*.parquet")),
}


@pytest.mark.parametrize(("moment", "group"), [(moment, number == 1) for number, moment in enumerate(MOMENTS)])
def test_an_interrupted_report_leaves_the_earlier_one(
    start: Start, journal: Path, output: Path, moment: str, group: bool
) -> None:
    process = start("report", journal, "--output", output)
    wait_until(process, lambda: MOMENTS[moment](process.pid, output))

    out = interrupt(process, group=group, times=3)

    assert out == ""
    assert_as_before(output)


def test_an_interrupted_sweep_leaves_the_earlier_one(start: Start, output: Path) -> None:
    process = start("sweep", SAMPLE, "--set", "scheduler=fifo,capacity", "--set", "nodes=0.5,1.0", "--output", output)
    # JVM, the daemon that forks Python workers, and a worker.
    wait_until(process, lambda: len(living_in_session(process.pid)) >= 4)

    out = interrupt(process, group=True)

    assert "4 combinations" in out
    assert_as_before(output)


def test_an_interrupted_report_on_logs_leaves_the_earlier_one(start: Start, output: Path, tmp_path: Path) -> None:
    (tmp_path / "rm.log").write_text(LOG)
    process = start("yarn-log", tmp_path / "rm.log", "--report", output)
    wait_until(process, lambda: (output / ".drafts-tables").exists())

    interrupt(process, group=True)

    assert_as_before(output)


def test_following_ends_in_good_order_with_a_report(start: Start, small_journal: Path, tmp_path: Path) -> None:
    process = start("report", small_journal, "--follow", "--output", tmp_path / "followed")
    wait_until(process, (tmp_path / "followed" / "report.html").exists)
    os.killpg(process.pid, signal.SIGINT)

    out, err = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 130, err
    assert "Traceback" not in err, err
    assert "Page: " in out
    assert_session_ends(process.pid)
