"""Reading a journal without Spark: rows, a check of the whole, and what to do after a crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from dispatcher.errors import JournalError
from dispatcher.journal.schema import EVENTS, TABLES, TRANSITIONS, Table
from dispatcher.journal.segments import closed_path, open_segments, segment_number, segments

_TYPES: dict[str, type] = {"long": int, "string": str, "boolean": bool}


class Verification(NamedTuple):
    """What `verify` found."""

    events: int
    transitions: int
    problems: tuple[str, ...]
    """One line each: segment, line and what is wrong; empty for a sound journal."""
    open_segments: tuple[Path, ...]
    """Being written, or left by a writer that died."""


def check_journal(path: Path | str) -> Path:
    """The path, if it is a journal's.

    Raises:
        JournalError: there is no such folder, or it is not a journal.
    """
    path = Path(path)
    if not path.is_dir():
        raise JournalError(f"{path}: no such journal folder")
    missing = [table.name for table in TABLES if not (path / table.name).is_dir()]
    if missing:
        raise JournalError(f"{path}: not a journal: it has no folder {' and no folder '.join(missing)}")
    return path


def read_rows(path: Path | str, table: Table) -> Iterator[dict[str, Any]]:
    """The rows of the closed segments, in order; a null is a missing key.

    Raises:
        JournalError: not a journal, or a line is not a row; names segment and line.
    """
    for segment in segments(check_journal(path), table):
        for number, line in _lines(segment):
            row, problem = _parse(line, table)
            if problem is not None:
                raise JournalError(f"{segment}, line {number}: {problem}")
            yield row


def verify(path: Path | str) -> Verification:
    """Check each row against the schema, and that no segment, event or transition is missing or out of order.

    Raises:
        JournalError: not a journal.
    """
    path = check_journal(path)
    problems: list[str] = []
    counts = {EVENTS.name: 0, TRANSITIONS.name: 0}
    last_seq = 0
    # A writer closes events before their transitions: list them the other way round, to find the event of each.
    listed = {table.name: segments(path, table) for table in (TRANSITIONS, EVENTS)}
    for table in TABLES:
        previous = 0
        for index, segment in enumerate(listed[table.name], start=1):
            if table is EVENTS and segment_number(segment) != index:
                problems.append(f"{segment}: a segment is missing before this one")
            for number, line in _lines(segment):
                row, problem = _parse(line, table)
                if problem is None:
                    counts[table.name] += 1
                    problem = _order_problem(table, row["seq"], previous, last_seq)
                    previous = row["seq"]
                if problem is not None:
                    problems.append(f"{segment}, line {number}: {problem}")
        if table is EVENTS:
            last_seq = previous
    left_open = tuple(left for table in TABLES for left in open_segments(path, table))
    return Verification(counts[EVENTS.name], counts[TRANSITIONS.name], tuple(problems), left_open)


def tail(path: Path | str, count: int = 10) -> list[dict[str, Any]]:
    """The last `count` events, those of open segments included as far as they are whole."""
    path = check_journal(path)
    rows: list[dict[str, Any]] = []
    opened = open_segments(path, EVENTS)  # listed first: one that is closed meanwhile is in the other list, too
    closed = segments(path, EVENTS)
    numbers = {segment_number(segment) for segment in closed}
    for segment in reversed([*closed, *(left for left in opened if segment_number(left) not in numbers)]):
        parsed = (_parse(line, EVENTS) for _, line in _lines(segment))
        rows = [row for row, problem in parsed if problem is None] + rows
        if len(rows) >= count:
            break
    return rows[-count:] if count else []


def recover(path: Path | str) -> list[str]:
    """After a writer died: cut torn ends off its open segments, close them, and say what was done.

    Nothing must be writing the journal. Transitions of an event that did not reach the disk go, too.

    Raises:
        JournalError: not a journal, or it cannot be written.
    """
    path = check_journal(path)
    done: list[str] = []
    last_seq = max((row["seq"] for row in tail(path, 1)), default=0)
    for table in TABLES:
        for segment in open_segments(path, table):
            data = segment.read_bytes()
            whole = b"".join(line + b"\n" for line in data.split(b"\n") if _is_kept(line, table, last_seq))
            target = closed_path(segment)
            try:
                if whole:
                    if whole != data:
                        # Never cut in place: a second crash must not take more than the first.
                        repaired = segment.with_name(f"{segment.name}.repaired")
                        repaired.write_bytes(whole)
                        repaired.replace(segment)
                    segment.rename(target)
                else:
                    segment.unlink()
            except OSError as error:
                raise JournalError(f"{segment}: cannot be recovered: {error.strerror or error}") from error
            cut = max(0, len(data) - len(whole))  # a last row may have lacked its newline only
            done.append(f"{target.name}: kept {len(whole.splitlines())} rows, cut {cut} bytes")
    return done


def _lines(segment: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with _open(segment) as file:
            yield from enumerate(file, start=1)
    except OSError as error:
        raise JournalError(f"{segment}: cannot be read: {error.strerror or error}") from error


def _open(segment: Path) -> IO[bytes]:
    try:
        return segment.open("rb")
    except FileNotFoundError:
        if closed_path(segment) == segment:
            raise
        return closed_path(segment).open("rb")  # its writer has closed it since it was listed


def _parse(line: bytes, table: Table) -> tuple[dict[str, Any], str | None]:
    """The row, and what is wrong with it."""
    if not line.endswith(b"\n"):
        return {}, "the line is cut off"
    try:
        row = json.loads(line)
    except ValueError as error:
        return {}, f"not a JSON object: {error}"
    if not isinstance(row, dict):
        return {}, f"not a JSON object but {type(row).__name__}"
    for column in table.columns:
        value = row.get(column.name)
        if value is None and not column.nullable:
            return {}, f"column {column.name} is missing"
        if value is not None and type(value) is not _TYPES[column.type]:
            return {}, f"column {column.name} should be a {column.type}, got {value!r}"
    unknown = row.keys() - {column.name for column in table.columns}
    return (row, None) if not unknown else ({}, f"unknown columns: {', '.join(sorted(unknown))}")


def _order_problem(table: Table, seq: int, previous: int, last_event: int) -> str | None:
    if table is EVENTS:
        return None if seq == previous + 1 else f"seq {seq} follows {previous}"
    if seq < previous:
        return f"seq {seq} follows {previous}"
    return None if seq <= last_event else f"seq {seq} is of an event that is not in the journal"


def _is_kept(line: bytes, table: Table, last_seq: int) -> bool:
    row, problem = _parse(line + b"\n", table)
    return problem is None and row["seq"] <= last_seq
