"""What commands show on a terminal, and where Spark may run."""

from __future__ import annotations

import threading
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from dispatcher import ConfigError
from pipeline.cli.replay_command import PresentRate
from pipeline.cli.report_command import shown_progress
from pipeline.cli.sessions import check_master
from statemachines.simulation.replay import ReplayProgress

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


def at(wall_s: float, events: int) -> ReplayProgress:
    return ReplayProgress(0, wall_s, events, {}, 0)


def test_the_rate_is_that_of_the_last_seconds_not_the_mean_since_the_start() -> None:
    rate = PresentRate()
    for quarter in range(400):  # 100 s with 1000 events/s
        rate.of(at(quarter / 4, quarter * 250))
    slow = [rate.of(at(100 + quarter / 4, 100_000 + quarter)) for quarter in range(1, 41)]  # then 4 events/s

    assert slow[-1] == 4
    assert slow[3] > slow[7] > slow[-1]


def test_the_first_rate_is_the_mean_since_the_start() -> None:
    rate = PresentRate()

    assert PresentRate().of(at(0.0, 0)) == 0
    assert rate.of(at(2.0, 1000)) == 500
    assert rate.of(at(2.0, 1000)) == 0
    assert rate.of(at(3.0, 1100)) == 100


MASTERS = """
local local[*] local[4] local[*,2] local-cluster[2,1,1024] spark://host:7077 spark://one:7077,two:7077 yarn
k8s://https://host:443 sc://localhost sc://host:15002/;use_ssl=true
"""
NO_MASTERS = "nonsense local[0] local[ local[x] local[99999] spark:// spark://host sc:// http://host"


@pytest.mark.parametrize("master", MASTERS.split())
def test_a_master_of_any_kind_is_taken(master: str) -> None:
    assert check_master(master) == master


@pytest.mark.parametrize("master", [*NO_MASTERS.split(), "", "yarn\n"])
def test_what_is_no_master_is_refused_with_those_that_are(master: str) -> None:
    with pytest.raises(
        ConfigError, match=r"not a place where Spark runs; give local\[\*\], local\[4\], spark://host:7077"
    ):
        check_master(master)
