"""Running the `dispatcher` command as a user does."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from dispatcher.cli import main

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "config" / "workloads" / "sample"
TIMEOUT_S = 180.0

COMMAND = [sys.executable, "-c", "from dispatcher.cli import main; main()"]


class Ended(NamedTuple):
    """A command that has run in this process."""

    code: object
    out: str
    err: str


def run_here(*args: object) -> Ended:
    """Run `dispatcher ARGS` in this process, to the end.

    Signals stay the tests': a command would handle them until its process ends, with a thread and a pipe.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    argv, sys.argv = sys.argv, ["dispatcher", *map(str, args)]
    code: object = None
    try:
        with (
            mock.patch("dispatcher.cli.command.Interruption.install"),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = argv
        out.flush()
        err.flush()
    return Ended(code, *(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)))  # type: ignore[attr-defined]


def run_command(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        [*COMMAND, *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=cwd
    )


def start_command(*args: object, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start it; read its lines from `stdout`. The caller ends it."""
    return subprocess.Popen(
        [*COMMAND, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, cwd=cwd
    )


def read_until(process: subprocess.Popen[str], beginning: str) -> str:
    """The rest of the first line that begins so; fails if the process ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return line.removeprefix(beginning).strip()
    raise AssertionError(f"the command ended without a line {beginning!r}: {process.communicate()}")


def living_in_session(leader: int) -> list[int]:
    """The ids of the processes in the session that `leader` has begun, without those that ended and were not reaped."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            state, _, _, session, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(session) == leader and state not in "ZX":
                found.append(int(stat.parent.name))
    return found
