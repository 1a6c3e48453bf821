"""Daemons that a test kills. A server forks them: a new Python for each would take longer than its life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType


def say(line: str) -> None:
    """In one write, which a kill does not cut."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def serve(main: Callable[..., object]) -> None:
    """In the module of the daemon: run `main` with the words of each line of the standard input, in a child each."""
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                main(*line.rstrip("\n").split("\t"))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        say(f"pid {pid}")
        _, status = os.waitpid(pid, 0)
        say(f"ended {os.waitstatus_to_exitcode(status)}")


class Server:
    """In the test: starts one daemon after another, reads what each says, and kills it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._pid = 0

    def start(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        self._pid = int(self.said().removeprefix("pid "))

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self.await_end(-signal.SIGKILL)

    def await_end(self, code: int = 0) -> None:
        line = self.said()
        while line and not line.startswith("ended "):
            line = self.said()
        assert line == f"ended {code}"


@contextmanager
def forking(daemon: ModuleType) -> Iterator[Server]:
    command = [sys.executable, "-m", daemon.__name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Server(process)
        process.kill()
