from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dispatcher.journal import verify

from ..kit import until
from ..kit.commands import TIMEOUT_S, read_until, run_here, start_command

pytestmark = pytest.mark.long

CONFIG = """
nodes: [{host: node1, memory_mb: 4096, vcores: 4}]
workload: jobs.json
journal_path: journals
simulation: {am_register_delay_ms: 10}
"""
JOBS = '{"job.start.ms": 0, "job.queue.name": "q", "job.tasks": [{"duration.ms": 20}]}'
POD = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod,1000,1024,0,0,,LS,Succeeded,0,1,0
"""


def test_the_daemon_has_a_door(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    pytest.importorskip("uvicorn", reason="the extra web is not installed")
    door = tmp_path_factory.mktemp("d") / "rm.sock"
    (tmp_path / "rm.yaml").write_text(f"{CONFIG}web: {{socket_path: {door}}}\nops: {{control: true}}\n")
    (tmp_path / "jobs.json").write_text(POD)
    process = start_command("run", "rm.yaml", cwd=tmp_path)
    try:
        read_until(process, "ResourceManager: running")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(door)), base_url="http://rm/ops/v1") as client:
            history: dict[str, Any] = {"history": {"items": []}}

            def has_history() -> bool:
                nonlocal history
                apps = client.get("/machines/RMApp/entities?state=FINISHED").json().get("items", [])
                history = client.get(f"/entities/{apps[0]['id']}").json() if apps else history
                return bool(history["history"]["items"])

            until(has_history, "the history of the application")
            machines = {each["machine"]: each for each in client.get("/machines").json()["items"]}
            stopping = client.post("/stop")
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()

    assert machines["RMNode"]["entities"] == {"RUNNING": 1}
    assert machines["RMApp"]["entities"] == {"FINISHED": 1}
    assert machines["RMContainer"]["entities"] == {}, "containers that have ended are not kept"
    assert machines["RMContainer"]["transitions"] > 0
    assert (history["machine"], history["state"], history["complete"]) == ("RMApp", "FINISHED", True)
    assert history["history"]["items"][-1]["from_state"] == "NEW"
    assert (stopping.status_code, stopping.json()["by"]) == (202, "SIGTERM")
    assert process.returncode == 143, err
    assert "dispatcher.audit: " in err
    assert "OPERATION=stop\tTARGET=ResourceManager\tRESULT=SUCCESS" in err
    assert "ResourceManager: stopped; events handled" in out
    assert not door.exists()


class Life(NamedTuple):
    """Of a daemon that ran its workload, and then got one signal after another until it had ended."""

    queues: str
    page: str
    code: int
    out: str
    err: str
    journal: Path


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """With a capacity scheduler that has no queues; the first signal is SIGINT."""
    folder = tmp_path_factory.mktemp("life")
    (folder / "rm.yaml").write_text(f"{CONFIG}scheduler: {{kind: capacity}}\n")
    (folder / "jobs.json").write_text(JOBS)
    process = start_command("run", "rm.yaml", cwd=folder)
    try:
        queues, url = read_until(process, "No queues are configured"), read_until(process, "metrics: ")

        def page() -> str:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return str(answer.read(), "utf-8")

        finished = 'statemachine_entities{dispatcher="ResourceManager",machine="RMApp",state="FINISHED"} 1.0'
        until(lambda: finished in page(), "the application has finished")
        shown = page()
        code, out, err = storm(process, signal.SIGINT)
    finally:
        process.kill()
        process.wait()
    (journal,) = (folder / "journals").iterdir()
    return Life(queues, shown, code, out, err, journal)


def storm(process: subprocess.Popen[str], first: signal.Signals) -> tuple[int, str, str]:
    """Send the daemon signals from the first on until it has ended; returns exit code, output and errors."""
    process.send_signal(first)
    stopping = read_until(process, "ResourceManager: stopping")
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.wait(TIMEOUT_S), stopping + out, err


def test_the_daemon_runs_in_real_time_until_a_signal_drains_it(life: Life) -> None:
    assert 'dispatcher_event_queue_size{dispatcher="ResourceManager"}' in life.page
    assert "ResourceManager: stopped; events handled" in life.out
    found = verify(life.journal)
    assert found.problems == ()
    assert found.open_segments == ()
    assert found.events > 30


def test_signals_during_the_stop_do_not_change_the_exit_code(life: Life) -> None:
    """A later signal ended the process, in the moment between the stop and the exit."""
    assert (life.code, life.err) == (130, "")


def test_the_daemon_s_workload_brings_its_queues_to_a_capacity_scheduler_without_any(life: Life) -> None:
    assert life.queues.endswith("the workload's own: q")


@pytest.mark.slow
@pytest.mark.minutes
@pytest.mark.parametrize(("first", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_many_storms_of_signals_do_not_change_the_exit_code(tmp_path: Path, first: signal.Signals, code: int) -> None:
    (tmp_path / "rm.yaml").write_text("nodes: [{host: node1, memory_mb: 4096, vcores: 4}]")
    for _ in range(6):
        process = start_command("run", "rm.yaml", cwd=tmp_path)
        try:
            read_until(process, "metrics: ")
            ended = storm(process, first)
        finally:
            process.kill()
            process.wait()
        assert (ended[0], ended[2]) == (code, "")


FAILING = """
import sys
from dispatcher import AsyncDispatcher
from dispatcher.cli import main
from dispatcher.supervision.health import parts_of
from statemachines.resourcemanager import ResourceManager

def start(manager, begin=ResourceManager.service_start):
    begin(manager)
    (dispatcher,) = [part for part in parts_of(manager) if isinstance(part, AsyncDispatcher) and part.name == name]
    dispatcher.mailbox_executor.execute(lambda: 1 / 0, "fail")

name, ResourceManager.service_start = sys.argv.pop(1), start
main()
"""


@pytest.mark.parametrize("name", ["ResourceManager-scheduler", "ResourceManager-store"])
def test_the_daemon_ends_when_any_of_its_dispatchers_fails(tmp_path: Path, name: str) -> None:
    """It went on without its scheduler or its store: only the central dispatcher was looked at."""
    (tmp_path / "rm.yaml").write_text(f"{CONFIG}state_store: {{kind: sqlite, path: state.db}}\n")
    (tmp_path / "jobs.json").write_text(JOBS)
    command = [sys.executable, "-c", FAILING, name, "run", "rm.yaml"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 1
    assert f"ResourceManager: failed: dispatcher {name}: ZeroDivisionError(" in done.stderr


def test_a_workload_without_nodes_needs_configured_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configured ones stand in for those that it lacks: so the other tests here run theirs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rm.yaml").write_text("workload: jobs")
    for work in (JOBS, POD):
        (tmp_path / "jobs").write_text(work)

        done = run_here("run", "rm.yaml")

        assert (done.code, "no node" in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "rm.yaml",
            "dispatcher: {queue_size: 3}",
            "rm.yaml, line 1, column 14: unknown key dispatcher.queue_size; allowed here: at_exit, batch_size,",
        ),
        # They were ignored.
        (
            "rm.yaml",
            "scheduler: {kind: fifo, queues: [{name: a}]}",
            "scheduler.queues: scheduler.kind fifo has one queue, default",
        ),
        ("jobs.json", JOBS + JOBS, "If it is a workload, name it under `workload:` in a configuration"),
    ],
    ids=["unknown key", "queues of FIFO", "a workload"],
)
def test_mistake_in_the_configuration_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)

    done = run_here("run", name)

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith("dispatcher: ")
    assert problem in done.err
