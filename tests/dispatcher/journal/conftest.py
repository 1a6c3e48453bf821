"""What the journal's tests share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Event, JournalConfig, JournalWriter
from dispatcher.journal import Table, read_rows


class Job(Enum):
    STARTED = 1
    ENDED = 2


class State(Enum):
    NEW = 1
    RUNNING = 2


class JobEvent(Event[Job]):
    __slots__ = ("entity", "payload")

    def __init__(self, entity: Any = "job_1", payload: Any = None, type: Any = Job.STARTED) -> None:
        super().__init__(type, 0.0)
        self.entity = entity
        self.payload = payload


def write_event(writer: JournalWriter, event: Any = None, *, transitions: int = 0, **row: Any) -> None:
    """One event of which all times follow from its number, with transitions made while it was handled."""
    started_at = (writer.seq + 1) * 1000
    writer.begin(started_at)
    for _ in range(transitions):
        writer.transition("Job", "job_1", State.NEW, Job.STARTED, State.RUNNING, valid=True)
    given = {
        "dispatcher": "central",
        "enqueued_at": started_at - 10,
        "finished_at": started_at + 10,
        "queue_ns": 10,
        "handling_ns": 10,
        "outcome": "handled",
        **row,
    }
    writer.event(event=event or JobEvent(), **given)


def rows(journal: Path, table: Table) -> list[dict[str, Any]]:
    return list(read_rows(journal, table))


def lines(segment: Path) -> list[str]:
    return segment.read_text(encoding="ascii").splitlines()


def files(journal: Path) -> list[str]:
    """All files of a journal, relative to it."""
    return sorted(str(path.relative_to(journal)) for path in journal.rglob("*") if path.is_file())


def after_a_crash(journal: Path, copy: Path) -> Path:
    """What is on the disk now, as a writer leaves it that dies at this moment."""
    shutil.copytree(journal, copy)
    return copy


def change_line(segment: Path, number: int, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replace line `number` (from 1) of a segment by what `change` makes of its row."""
    lines = segment.read_text().splitlines(keepends=True)
    lines[number - 1] = json.dumps(change(json.loads(lines[number - 1]))) + "\n"
    segment.write_text("".join(lines))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def open_writer(journal: Path) -> Iterator[Callable[..., JournalWriter]]:
    """Makes writers of `journal`, or of another folder, and closes them at the end."""
    opened: list[JournalWriter] = []

    def open_writer(path: Path | None = None, **config: Any) -> JournalWriter:
        opened.append(JournalWriter(path or journal, JournalConfig(**config)))
        return opened[-1]

    yield open_writer
    for writer in opened:
        writer.close()


@pytest.fixture
def writer(open_writer: Callable[..., JournalWriter]) -> JournalWriter:
    return open_writer()
