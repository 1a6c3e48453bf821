"""scripts/run --live: the sample workload in real time, from a clone, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .commands import ROOT, TIMEOUT_S, read_until

pytest.importorskip("uvicorn", reason="the extra web is not installed")

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


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def test_it_shows_a_cluster_at_work_and_ctrl_c_ends_it() -> None:
    with live("--port", "0") as process:
        pages = read_until(process, "pages: ")
        base = pages.removesuffix("/cluster")
        running: dict[str, int] = {}
        deadline = time.monotonic() + TIMEOUT_S
        while not running.get("RUNNING") and time.monotonic() < deadline:
            machines = get(f"{base}/ops/v1/machines")["items"]
            running = next((each["entities"] for each in machines if each["machine"] == "RMContainer"), {})
        info = get(f"{base}/ws/v1/cluster/info")["clusterInfo"]
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=TIMEOUT_S)

    assert pages.startswith("http://127.0.0.1:")
    assert running["RUNNING"] > 0
    assert info["state"] == "STARTED"
    assert process.returncode == 130
    assert "ResourceManager: stopped; events handled" in out
    assert "failed 0, discarded 0" in out
    assert "Traceback" not in err


def test_a_busy_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy, live("--port", str(busy.getsockname()[1])) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 2, out
    (line,) = [each for each in err.splitlines() if not each.startswith("Setting up")]
    assert "in use" in line
