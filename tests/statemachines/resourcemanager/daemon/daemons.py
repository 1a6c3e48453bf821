"""Daemons for a test to kill: processes of their own, one after another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ANSWER_S = 60.0


class Daemons:
    """One daemon after another, forks of one template."""

    def __init__(self, folder: Path, script: str = "kill_daemon.py") -> None:
        """`script`: the template's, in the folder of this module."""
        self.folder = folder
        self._log = (folder / "log").open("w")
        path = Path(__file__).with_name(script)
        self._template = subprocess.Popen(
            [sys.executable, str(path), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._pid = 0

    def start(self) -> None:
        self._pid = self._ask("fork")

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        assert self.end() == signal.SIGKILL

    def end(self) -> int:
        """Wait for the daemon's end; returns what `waitpid` says of it."""
        return self._ask("reap")

    def close(self) -> None:
        """Whatever still runs, ends."""
        try:
            self._template.communicate(timeout=ANSWER_S)
        finally:
            self._template.kill()
            self._template.wait()
            self._log.close()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def _ask(self, command: str) -> int:
        assert self._template.stdin is not None
        assert self._template.stdout is not None
        self._template.stdin.write(f"{command}\n")
        self._template.stdin.flush()
        return int(self._template.stdout.readline())
