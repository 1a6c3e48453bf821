"""What a report shows on a terminal."""

from __future__ import annotations

import threading
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pipeline.cli.report_command import shown_progress

pytestmark = pytest.mark.long

TIMEOUT_S = 60.0


class Tracker:
    """Spark's, of one stage; after three answers Spark ends."""

    def __init__(self) -> None:
        self.answers = 0
        self.has_ended = threading.Event()

    def getActiveStageIds(self) -> list[int]:
        self.answers += 1
        if self.answers > 3:
            self.has_ended.set()
            raise ConnectionError("the JVM is gone")
        return [7]

    def getStageInfo(self, stage: int) -> Any:
        return SimpleNamespace(numTasks=8, numCompletedTasks=self.answers)


def console(*, is_terminal: bool) -> Console:
    return Console(file=StringIO(), force_terminal=is_terminal, width=200)


def text_of(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_the_step_and_the_tasks_even_if_spark_ends() -> None:
    shown, tracker = console(is_terminal=True), Tracker()
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))

    with shown_progress(shown) as progress:
        progress.step("Reading the journal: 7 events")
        with progress.watching(session):
            assert tracker.has_ended.wait(TIMEOUT_S)

    assert "Reading the journal: 7 events" in text_of(shown)
    assert "3 of 8 tasks" in text_of(shown)


def test_a_file_gets_nothing_of_it() -> None:
    shown, tracker = console(is_terminal=False), Tracker()
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))

    with shown_progress(shown) as progress, progress.watching(session):
        progress.step("Reading the journal: 7 events")

    assert (text_of(shown), tracker.answers) == ("", 0)
