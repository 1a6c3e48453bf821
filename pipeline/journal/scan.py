"""Planning which parts of a journal a query must read, and reading them as Arrow batches. Independent of Spark.

Planning reads only the summaries at the segments' ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from dispatcher.journal.accepted_fields import AcceptedFields
from dispatcher.journal.conditions import Conditions
from dispatcher.journal.format.frames import ROWS, Frame, FrameReader, Header
from dispatcher.journal.format.schema import EVENTS, Table
from dispatcher.journal.read import frames_from
from dispatcher.journal.snapshot import ClosedSegment, open_segment
from pipeline.journal.arrow import DamagedFrameError, OpenedFrame, arrow_schema, join_frames, open_frame
from pipeline.journal.damage import Problem, folder_problems, problem_of, problem_of_gone, segment_problems
from pipeline.journal.whole import SEQS_PER_PARTITION, look_at_whole

log: logging.Logger = logging.getLogger(__name__)

TASK_BYTES: Final = 16 << 20
"""About how much of a journal one task reads: large against a task's overhead, small enough to keep all cores busy."""

TO_THE_END: Final = 1 << 62

Report: TypeAlias = Callable[[Problem], None]
"""Takes each problem that a reader meets; may raise."""


class JournalPart(NamedTuple):
    """The frames of a segment that begin at or after byte `start` and before byte `end`."""

    segment: str
    start: int = 0
    end: int = TO_THE_END
    partition: int | None = None
    """The number of its partition, if it is read as a part of a partitioned journal."""

    @property
    def first_seq(self) -> int:
        """What is added to the seqs of the segment."""
        return (self.partition or 0) * SEQS_PER_PARTITION

    def holds(self, problem: Problem) -> bool:
        """Whether a problem of the segment is in this part; one about the whole file is in the last part."""
        return self.end == TO_THE_END if problem.offset is None else self.start <= problem.offset < self.end

    def named(self, problem: Problem) -> Problem:
        """A problem of the segment, with a name that is unique among all partitions."""
        if self.partition is None:
            return problem
        folder = Path(self.segment).parent.name
        return problem._replace(segment=f"{folder}/{problem.segment}", problem=f"{folder}/{problem.problem}")


class FramePlace(NamedTuple):
    """Where a frame was read."""

    part: JournalPart
    offset: int
    length: int


def read_batches(
    path: Path | str,
    table: Table,
    columns: Sequence[str] | None = None,
    *,
    conditions: Conditions | None = None,
    on_damage: Report | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a table's rows in closed segments, in the order of their frames, with these columns, by default all.

    For a partitioned journal, you get one partition after the other, with seqs as in `pipeline.journal.whole`.
    `conditions` skip whole frames and segments, but don't filter individual rows. `on_damage` gets each problem of the
    folder and of the segments that are read; its string is one line. By default they're logged.

    Raises:
        JournalError: it isn't a journal, or a file can't be read.
        UnknownColumnError: there's no such column.
    """
    journal = look_at_whole(path)
    schema = arrow_schema(table, columns)
    report = on_damage or logged(path)
    for problem in folder_problems(journal):
        report(problem)
    parts = [JournalPart(str(segment), partition=partition) for segment, partition in journal.closed]
    yield from scan(parts, table, schema, conditions or Conditions(), report)


def logged(path: Path | str) -> Report:
    return lambda problem: log.warning("%s: %s", path, problem)


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
            part = JournalPart(str(segment), start, end if piece < pieces - 1 else TO_THE_END, partition)
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
                parts.append(JournalPart(str(segment), start, end if limit < ends else TO_THE_END, partition))
        if not size:  # it is gone: a reader reports it
            found[-1].append(JournalPart(str(segment), partition=partition))
        begins = ends
    return [parts for parts in found if parts]


def scan(
    parts: Sequence[JournalPart],
    table: Table,
    schema: pa.Schema,
    conditions: Conditions,
    report: Report,
    report_gone: Report | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows in `parts`, with the columns of `schema`, in batches of about 64k rows.

    `report` gets each problem of the segments, `report_gone`, by default the same function, each segment that no longer
    exists. Both may raise.

    Raises:
        JournalError: a file cannot be read.
    """
    for (batch,) in scan_together(parts, [(table, schema)], report, report_gone, conditions=conditions):
        yield batch


def scan_together(
    parts: Sequence[JournalPart],
    wanted: Sequence[tuple[Table, pa.Schema]],
    report: Report,
    report_gone: Report | None = None,
    *,
    conditions: Conditions | None = None,
    rows: int = 1 << 16,
) -> Iterator[tuple[pa.RecordBatch, ...]]:
    """Scan several tables at once: batches of the same frames, one for each table, of about `rows` rows.

    Each frame is read and checked once.
    """
    scanner = _Scanner(wanted, conditions or Conditions(), report, report_gone or report)
    frames = (frame for part in parts for frame in scanner.frames(part))
    yield from join_frames(frames, wanted, scanner.report_frame, rows)


class _Scanner:
    """Finds the frames that can hold matching rows of any of the tables, without decoding them.

    Without conditions, it checks every byte. Once it meets damage in a segment, it reports what a check of the whole
    segment finds in its part of it.
    """

    def __init__(
        self,
        wanted: Sequence[tuple[Table, pa.Schema]],
        conditions: Conditions,
        report: Report,
        report_gone: Report,
    ) -> None:
        self._tables = [table for table, _ in wanted]
        self._has_payloads = any(table is EVENTS and "payload" in schema.names for table, schema in wanted)
        self._conditions = conditions
        self._report = report
        self._report_gone = report_gone
        self._fields: dict[Path, AcceptedFields] = {}  # of each journal
        self._reported: dict[JournalPart, set[int | None]] = {}  # offsets of what was reported of a part

    def frames(self, part: JournalPart) -> Iterator[OpenedFrame[FramePlace]]:
        segment = Path(part.segment)
        with open_segment(segment) as reader:
            if reader is None:
                self._report_gone(part.named(problem_of_gone(segment)))
            else:
                yield from self._frames(reader, part)

    def _frames(self, reader: FrameReader, part: JournalPart) -> Iterator[OpenedFrame[FramePlace]]:
        position = 0

        def is_wanted(header: Header) -> bool:
            if position < part.start or self._conditions.is_empty:
                return position >= part.start
            return header.kind == ROWS and any(
                self._conditions.can_hold(table, numbered(header)) for table in self._tables
            )

        def numbered(header: Header) -> Header:
            return header._replace(first_seq=header.first_seq + part.first_seq) if part.partition else header

        # Only walking the headers from the segment's start on shows where frames begin.
        for found in frames_from(reader, is_wanted, is_open=False):
            if found.offset is not None and found.offset >= part.end:
                return
            if isinstance(found, Frame):
                position = found.end
                if found.payload and found.header.kind == ROWS:
                    yield from self._opened(numbered(found.header), found, part)
            else:
                position += found.length or 0
                if not found.is_consequence:
                    self.report(part, problem_of(found))

    def _opened(self, header: Header, frame: Frame, part: JournalPart) -> Iterator[OpenedFrame[FramePlace]]:
        place = FramePlace(part, frame.offset, frame.end - frame.offset)
        try:
            opened = open_frame(header, frame.payload, place)
            if not any(self._conditions.can_hold_kinds(table, opened.payload) for table in self._tables):
                return
            if self._has_payloads:
                journal = Path(part.segment).parent
                fields = self._fields.setdefault(journal, AcceptedFields(journal))
                opened = opened._replace(payload=fields.complete_frame(opened.payload))
        except (
            DamagedFrameError,
            ValueError,
            IndexError,
        ) as error:  # the last two of columns that contradict each other
            self.report_frame(header, place, str(error))
            return
        yield opened

    def report_frame(self, header: Header, place: FramePlace, problem: str) -> None:
        """Report a frame that cannot be decoded, although it passed its checksum."""
        name = Path(place.part.segment).name
        line = f"{name}, frame {header.number}: {problem}"
        lost = header.events, header.transitions
        self.report(place.part, Problem(name, place.offset, place.length, line, *lost))

    def report(self, part: JournalPart, seen: Problem) -> None:
        """Report all problems in the part of the segment, once, and the one that was seen if it is not among them.

        Does nothing if it was seen in another part.
        """
        if not part.holds(seen):
            return
        problems = [seen]
        if part not in self._reported:
            self._reported[part] = set()
            problems = [*filter(part.holds, segment_problems(Path(part.segment))), seen]
        for problem in problems:
            if problem.offset not in self._reported[part]:
                self._reported[part].add(problem.offset)
                self._report(part.named(problem))
