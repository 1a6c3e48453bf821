"""Following a journal over Spark Connect, served by the test run's own Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ....kit.spark import all_settings
from ...journal_builder import JournalBuilder
from .followed_journal import FOR_FEW_ROWS, follow

TIMEOUT_S = 240.0


@pytest.mark.slow
@pytest.mark.minutes
def test_journal_is_followed_over_connect(connect_mode: Any, journal: JournalBuilder, tmp_path: Path) -> None:
    journal.submit(1, "application_1", at=5)
    path = journal.path

    with (
        all_settings(connect_mode, FOR_FEW_ROWS),
        follow(connect_mode, path, tmp_path / "report", until_idle=True) as follower,
    ):
        assert follower.wait(TIMEOUT_S)
        found = follower.progress()
    assert (found.events, found.transitions, found.first_seq, found.last_seq, found.missing) == (1, 1, 1, 1, 0)
