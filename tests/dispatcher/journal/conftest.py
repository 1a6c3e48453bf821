"""What the journal's tests share."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dispatcher import Event, JournalConfig, JournalWriter
from dispatcher.journal import EVENTS, read_rows
from dispatcher.journal import keeper as keeper_module
from dispatcher.journal.format.event_codec import encode_payload
from dispatcher.journal.format.frames import Frame
from dispatcher.journal.format.schema import Table
from dispatcher.journal.read import frames_in
from dispatcher.util.foreign import describe

from ...journal_rows import begin, end


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


@dataclass
class Posted:
    """An event that a write-ahead log keeps."""

    type: Job
    number: int


def write_event(
    writer: JournalWriter,
    event: JobEvent | None = None,
    *,
    transitions: int = 0,
    dispatcher: str = "central",
    outcome: str = "handled",
    error: BaseException | None = None,
    accepted_seq: int = 0,
    redelivered: bool = False,
) -> None:
    """One event of which all times follow from its number, with transitions made while it was handled."""
    event = event or JobEvent()
    begin(writer, (writer.seq + 1) * 1000)
    for _ in range(transitions):
        writer.transition("Job", "job_1", State.NEW, Job.STARTED, State.RUNNING, valid=True)
    end(
        writer,
        dispatcher,
        type(event.type).__name__,
        event.type.name,
        outcome,
        entity=event.entity,
        payload=None if event.payload is None else encode_payload(event.payload),
        queue_ns=10,
        handling_ns=20,
        error=None if error is None else describe(error),
        accepted_seq=accepted_seq,
        redelivered=redelivered,
    )


def rows(journal: Path, table: Table) -> list[dict[str, Any]]:
    return list(read_rows(journal, table))


def seqs(journal: Path, table: Table = EVENTS) -> list[int]:
    return [row["seq"] for row in rows(journal, table)]


def files(journal: Path) -> list[str]:
    """The journal's files, without its lock."""
    return sorted(path.name for path in journal.iterdir() if path.name != ".lock")


def frames_of(segment: Path) -> list[Frame]:
    """The frames of a sound segment."""
    found = list(frames_in(segment))
    assert all(isinstance(frame, Frame) for frame in found)
    return found  # type: ignore[return-value]


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def after_a_crash(journal: Path, copy: Path) -> Path:
    """What is on the disk now, as a writer leaves it that dies at this moment."""
    shutil.copytree(journal, copy)
    return copy


def crash_amid(
    do: Callable[[], None],
    journal: Path,
    copy: Path,
    changes: int,
    operations: Sequence[str] = ("open", "rename", "replace", "unlink"),
) -> None:
    """Run `do`, and copy the journal as a crash after its first `changes` file operations would leave it.

    If `do` makes no further file operation, there is no copy.
    """
    left, caller = changes, threading.get_ident()

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def crash_or_change(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if threading.get_ident() == caller:
                if not left:
                    after_a_crash(journal, copy)
                left -= 1
            return change(*arguments, **options)

        return crash_or_change

    with ExitStack() as patches:
        for name in operations:
            patches.enter_context(patch.object(os, name, counted(getattr(os, name))))
        do()


@pytest.fixture(autouse=True)
def only_flushes_write_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's own thread would write rows at any time. Tests about that undo it."""
    monkeypatch.setattr(keeper_module, "LATE_MS", 10**9)


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
