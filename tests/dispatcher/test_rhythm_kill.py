"""The jobs of a daemon that is killed at random come back by themselves, and post each of their times once."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from dispatcher.journal import recover

from ..kit.journals import marks_in
from ..kit.killed import forking
from . import _rhythm_daemon

MINUTE_NS = 60_000_000_000
STEPS = {"all": MINUTE_NS, "once": 2 * MINUTE_NS, "period": 90_000_000_000}


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_each_time_is_posted_once_whenever_it_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    with forking(_rhythm_daemon) as server:
        for run in range(6):
            server.start(tmp_path, "-" if run else "adds")
            assert server.said() == "ready"
            time.sleep(0.02 + rng.random() * 0.3)  # the moment of the kill is what is random
            server.kill()
    recover(tmp_path / "journal")

    posted: dict[str, list[int]] = {key: [] for key in STEPS}
    due_ns: dict[str, int] = {}
    for marks in marks_in(tmp_path / "journal"):
        if marks.has_event:
            posted[marks.key].append(marks.fired_ns)
        else:
            due_ns[marks.key] = marks.due_ns
    for key, times in posted.items():
        steps = [after - before for before, after in pairwise(times)]
        assert len(times) > 5, key
        assert min(steps) > 0, key
        assert all(step % STEPS[key] == 0 for step in steps), key
        if key != "once":  # which leaves out what was missed
            assert set(steps) == {STEPS[key]}, key
        assert due_ns[key] - times[-1] in (0, STEPS[key])
