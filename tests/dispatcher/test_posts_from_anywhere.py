"""Posts from signal handlers, `__del__`, weakref callbacks and garbage collection, in every configuration.

They deadlocked: a post that interrupts its own thread in the middle of another post or of a stop must not wait for a
lock which that thread holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ._posts_from_anywhere import FEWEST_SIGNALS, KINDS

REPOSITORY = Path(__file__).parents[2]


def check(seconds: float, rate: float, folder: Path) -> None:
    command = [sys.executable, "-m", "tests.dispatcher._posts_from_anywhere", str(seconds), str(rate), str(folder)]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=250, check=False)

    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [each["kind"] for each in found] == list(KINDS)
    for each in found:
        assert each["is_drained"], each
        assert not each["hangs"], each
        assert each["accepted"] == each["handled"] + each["failed"] + each["discarded"], each
        assert each["failed"] == 0, each
        assert each["from_signals"] >= FEWEST_SIGNALS, each
        assert each["accepted_from_signals"] > 0, each
        assert each["from_garbage"] > 0, each


@pytest.mark.long
def test_posts_that_interrupt_other_posts_are_accounted_for(tmp_path: Path) -> None:
    check(0.15, 1000, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.7, pytest.param(2.0, marks=pytest.mark.minutes)])
def test_posts_from_a_signal_handler_at_250_a_second_are_accounted_for(tmp_path: Path, seconds: float) -> None:
    check(seconds, 250, tmp_path)
