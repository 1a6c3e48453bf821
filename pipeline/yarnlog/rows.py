"""A record as a row of the journal's tables.

Of the columns of `events`, a log tells no `queue_ns`, `handling_ns` and `accepted_seq`: they are None. It has one time
for each record, which is `enqueued_at`, `started_at` and `finished_at`, and `at` of a transition. `dispatcher` is the
name of the log, without what rotation adds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from pipeline.yarnlog.parser import Record

_LINE_BITS = 40


class Row(NamedTuple):
    """What both tables have of a record."""

    kind: str
    seq: int
    """Unique over all files and rising with the lines of each; of a single file it is the number of the line."""
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
    """A line that is of no record."""

    seq: int
    """As of `Row`."""
    file: str
    line: int
    text: str


def seq_of(file_number: int, line: int) -> int:
    """The place of a line among those of all files; `file_number` from 0."""
    return file_number << _LINE_BITS | line


def row_of(record: Record, file: str, dispatcher: str, file_number: int) -> Row:
    """The record's row. `error` set means failed: refused by a machine, or not granted to a user."""
    message = record.message
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
        payload=_json(message.fields),
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


def _json(fields: Mapping[str, str | int] | None) -> str | None:
    return None if fields is None else json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
