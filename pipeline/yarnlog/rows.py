"""A record as a row of the journal's tables. `dispatcher` is the log's name, without the suffix of its rotation."""

from __future__ import annotations

import json
from typing import NamedTuple

from pipeline.yarnlog.parser import Record

_LINE_BITS = 40


class Row(NamedTuple):
    """The columns of both tables that a record has."""

    kind: str
    seq: int
    """Unique over all files and ascending in each; in the first file it equals the line's number."""
    dispatcher: str
    event_class: str
    event_type: str
    entity: str | None
    at: int
    outcome: str
    error: str | None
    payload: str | None
    machine: str
    from_state: str
    to_state: str
    is_told: bool
    file: str
    line: int
    line_count: int
    level: str
    thread: str | None
    logger: str
    text: str


class UnparsedRow(NamedTuple):
    """A line outside of records."""

    seq: int
    """As in `Row`."""
    file: str
    line: int
    text: str


def seq_of(file_number: int, line: int) -> int:
    """The position of a line among the lines of all files; `file_number` from 0."""
    return file_number << _LINE_BITS | line


def row_of(record: Record, file: str, dispatcher: str, file_number: int) -> Row:
    """The record's row. Its outcome is failed if it has an error: an event was refused or a request not granted."""
    message = record.message
    fields = message.fields
    return Row(
        kind=message.kind,
        seq=seq_of(file_number, record.line),
        dispatcher=dispatcher,
        event_class=message.event_class,
        event_type=message.event_type,
        entity=message.entity,
        at=record.at,
        outcome="handled" if message.error is None else "failed",
        error=message.error,
        payload=None if fields is None else json.dumps(fields, ensure_ascii=False, separators=(",", ":")),
        machine=message.machine,
        from_state=message.from_state,
        to_state=message.to_state,
        is_told=message.is_told,
        file=file,
        line=record.line,
        line_count=record.line_count,
        level=record.level,
        thread=record.thread,
        logger=record.logger,
        text=record.text,
    )
