"""What the journal's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher import JournalConfig, JournalWriter
from dispatcher.journal import keeper as keeper_module

from ...kit.journals import JournalStage, Open


@pytest.fixture(autouse=True)
def only_flushes_write_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's own thread would write rows at any time. Tests about that undo it."""
    monkeypatch.setattr(keeper_module, "LATE_MS", 10**9)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def open_writer(journal: Path) -> Iterator[Open]:
    """Makes writers of `journal`, or of another folder, and closes them at the end."""
    opened: list[JournalWriter] = []

    def open_writer(path: Path | None = None, **config: Any) -> JournalWriter:
        opened.append(JournalWriter(path or journal, JournalConfig(**config)))
        return opened[-1]

    yield open_writer
    for writer in opened:
        writer.close()


@pytest.fixture
def writer(open_writer: Open) -> JournalWriter:
    return open_writer()


@pytest.fixture
def stage(journal: Path) -> Iterator[JournalStage]:
    stage = JournalStage(journal)
    yield stage
    stage.close()
