"""Fixtures: the folder of doors, and the command as a user runs it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ....kit.commands import Ended, run_here
from .fake_daemon import NOW_MS, Answers, FakeDaemon

Start = Callable[..., FakeDaemon]
Run = Callable[..., Ended]


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the day of the fake daemon's times, which are shown without a date."""
    monkeypatch.setattr("dispatcher.util.figures.local_now", lambda: time.localtime(NOW_MS / 1000))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands give a daemon 0.2 s for an answer."""
    monkeypatch.setattr("dispatcher.cli.ops.client.Client.__init__.__defaults__", (0.2,))
    monkeypatch.setattr("dispatcher.cli.ops.ps._TIMEOUT_S", 0.2)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder in which daemons have their doors. Its path is short, as that of a Unix socket has to be."""
    with TemporaryDirectory(prefix="run-") as runtime:
        folder = Path(runtime) / "dispatcher"
        folder.mkdir(0o700)
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
def release() -> Iterator[threading.Event]:
    """Answers of a fake daemon wait for it; it is set when the test has ended."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def run(folder: Path) -> Run:
    """Runs `dispatcher ARGS` in this process."""
    return run_here
