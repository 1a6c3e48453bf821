"""Fixtures: the folder of doors, and the command as a user runs it."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from dispatcher.cli import main
from dispatcher.cli.ops import figures
from dispatcher.web import doors

from .fake_daemon import NOW_MS, Answers, FakeDaemon

Start = Callable[..., FakeDaemon]


class Ended(NamedTuple):
    code: object
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the day of the fake daemon's times, which are shown without a date."""
    monkeypatch.setattr(figures, "local_now", lambda: time.localtime(NOW_MS / 1000))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder in which daemons have their doors. Its path is short, as that of a Unix socket has to be."""
    with TemporaryDirectory(prefix="run-") as runtime:
        folder = Path(runtime) / "dispatcher"
        folder.mkdir(0o700)
        monkeypatch.setattr(doors, "_folders", lambda: [folder])
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield folder


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts a daemon with a door: by its name, process id and answers."""
    with contextlib.ExitStack() as stack:

        def daemon(name: str = "rm", pid: int = 4711, answers: Answers | None = None) -> FakeDaemon:
            return stack.enter_context(FakeDaemon(folder / f"{name}-{pid}.sock", answers))

        yield daemon


@pytest.fixture
def run(folder: Path) -> Run:
    """Runs `dispatcher ARGS` in this process."""
    return run_here


def run_here(*args: object) -> Ended:
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    argv, sys.argv = sys.argv, ["dispatcher", *map(str, args)]
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = argv
        out.flush()
        err.flush()
    return Ended(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]
