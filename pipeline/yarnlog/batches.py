"""Logs as Arrow batches, for Spark's workers. Needs pyarrow, but not pyspark, which takes seconds to import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_type_hints

import pyarrow as pa

from pipeline.yarnlog.files import daemon_of, read_log
from pipeline.yarnlog.header import LogClock
from pipeline.yarnlog.parser import Record, Unparsed
from pipeline.yarnlog.rows import Row, UnparsedRow, row_of, seq_of

_TYPES = {int: ("long", pa.int64()), bool: ("boolean", pa.bool_())}
_TEXT = ("string", pa.string())


def _ddl(row_type: type) -> str:
    return ", ".join(f"{name} {_TYPES.get(type_, _TEXT)[0]}" for name, type_ in get_type_hints(row_type).items())


def _arrow(row_type: type) -> pa.Schema:
    return pa.schema([(name, _TYPES.get(type_, _TEXT)[1]) for name, type_ in get_type_hints(row_type).items()])


RECORDS = _ddl(Row)
"""The fields of `Row`, in Spark's DDL."""
UNPARSED = _ddl(UnparsedRow)

_BATCH_ROWS = 4096
_BATCH_CHARACTERS = 1 << 23

_ToRow = Callable[[Record | Unparsed, str, str, int], Row | UnparsedRow | None]


def record_batches(time_zone: str, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The files' records, with the columns of `RECORDS`; `files` has a number and a path in each row.

    Raises:
        YarnLogError: a file cannot be read.
    """
    return _batches(_record_row, _arrow(Row), time_zone, files)


def unparsed_batches(time_zone: str, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The files' unparsed lines, with the columns of `UNPARSED`; otherwise as `record_batches`."""
    return _batches(_unparsed_row, _arrow(UnparsedRow), time_zone, files)


def _record_row(found: Record | Unparsed, file: str, dispatcher: str, file_number: int) -> Row | None:
    return row_of(found, file, dispatcher, file_number) if isinstance(found, Record) else None


def _unparsed_row(found: Record | Unparsed, file: str, dispatcher: str, file_number: int) -> UnparsedRow | None:
    if isinstance(found, Record):
        return None
    return UnparsedRow(seq_of(file_number, found.line), file, found.line, found.text)


def _batches(
    to_row: _ToRow, schema: pa.Schema, time_zone: str, files: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    clock = LogClock(time_zone)
    rows: list[tuple[Any, ...]] = []
    characters = 0
    for batch in files:
        for number, file in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            dispatcher = daemon_of(file)
            for found in read_log(file, clock, errors="replace"):
                row = to_row(found, file, dispatcher, number)
                if row is None:
                    continue
                rows.append(row)
                characters += len(found.text)
                if len(rows) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
                    yield _batch(rows, schema)
                    rows, characters = [], 0
    if rows:
        yield _batch(rows, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
