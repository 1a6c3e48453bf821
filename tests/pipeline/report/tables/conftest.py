"""What tests of the report's tables share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...journal_builder import JournalBuilder


@pytest.fixture
def journal(tmp_path: Path) -> JournalBuilder:
    return JournalBuilder(tmp_path / "journal")
