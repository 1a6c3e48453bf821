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

from ..kit import EFFORT
from . import _posts_from_anywhere
from ._posts_from_anywhere import FEWEST_SIGNALS, KINDS

REPOSITORY = Path(__file__).parents[2]
SECONDS = 0.15 * EFFORT
"""For each kind of dispatcher."""


@pytest.mark.long
@pytest.mark.parametrize("rate", [1000, pytest.param(250, marks=pytest.mark.slow)])
def test_posts_that_interrupt_other_posts_are_accounted_for(tmp_path: Path, rate: int) -> None:
    command = [sys.executable, "-m", _posts_from_anywhere.__name__, str(SECONDS), str(rate), str(tmp_path)]
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
