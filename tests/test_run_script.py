"""scripts/run --live: a simulated cluster in real time, from a clone, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from .kit.commands import ROOT, TIMEOUT_S, read_until

pytest.importorskip("uvicorn", reason="the extra web is not installed")

pytestmark = pytest.mark.long

if not (ROOT / ".venv" / "bin" / "dispatcher").exists():
    pytest.skip("scripts/run would set up a virtual environment first", allow_module_level=True)


@contextmanager
def live(*options: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PYTHONPATH": ""}
    process = subprocess.Popen(
        [str(ROOT / "scripts" / "run"), "--live", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_it_shows_a_cluster_at_work_and_ctrl_c_ends_it() -> None:
    with live("--port", "0") as process:
        pages = read_until(process, "pages: ")
        journal = read_until(process, "journal: ")
        base = pages.removesuffix("/cluster")
        running: dict[str, int] = {}
        deadline = time.monotonic() + TIMEOUT_S
        while not running.get("RUNNING") and time.monotonic() < deadline:
            machines = httpx.get(f"{base}/ops/v1/machines", timeout=TIMEOUT_S).json()["items"]
            running = next((each["entities"] for each in machines if each["machine"] == "RMContainer"), {})
        info = httpx.get(f"{base}/ws/v1/cluster/info", timeout=TIMEOUT_S).json()["clusterInfo"]
        page = httpx.get(pages, timeout=TIMEOUT_S).text
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=TIMEOUT_S)

    assert pages.startswith("http://127.0.0.1:")
    assert running["RUNNING"] > 0
    assert info["state"] == "STARTED"
    assert page.rstrip().endswith("</html>")
    assert process.returncode == 130
    assert journal.startswith(str(ROOT / "runs" / "live"))
    assert "ResourceManager: stopped; events handled" in out
    assert "failed 0, discarded 0" in out
    assert "Traceback" not in err


def test_without_the_extra_web_one_line_says_what_is_missing() -> None:
    run = "import statemachines.cli as c; c.find_spec = lambda _: None; from dispatcher.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", run, "run", "config/live.yaml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=ROOT,
    )
    try:
        read_until(process, "ResourceManager: running")
        assert process.stderr is not None
        line = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()

    assert line == "no web address: it needs the extra: pip install 'central-dispatcher[web]'\n"
    assert process.returncode == 143


def test_a_busy_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy, live("--port", str(busy.getsockname()[1])) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 2, out
    (line,) = [each for each in err.splitlines() if not each.startswith("Setting up")]
    assert "in use" in line
