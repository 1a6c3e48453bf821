"""Reading a journal without Spark: the rows of intact frames. Damaged stretches are skipped and reported."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from dispatcher.journal.accepted_fields import AcceptedFields
from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import END, ROWS, Frame
from dispatcher.journal.format.partitions import partition_number
from dispatcher.journal.format.schema import EVENTS, Table
from dispatcher.journal.format.segments import segment_number
from dispatcher.journal.snapshot import is_retired, look_at, open_frames, parts_of, unreadable
from dispatcher.util.functions import require_plain

log = logging.getLogger(__name__)


def read_rows(
    path: Path | str,
    table: Table,
    *,
    on_damage: Callable[[str], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Read a table's rows in the order of their seq, up to the last intact frame of the open segment.

    A null is a missing key. In write-ahead mode, a row without a payload gets the event's fields as its payload.

    A torn frame at the end of the open segment is being written, or was cut off by a crash, and isn't damage.
    `on_damage` gets a line for each damaged stretch and each missing segment. By default they're logged.

    The rows of a partitioned journal are merged by the table's time. Each row has the number of its partition,
    `partition`, and the rows of one partition stay in the order of their seq.

    Raises:
        JournalError: it isn't a journal, or a file can't be read.
    """
    if on_damage is not None:
        on_damage = require_plain(on_damage, "on_damage", "takes a line")
    parts = parts_of(path)
    report = on_damage or _logged(parts.path)
    if not parts.is_partitioned:
        yield from _rows_in(parts.path, table, report)
        return
    for line in parts.problems:
        report(line)

    def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
        number = partition_number(folder)
        for row in _rows_in(folder, table, lambda line: report(parts.named(folder, line))):
            row["partition"] = number
            yield row

    yield from heapq.merge(*map(rows_of, parts.folders), key=itemgetter(table.time))


def _rows_in(path: Path, table: Table, report: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """The rows of an ordinary journal."""
    snapshot = look_at(path)
    for line in snapshot.missing():
        report(line)
    fields = AcceptedFields(path)
    for segment in snapshot.in_order:
        for frame in _rows_frames(snapshot.path, segment, report):
            yield from _dicts(frame, table, fields)


def tail(path: Path | str, count: int = 10) -> list[dict[str, Any]]:
    """Return the last `count` events, including the intact frames of an open segment.

    A partitioned journal is read as by `read_rows`.

    Raises:
        JournalError: as `read_rows`.
    """
    parts = parts_of(path)
    if not parts.is_partitioned:
        return _tail_of(parts.path, count)
    found = [row | {"partition": partition_number(part)} for part in parts.folders for row in _tail_of(part, count)]
    return sorted(found, key=itemgetter(EVENTS.time))[-count:] if count else []


def _tail_of(path: Path, count: int) -> list[dict[str, Any]]:
    snapshot = look_at(path)
    rows: list[dict[str, Any]] = []
    fields = AcceptedFields(path)
    for segment in reversed(snapshot.in_order):
        for frame in reversed(list(_rows_frames(snapshot.path, segment, _logged(snapshot.path)))):
            rows = [*_dicts(frame, EVENTS, fields), *rows]
            if len(rows) >= count:
                return rows[-count:] if count else []
    return rows


def _logged(path: Path) -> Callable[[str], None]:
    return lambda line: log.warning("%s: %s", path, line)


def _rows_frames(path: Path, segment: Path, report: Callable[[str], None]) -> Iterator[Frame]:
    is_open = segment.name.startswith(".")
    has_end = False
    try:
        with open_frames(segment) as reader:
            for found in reader.frames(lambda header: header.kind == ROWS, check_all=True):
                if isinstance(found, Frame):
                    has_end = found.header.kind == END
                    if found.header.kind == ROWS:
                        yield found
                elif not (is_open and found.at_end):
                    report(str(found))
        if not (has_end or is_open):
            report(f"{segment.name}: has no end")
    except FileNotFoundError:
        if not is_retired(path, segment_number(segment)):
            report(f"{segment.name}: is missing")
    except OSError as error:
        raise unreadable(segment, error) from error


def _dicts(frame: Frame, table: Table, fields: AcceptedFields) -> Iterable[dict[str, Any]]:
    rows = decode_rows(frame.payload).rows(table, frame.header.first_seq)
    return fields.complete(rows) if table is EVENTS else rows
