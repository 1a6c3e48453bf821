"""Records as rows of the journal's tables, and rows as Arrow batches for Spark's workers.

`dispatcher` is the log's name, without the suffix of its rotation. Needs pyarrow, but not pyspark, which takes seconds
to import.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple, get_type_hints

import pyarrow as pa

from pipeline.yarnlog.clock import LogClock
from pipeline.yarnlog.files import daemon_of, format_of, read_log
from pipeline.yarnlog.parser import Record, Unparsed

_LINE_BITS = 40
_TYPES = {int: ("long", pa.int64()), bool: ("boolean", pa.bool_())}
_TEXT = ("string", pa.string())
_BATCH_ROWS = 4096
_BATCH_CHARACTERS = 1 << 23


class LogRow(NamedTuple):
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
    """Unique also among the numbers of LogRow."""
    file: str
    line: int
    text: str


def seq_of(file_number: int, line: int) -> int:
    """The position of a line among the lines of all files; `file_number` from 0."""
    return file_number << _LINE_BITS | line


def row_of(record: Record, file: str, dispatcher: str, file_number: int) -> LogRow:
    """The record's row. Its outcome is failed if it has an error: an event was refused or a request not granted."""
    message = record.message
    fields = message.fields
    return LogRow(
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


def _ddl(row_type: type) -> str:
    return ", ".join(f"{name} {_TYPES.get(type_, _TEXT)[0]}" for name, type_ in get_type_hints(row_type).items())


RECORDS = _ddl(LogRow)
"""The fields of `LogRow`, in Spark's DDL."""
UNPARSED = _ddl(UnparsedRow)
FORMATS = "file string, prefixes string, layout string"


def record_batches(time_zone: str, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The files' records, with the columns of `RECORDS`; `files` has a number and a path in each row.

    Raises:
        YarnLogError: a file cannot be read.
    """
    rows = (
        row_of(each, file, dispatcher, number)
        for each, file, dispatcher, number in _read(time_zone, files)
        if isinstance(each, Record)
    )
    return _batches(LogRow, rows)


def unparsed_batches(time_zone: str, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The files' unparsed lines, with the columns of `UNPARSED`; otherwise as `record_batches`."""
    rows = (
        UnparsedRow(seq_of(number, each.line), file, each.line, each.text)
        for each, file, _, number in _read(time_zone, files)
        if isinstance(each, Unparsed)
    )
    return _batches(UnparsedRow, rows)


def format_batches(time_zone: str, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The files' formats, with the columns of `FORMATS`; otherwise as `record_batches`."""
    clock = LogClock(time_zone)
    schema = pa.schema([(name, pa.string()) for name in ("file", "prefixes", "layout")])
    for batch in files:
        rows = [(file, format_of(file, clock)) for file in batch.column(1).to_pylist()]
        columns = (
            [file for file, _ in rows],
            [None if found is None else ", ".join(found.prefixes) for _, found in rows],
            [None if found is None else found.layout.name.lower() for _, found in rows],
        )
        yield pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], schema=schema)


def _read(time_zone: str, files: Iterable[pa.RecordBatch]) -> Iterator[tuple[Record | Unparsed, str, str, int]]:
    """Each record and unparsed line, with its file, the file's dispatcher and the file's number."""
    clock = LogClock(time_zone)
    for batch in files:
        for number, file in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            dispatcher = daemon_of(file)
            for found in read_log(file, clock, errors="replace"):
                yield found, file, dispatcher, number


def _batches(row_type: type, rows: Iterable[LogRow | UnparsedRow]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([(name, _TYPES.get(type_, _TEXT)[1]) for name, type_ in get_type_hints(row_type).items()])
    waiting: list[LogRow | UnparsedRow] = []
    characters = 0
    for row in rows:
        waiting.append(row)
        characters += len(row.text)
        if len(waiting) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield _batch(waiting, schema)
            waiting, characters = [], 0
    if waiting:
        yield _batch(waiting, schema)


def _batch(rows: list[LogRow | UnparsedRow], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
