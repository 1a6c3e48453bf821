"""Rows of a journal, written as the handler thread writes them."""

from __future__ import annotations

from typing import Any

from dispatcher import JournalWriter

from .kit.segment_files import EventRow


def begin(writer: JournalWriter, at: int) -> None:
    """An event is about to be handled: the transitions recorded from now on belong to it."""
    writer.seq += 1
    writer.at = at


def end(writer: JournalWriter, *kind: str, **columns: Any) -> None:
    """The event was handled; `kind`: dispatcher, event class, event type and outcome; `columns`: those of its row."""
    writer.rows.append(EventRow(writer.kind(*kind), started_at=writer.at, **columns))
    if len(writer.rows) >= writer.config.buffer_rows:
        writer.flush()
