from __future__ import annotations

import pytest

from pipeline.cli.replay_command import PresentRate
from statemachines.simulation.replay import ReplayProgress

pytestmark = pytest.mark.long


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

    assert rate.of(at(2.0, 1000)) == 500
    assert rate.of(at(2.0, 1000)) == 0
    assert rate.of(at(3.0, 1100)) == 100


def test_no_time_has_no_rate() -> None:
    assert PresentRate().of(at(0.0, 0)) == 0
