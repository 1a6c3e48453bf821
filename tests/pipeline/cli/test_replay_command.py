from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from dispatcher.journal import verify

from ...kit.commands import COMMAND, SAMPLE, TIMEOUT_S, Ended, read_until, run_here, start_command
from ..sweep.small import JOBS

pytestmark = pytest.mark.long

BAD_ROW = '{"job.start.ms": -1, "job.queue.name": "q", "job.tasks": []}'
TOO_LARGE = """
{"job.start.ms": 0, "job.queue.name": "q", "am.memory-mb": 999999, "job.tasks":
  [{"container.host": "/r/n", "duration.ms": 1}]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with configurations of queues."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "derived.yaml").write_text("scheduler: {kind: capacity}")
    (tmp_path / "other.yaml").write_text("scheduler: {kind: capacity, queues: [{name: other}]}")
    return tmp_path


def replayed(folder: Path, jobs: str, *args: str) -> Ended:
    (folder / "jobs.json").write_text(jobs)
    return run_here("replay", "jobs.json", "--no-report", *args)


@pytest.mark.parametrize(
    ("jobs", "args", "said"),
    [
        (JOBS, [], ["Applications 2", "FINISHED 1", "FAILED 1"]),
        (
            JOBS,
            ["--config", "derived.yaml"],
            ["No queues are configured; the capacity scheduler gets the workload's own: q", "FINISHED 1"],
        ),
        (
            JOBS,
            ["--config", "other.yaml"],
            ["2 applications rejected: queue q does not exist; queues that accept applications: other"],
        ),
        (JOBS + BAD_ROW, ["--skip-bad-rows"], ["1 bad rows skipped"]),
        (TOO_LARGE, [], ["ACCEPTED 1", "waits for <memory:999999 MB, vCores:1>: no node could ever take it"]),
    ],
    ids=["plain", "derived queues", "refusals", "bad rows", "an application that no node can hold"],
)
def test_a_replay_tells_what_has_become_of_the_applications_and_leaves_a_sound_journal(
    folder: Path, jobs: str, args: list[str], said: list[str]
) -> None:
    done = replayed(folder, jobs, *args)

    text = " ".join(done.out.split())
    assert (done.code, done.err) == (0, "")
    assert [each for each in said if each not in text] == []
    for notice, about in (("No queues are configured", "derived.yaml"), ("rejected", "other.yaml")):
        assert (notice in text) == (about in args)
    (run,) = (folder / "runs").iterdir()
    assert verify(run / "journal").problems == ()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_during_a_replay_drains_and_closes_the_journal_whole(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = start_command("replay", SAMPLE, "--output", tmp_path / "out")
    try:
        url = read_until(process, "Metrics: ")
        page = ""
        while 'machine="RMContainer",state="COMPLETED"' not in page:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                page = answer.read().decode()
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == code, err
    assert err == ""
    assert "Interrupted; for a report on what was journaled: dispatcher report" in out
    found = verify(tmp_path / "out" / "journal")
    assert found.problems == ()
    assert found.open_segments == ()
    assert found.events > 0
    assert not (tmp_path / "out" / "report").exists()


def test_a_truncated_workload_is_named_with_row_and_column(folder: Path) -> None:
    done = replayed(folder, JOBS[:100])

    assert done.code == 2
    assert done.err.startswith("dispatcher: jobs.json, row 3, column ")
    assert done.err.count("\n") == 1
    assert not (folder / "runs").exists()


def test_an_output_folder_with_a_journal_is_not_overwritten(folder: Path) -> None:
    first = replayed(folder, JOBS, "--output", "out")
    before = sorted((folder / "out").rglob("*.journal"))

    second = replayed(folder, JOBS, "--output", "out")

    assert (first.code, second.code) == (0, 2)
    assert "holds a journal already; choose a new or an empty folder" in second.err
    assert sorted((folder / "out").rglob("*.journal")) == before


def test_a_deadlock_is_told_once_with_what_holds_the_cluster(folder: Path) -> None:
    tasks = ", ".join(['{"container.host": "/r/n", "duration.ms": 9000, "container.memory": 1024}'] * 3)
    job = f'{{"job.start.ms": 0, "job.queue.name": "q", "am.memory-mb": 1024, "job.tasks": [{tasks}]}}\n'

    done = replayed(folder, job * 12)

    assert done.code == 0
    said = " ".join(done.out.split())
    assert said.count("Deadlock: every application with containers (10) waits for more.") == 1
    assert said.count(" holds 1,024 MB and 1 vcore in 1 container, and waits for 3 x ") == 10
    assert "waits for <" not in said
    assert "Workload jobs: 12 applications, 48 containers, 1 node " in said


def test_a_terminal_gets_a_progress_bar(tmp_path: Path) -> None:
    (tmp_path / "jobs.json").write_text(JOBS)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "160", "TERM": "xterm"}
    args = ["replay", str(tmp_path / "jobs.json"), "--no-report", "--output", str(tmp_path / "out")]
    process = subprocess.Popen([*COMMAND, *args], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)

    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone with the command
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)

    assert process.wait(TIMEOUT_S) == 0
    assert "━".encode() in shown
    assert b"events/s" in shown
    assert b"2/2" in shown
