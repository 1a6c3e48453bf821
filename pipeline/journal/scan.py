"""Planning which parts of a journal a query must read, and reading them as Arrow batches. Independent of Spark.

Planning reads only the summaries at the segments' ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from dispatcher.journal.accepted_fields import AcceptedFields
from dispatcher.journal.format.frames import END, ROWS, Frame, FrameReader, Header
from dispatcher.journal.format.schema import EVENTS, Table
from dispatcher.journal.format.segments import read_manifest, segment_number, segment_path
from dispatcher.journal.snapshot import MANY, ClosedSegment, is_retired, unreadable
from pipeline.journal.arrow import DamagedFrameError, OpenedFrame, arrow_schema, join_frames, open_frame
from pipeline.journal.conditions import Conditions
from pipeline.journal.whole import SEQS_PER_PARTITION, look_at_whole

log = logging.getLogger(__name__)

TASK_BYTES: Final = 16 << 20
"""About how much of a journal one task reads: large against a task's overhead, small enough to keep all cores busy."""


class JournalPart(NamedTuple):
    """The frames of a segment that begin at or after byte `start` and before byte `end`."""

    segment: str
    start: int = 0
    end: int = 1 << 62
    partition: int | None = None
    """As of ClosedSegment."""

    @property
    def first_seq(self) -> int:
        """What is added to the seqs of the segment."""
        return (self.partition or 0) * SEQS_PER_PARTITION

    def named(self, line: str) -> str:
        """A line that begins with the segment's name."""
        return line if self.partition is None else f"{Path(self.segment).parent.name}/{line}"


def read_batches(
    path: Path | str,
    table: Table,
    columns: Sequence[str] | None = None,
    *,
    conditions: Conditions | None = None,
    on_damage: Callable[[str], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a table's rows in closed segments, in the order of their frames, with these columns, by default all.

    For a partitioned journal, you get one partition after the other, with seqs as in `pipeline.journal.whole`.
    `conditions` skip whole frames and segments, but don't filter individual rows. `on_damage` gets a line for each
    damaged stretch and each missing segment. By default they're logged.

    Raises:
        JournalError: it isn't a journal, or a file can't be read.
        UnknownColumnError: there's no such column.
    """
    journal = look_at_whole(path)
    schema = arrow_schema(table, columns)
    report = on_damage or logged(path)
    for line in journal.missing():
        report(line)
    parts = [JournalPart(str(segment), partition=partition) for segment, partition in journal.closed]
    yield from scan(parts, table, schema, conditions or Conditions(), report)


def logged(path: Path | str) -> Callable[[str], None]:
    return lambda line: log.warning("%s: %s", path, line)


def plan(
    closed: Sequence[ClosedSegment], table: Table, conditions: Conditions, *, task_bytes: int = TASK_BYTES
) -> list[list[JournalPart]]:
    """The parts that each task reads; together they cover each wanted segment once.

    A missing segment is planned as well: the reader reports it.
    """
    tasks: list[list[JournalPart]] = []
    room = 0
    for segment, size, summary, _, partition in closed:
        if summary is not None and not conditions.can_hold(table, summary):
            continue
        pieces = max(1, round(size / task_bytes))
        for piece in range(pieces):
            start, end = size * piece // pieces, size * (piece + 1) // pieces
            part = JournalPart(str(segment), start, end if piece < pieces - 1 else 1 << 62, partition)
            if pieces > 1 or size > room or not tasks:
                tasks.append([])
                room = task_bytes if pieces == 1 else 0
            tasks[-1].append(part)
            room -= size
    return tasks


def divide(closed: Sequence[ClosedSegment], tasks: int) -> list[list[JournalPart]]:
    """The parts that each of at most `tasks` tasks reads: consecutive, about as many bytes each, all segments once."""
    total = sum(segment.size for segment in closed)
    limits = [total * number // tasks for number in range(tasks + 1)]
    found: list[list[JournalPart]] = [[] for _ in range(tasks)]
    begins = 0
    for segment, size, _, _, partition in closed:
        ends = begins + size
        for parts, least, limit in zip(found, limits, limits[1:], strict=False):
            start, end = max(0, least - begins), limit - begins
            if start < size and end > 0:
                parts.append(JournalPart(str(segment), start, end if limit < ends else 1 << 62, partition))
        if not size:  # it is gone: a reader reports it
            found[-1].append(JournalPart(str(segment), partition=partition))
        begins = ends
    return [parts for parts in found if parts]


def scan(
    parts: Sequence[JournalPart],
    table: Table,
    schema: pa.Schema,
    conditions: Conditions,
    report: Callable[[str], None],
    report_gone: Callable[[str], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows in `parts`, with the columns of `schema`, in batches of about 64k rows.

    `report` gets a line for each damaged stretch, `report_gone`, by default the same function, for each segment that no
    longer exists. Both may raise.

    Raises:
        JournalError: a file cannot be read.
    """
    wanted = _Wanted([(table, schema)], conditions, report, report_gone or report)
    frames = (frame for part in parts for frame in wanted.frames(part))
    for (batch,) in join_frames(frames, [(table, schema)], report):
        yield batch


def scan_together(
    parts: Sequence[JournalPart],
    wanted: Sequence[tuple[Table, pa.Schema]],
    report: Callable[[str], None],
    report_gone: Callable[[str], None] | None = None,
    *,
    rows: int = 1 << 16,
) -> Iterator[tuple[pa.RecordBatch, ...]]:
    """As `scan`, for several tables at once: batches of the same frames, one for each table, of about `rows` rows.

    Each frame is read and checked once.
    """
    of_both = _Wanted(wanted, Conditions(), report, report_gone or report)
    frames = (frame for part in parts for frame in of_both.frames(part))
    yield from join_frames(frames, wanted, report, rows=rows)


def why_gone(segment: Path) -> str:
    """A line about a segment that does not exist."""
    is_removed = is_retired(segment.parent, segment_number(segment))
    return f"{segment.name}: {'was removed by retention before it was read' if is_removed else 'is missing'}"


def why_each_gone(journal: Path, first: int, last: int) -> Iterator[str]:
    """A line about each of these segments, which do not exist; one or two about all of them if they are many."""
    if last - first < MANY:
        yield from (why_gone(segment_path(journal, number)) for number in range(first, last + 1))
        return
    manifest, _ = read_manifest(journal)
    kept = first if manifest is None else max(first, min(manifest.first, last + 1))
    if first < kept:
        yield f"{_range(journal, first, kept - 1)}: were removed by retention before they were read"
    if kept <= last:
        yield f"{_range(journal, kept, last)}: are missing"


def _range(journal: Path, first: int, last: int) -> str:
    return f"{segment_path(journal, first).name} to {segment_path(journal, last).name}"


class _Wanted:
    """Finds the frames that can hold matching rows of any of the tables, without decoding them."""

    def __init__(
        self,
        wanted: Sequence[tuple[Table, pa.Schema]],
        conditions: Conditions,
        report: Callable[[str], None],
        report_gone: Callable[[str], None],
    ) -> None:
        self._tables = [table for table, _ in wanted]
        self._has_payloads = any(table is EVENTS and "payload" in schema.names for table, schema in wanted)
        self._conditions = conditions
        self._report = report
        self._report_gone = report_gone
        self._fields: dict[Path, AcceptedFields] = {}  # of each journal

    def frames(self, part: JournalPart) -> Iterator[OpenedFrame]:
        segment = Path(part.segment)
        try:
            with FrameReader(segment) as reader:
                yield from self._frames(reader, part)
        except FileNotFoundError:
            self._report_gone(part.named(why_gone(segment)))
        except OSError as error:
            raise unreadable(segment, error) from error

    def _frames(self, reader: FrameReader, part: JournalPart) -> Iterator[OpenedFrame]:
        position, has_end = 0, False

        def is_wanted(header: Header) -> bool:
            is_read = position >= part.start and header.kind == ROWS
            return is_read and any(self._conditions.can_hold(table, numbered(header)) for table in self._tables)

        def numbered(header: Header) -> Header:
            return header._replace(first_seq=header.first_seq + part.first_seq) if part.partition else header

        # Only walking the headers from the segment's start on shows where frames begin.
        for found in reader.frames(is_wanted):
            if found.offset >= part.end:
                return
            if not isinstance(found, Frame):
                position = found.offset + found.length
                if found.offset >= part.start:
                    self._report(part.named(str(found)))
                continue
            position, has_end = found.end, found.header.kind == END
            if found.payload:
                where = part.named(f"{reader.path.name}, frame {found.header.number}")
                yield from self._opened(numbered(found.header), found.payload, where, reader.path.parent)
        if not has_end:
            self._report(part.named(f"{reader.path.name}: has no end"))

    def _opened(self, header: Header, payload: bytes, where: str, journal: Path) -> Iterator[OpenedFrame]:
        try:
            opened = open_frame(header, payload, where)
            if not any(self._conditions.can_hold_kinds(table, opened.payload) for table in self._tables):
                return
            if self._has_payloads:
                fields = self._fields.setdefault(journal, AcceptedFields(journal))
                opened = opened._replace(payload=fields.complete_frame(opened.payload))
        except (
            DamagedFrameError,
            ValueError,
            IndexError,
        ) as error:  # the last two of columns that contradict each other
            self._report(f"{where}: {error}")
            return
        yield opened
