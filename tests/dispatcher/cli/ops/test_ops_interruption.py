"""Ctrl-C and SIGTERM end each command with one line; `top` gives the terminal back first. In processes of their own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator

import pytest

from ....kit import until
from ....kit.commands import COMMAND, TIMEOUT_S
from .conftest import Start
from .fake_daemon import FakeDaemon

pytestmark = pytest.mark.long

LINE = "dispatcher: interrupted"
LEAVE_SCREEN = "\x1b[?1049l"
PATIENT = """
from dispatcher.cli.ops.client import Client
Client.__init__.__defaults__ = (3600.0,)
"""
"""The command gives a daemon an hour for its answer."""


class Terminal:
    """A command on a terminal of 80 x 24."""

    def __init__(self, daemon: FakeDaemon, *args: object) -> None:
        self.daemon = daemon
        self._end, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(end)
        self.process = subprocess.Popen(
            [*COMMAND[:-1], PATIENT + COMMAND[-1], *map(str, args)],
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        self._other_end = end
        self.said = ""

    def read_until(self, text: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while text not in self.said:
            remaining_s = deadline_s - time.monotonic()
            assert remaining_s > 0, self.said
            if select.select([self._end], [], [], remaining_s)[0]:
                self.said += os.read(self._end, 65536).decode("utf-8", "replace")

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def wait(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        while select.select([self._end], [], [], 0)[0]:
            self.said += os.read(self._end, 65536).decode("utf-8", "replace")
        return code

    def attributes(self) -> object:
        return termios.tcgetattr(self._other_end)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        os.close(self._end)
        os.close(self._other_end)


@pytest.fixture
def terminal(start: Start) -> Iterator[Terminal]:
    """`dispatcher top` on a daemon's socket, once it has drawn."""
    daemon = start()
    made = Terminal(daemon, "top", f"unix:{daemon.path}")
    try:
        made.read_until("LAST FAILURES")
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("how", "code"), [("key", 130), (signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGINT", "SIGTERM"]
)
def test_an_interrupted_top_gives_the_terminal_back_and_says_one_line(
    how: str | signal.Signals, code: int, terminal: Terminal
) -> None:
    if isinstance(how, signal.Signals):
        terminal.process.send_signal(how)
    else:
        terminal.press("\x03")

    assert terminal.wait() == code
    _, left, after = terminal.said.partition(LEAVE_SCREEN)
    assert left
    assert after.count(LINE) == 1
    assert "Traceback" not in terminal.said
    assert terminal.attributes() == terminal.before


def test_top_ends_with_control_q(terminal: Terminal) -> None:
    terminal.press("\x11")

    assert terminal.wait() == 0
    assert LINE not in terminal.said


def test_top_ends_at_once_while_the_daemon_does_not_answer(
    start: Start, terminal: Terminal, release: threading.Event
) -> None:
    hanging = threading.Event()
    terminal.daemon.answers = {"": lambda handler: hanging.set() or release.wait(60)}
    assert hanging.wait(TIMEOUT_S)
    terminal.press("\x03")

    assert terminal.wait() == 130


@pytest.mark.parametrize("command", ["status", "stack", "top --once", "ps"])
def test_control_c_during_a_request_is_one_line(command: str, start: Start, release: threading.Event) -> None:
    daemon = start(answers={"": lambda handler: release.wait(60)})
    which = [] if command == "ps" else [f"unix:{daemon.path}"]
    with subprocess.Popen(
        [*COMMAND, *command.split(), *which],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        until(lambda: daemon.asked, "a request that hangs")
        process.send_signal(signal.SIGINT)

        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out, err) == (130, "", f"{LINE}\n")
