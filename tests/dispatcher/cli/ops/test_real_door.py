"""The commands against a real daemon: an `OpsDoor`, a handler that hangs, a failed event, `kill -9` and a restart."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'central-dispatcher[web]'")

from dispatcher.ops import OpsDoor

from ....kit import until
from ....kit.commands import TIMEOUT_S
from ....kit.lines import assert_lines
from ...ops.stage import keep
from .conftest import Run
from .screen import app_of, look_at, shown

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("_daemon.py")


class Daemon:
    """`_daemon.py` in a process, once it has started."""

    def __init__(self, name: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder.parent)},
        )
        self.wait_for("started")

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.wait_for(line)

    def wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{line}\n"

    def end(self) -> None:
        try:
            self.process.communicate(timeout=TIMEOUT_S)
        finally:
            self.process.kill()


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    made = Daemon("rm", folder)
    try:
        yield made
    finally:
        made.end()


def test_the_commands_tell_of_a_daemon_that_is_ready_fails_hangs_and_is_killed(daemon: Daemon, run: Run) -> None:
    listed, status = run("ps"), run("status", "rm")
    assert listed.out.splitlines()[1].split()[:3] == ["rm", str(daemon.process.pid), "ok"]
    assert status.code == 0, status
    assert_lines(status.out.splitlines(), "+|ready| / |central: AsyncDispatcher STARTED")

    daemon.do("fail")
    failed = r"1 accepted, 0 handled, 1 failed / Job.FAIL of job_5: ValueError: job_5 cannot be \x1b[2J done"
    assert_lines(run("status").out.splitlines(), failed)

    daemon.do("hang")
    until(lambda: run("status", "--quiet").code == 1, "the hanging handler is a reason")
    status, stack, frame = run("status"), run("stack", "-n", "5"), run("top", "--once")
    running = "|running Job.HANG of job_77 for / in wait_for_a_database: self.release.wait(60)"
    assert_lines(status.out.splitlines(), f"+|not ready: stuck (other, / |queue 100, the oldest for / {running}")
    assert_lines(stack.out.splitlines(), "|other: runs Job.HANG of job_77 / +|5 of 5| / _daemon.py:")
    assert re.search("^> other +runs .*s +100 ", frame.out, re.MULTILINE)
    assert json.loads(run("status", "--json").out)["dispatchers"][1]["queue"]["size"] == 100

    daemon.process.kill()
    daemon.process.wait(TIMEOUT_S)
    status, listed = run("status", "rm"), run("ps")
    assert (status.code, listed.out) == (2, "")
    assert "no process is listening there; the daemon has stopped" in status.err
    assert "no process is listening; the next daemon to start removes this socket" in listed.err


def test_top_shows_the_history_of_an_entity(folder: Path) -> None:
    with OpsDoor(name="rm"):
        keep(("node1:45454", "RMNode", "NEW", "STARTED", "RUNNING"))
        found, unknown = (look_at("rm", entity=name).entity for name in ("node1:45454", "node9:1"))

    assert (found.machine, found.state) == ("RMNode", "RUNNING")
    assert [row.what for row in found.history.items] == ["NEW -> RUNNING on STARTED"]
    assert unknown == f"rm ({os.getpid()}): no entity 'node9:1' is in memory or in a journal of this process"


def test_top_finds_the_daemon_again_after_kill_9_and_a_restart(daemon: Daemon, folder: Path) -> None:
    async def scenario() -> None:
        app = app_of()
        async with app.run_test(size=(80, 24)) as pilot:

            async def shows(text: str) -> None:
                deadline_s = time.monotonic() + TIMEOUT_S
                while text not in shown(app):
                    assert time.monotonic() < deadline_s, shown(app)
                    await pilot.pause()

            await shows(f"pid {daemon.process.pid}")
            daemon.process.kill()
            await shows("reconnecting")
            again = await asyncio.to_thread(Daemon, "rm", folder)
            try:
                await shows(f"pid {again.process.pid}")
                again.do("hang")
                await shows("RUNNING for")
                await shows("wait_for_a_database")
            finally:
                await asyncio.to_thread(again.end)

    asyncio.run(scenario())
