"""How SIGINT and SIGTERM end the command, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli import interruption

from ..kit.commands import TIMEOUT_S, living_in_session

pytestmark = pytest.mark.long

LINE = "dispatcher: interrupted\n"

START = """
import atexit, importlib.metadata, signal, subprocess, sys, time
from dispatcher.cli import interruption, main

interruption._LONGEST_S, interruption._TERMINATION_S = {longest_s}, {termination_s}

def said(word):
    print(word, flush=True)

def wait():
    sys.stdin.readline()

{code}

class Point(importlib.metadata.EntryPoint):
    def load(self):
        {loading}
        return command

importlib.metadata.entry_points = lambda group: [Point("try", "try:command", group)]
sys.argv = ["dispatcher", "try"]
main()
"""


class Started:
    """A command of the test's own, in a session of its own. It says a word, and waits for a line."""

    def __init__(
        self,
        code: str,
        loading: str,
        longest_s: float = interruption._LONGEST_S,
        termination_s: float = interruption._TERMINATION_S,
        **more: Any,
    ) -> None:
        text = START.format(code=code, loading=loading, longest_s=longest_s, termination_s=termination_s)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
            **more,
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == f"{word}\n", (line, self.process.poll())

    def signal(self, number: int = signal.SIGINT, *, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.process.pid, number)

    def outcome(self, text: str = "") -> tuple[int, str, str]:
        """Exit code, standard output and standard error, after giving it a text to read."""
        out, err = self.process.communicate(text, timeout=TIMEOUT_S)
        return self.process.returncode, out, err


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Started] = []

    def start(code: str, *, loading: str = "pass", **more: Any) -> Started:
        started.append(Started(code, loading, **more))
        return started[-1]

    yield start
    for each in started:
        for pid in living_in_session(each.process.pid):
            os.kill(pid, signal.SIGKILL)
        each.process.kill()
        each.process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("group", [False, True], ids=["alone", "group"])
def test_a_signal_ends_a_command_with_one_line(start: Start, number: int, code: int, group: bool) -> None:
    command = start("def command(): said('working'); wait()")
    command.wait_for("working")

    command.signal(number, group=group)

    assert command.outcome() == (code, "", LINE)


def test_a_signal_during_the_imports_ends_it_likewise(start: Start) -> None:
    command = start("def command(): ...", loading="said('importing'); wait()")
    command.wait_for("importing")

    command.signal()

    assert command.outcome() == (130, "", LINE)


def test_what_is_unfinished_is_removed_and_a_second_signal_does_not_break_that_off(
    start: Start, tmp_path: Path
) -> None:
    draft = tmp_path / "draft"
    command = start(
        f"""
def command():
    open({str(draft)!r}, "w").close()
    try:
        said("working")
        wait()
    finally:
        said("removing")
        wait()
        __import__("os").remove({str(draft)!r})
        said("removed")
        raise ValueError("a connection to a process that has ended")
"""
    )
    command.wait_for("working")

    command.signal()
    command.wait_for("removing")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        command.signal(number, group=True)

    assert command.outcome("\n") == (130, "removed\n", LINE)
    assert not draft.exists()


def test_a_command_that_catches_the_interruption_is_an_interrupted_one_all_the_same(start: Start) -> None:
    code = "def command():\n  try: said('working'); wait()\n  except BaseException: said('caught'); sys.exit(0)"
    command = start(code)
    command.wait_for("working")

    command.signal()

    assert command.outcome() == (130, "caught\n", LINE)


def test_a_signal_after_the_command_s_end_ends_the_process_at_once(start: Start) -> None:
    command = start("@atexit.register\ndef late(): said('exiting'); wait()\n\ndef command(): ...")
    command.wait_for("exiting")

    command.signal()

    assert command.outcome() == (130, "", LINE)


def test_no_started_process_is_left_not_even_one_that_ignores_signals(start: Start) -> None:
    """Spark's JVM ignores SIGINT, and starts processes itself."""
    command = start(
        """
CHILD = '''
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"])
print("started", flush=True)
signal.pause()
'''

def command():
    subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.DEVNULL)
    wait()
""",
        termination_s=0.2,
    )
    command.wait_for("started")
    assert len(living_in_session(command.process.pid)) == 3

    command.signal(group=True)

    code, _, err = command.outcome()
    assert (code, err) == (130, LINE)
    assert living_in_session(command.process.pid) == []


def test_an_ignored_signal_stays_ignored(start: Start) -> None:
    """As for a command that a script starts in the background."""
    ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    command = start("def command(): said('working'); wait(); said('done')", preexec_fn=ignore)
    command.wait_for("working")

    command.signal()

    assert command.outcome("\n") == (0, "done\n", "")


def test_a_clean_up_that_hangs_does_not_hold_up_the_end(start: Start) -> None:
    hangs = "def command():\n  try: said('working'); wait()\n  finally: said('hanging'); wait()"
    command = start(hangs, longest_s=0.5)
    command.wait_for("working")

    command.signal()
    command.process.wait(TIMEOUT_S)

    code, _, err = command.outcome()
    assert (code, err) == (130, LINE)
