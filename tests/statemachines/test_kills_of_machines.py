"""Kills at random moments: the journal has each accepted event and its transition once, and entities come back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DAEMON = Path(__file__).with_name("kill_daemon_of_entities.py")


@pytest.mark.parametrize(
    ("journals", "kills"),
    [pytest.param(1, 8, marks=pytest.mark.slow), pytest.param(20, 12, marks=[pytest.mark.slow, pytest.mark.minutes])],
)
@pytest.mark.parametrize("most_partitions", [0, 4])
def test_entities_come_back_after_kills_as_their_accepted_events_have_left_them(
    tmp_path: Path, journals: int, kills: int, most_partitions: int
) -> None:
    """With snapshots every few transitions; half of the journals remove all rows that these do not need.

    Transitions of `async def` handlers were recorded under the seqs of other events.
    """
    arguments = [str(journals), str(kills), "1", str(most_partitions)]
    command = [sys.executable, str(DAEMON), str(tmp_path), *arguments]

    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)

    assert done.returncode == 0, done.stderr[-4000:]
    accounts = json.loads(done.stdout)
    assert accounts["kills"] == journals * kills
    assert accounts["steps"] > 10 * accounts["kills"]
    assert accounts["redelivered"] > 0
