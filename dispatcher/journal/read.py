"""Reading journals. Every reader walks over the segments with one of these functions:

    parts_of(path)    the journals of a folder: its partitions, or itself       (dispatcher.journal.snapshot)
    look_at(path)     one of them at one moment: its segments                   (dispatcher.journal.snapshot)
    frames_in         the frames of a segment
    frames            the frames of a journal
    rows              the rows of one of its tables

Damage is an item among the frames and rows, in the place of what is damaged or missing. So no caller passes over it by
accident.

Readers take no lock, and any thread may read while a writer appends.
"""

from __future__ import annotations

import heapq
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from dispatcher.journal.accepted_fields import AcceptedFields
from dispatcher.journal.conditions import Conditions
from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.event_codec import marks_of
from dispatcher.journal.format.frames import ACCEPTED, END, ROWS, Damage, Frame, FrameReader, Header
from dispatcher.journal.format.outstanding import NEEDED, Accepted, Outstanding
from dispatcher.journal.format.partitions import partition_number
from dispatcher.journal.format.schema import EVENTS, Table
from dispatcher.journal.format.segments import is_open_segment, segment_number
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.snapshot import JournalSnapshot, gone, look_at, open_segment, parts_of, summary_of
from dispatcher.util.functions import require_plain

log: logging.Logger = logging.getLogger(__name__)

Wanted = Callable[[Header], bool]
"""Which frames a caller wants with their payloads."""


def all_frames(header: Header) -> bool:
    return True


def headers_only(header: Header) -> bool:
    return False


def of_kinds(*kinds: int) -> Wanted:
    """Frames of these kinds."""
    return lambda header: header.kind in kinds


def frames_in(
    segment: Path, wanted: Wanted = all_frames, *, check_all: bool = False, newest_first: bool = False
) -> Iterator[Frame | Damage]:
    """The frames of a segment and its damage. A segment that is gone, or that has no end, is damage as well.

    Frames that are not `wanted` come without their payloads, which are read and checked only with `check_all`.
    `newest_first`: the damage comes before the frames, and only frames that are wanted come.

    Raises:
        JournalError: it cannot be read.
    """
    with open_segment(segment) as reader:
        if reader is None:
            yield gone(segment)
        elif newest_first:
            yield from _backward(reader, wanted, check_all=check_all, is_open=is_open_segment(segment))
        else:
            yield from frames_from(reader, wanted, check_all=check_all, is_open=is_open_segment(segment))


def frames_from(
    reader: FrameReader, wanted: Wanted = all_frames, *, is_open: bool, start: int = 0, check_all: bool = False
) -> Iterator[Frame | Damage]:
    """The frames and damage of a segment that the caller has open, from byte `start` on. Raises OSError.

    Frames without payloads, and `check_all`: see `frames_in`.
    """
    last, is_cut = 0, False
    for found in reader.frames(wanted, start=start, check_all=check_all):
        if isinstance(found, Frame):
            last, is_cut = found.header.kind, False
            yield found
        else:
            is_cut = found.at_end
            yield found._replace(is_torn=True) if is_open and is_cut else found
    if not is_open and last != END:
        name = reader.path.name
        yield Damage(name, f"{name}: has no end", is_consequence=is_cut)


def _backward(reader: FrameReader, wanted: Wanted, *, check_all: bool, is_open: bool) -> Iterator[Frame | Damage]:
    """The damage, and then the wanted frames, the last one first; holds the payload of one at a time."""
    offsets = array("Q")
    for found in frames_from(reader, headers_only, check_all=check_all, is_open=is_open):
        if isinstance(found, Damage):
            yield found
        elif wanted(found.header):
            offsets.append(found.offset)
    for offset in reversed(offsets):
        yield next(reader.frames(start=offset))


def sparse_frames(segment: Path, kind: int, start: int = 0) -> Iterator[Frame]:
    """The intact frames of one kind from byte `start` on, found fast among others. Damage is passed over in silence:
    callers notice lost rows by a gap in the seqs.

    Raises:
        JournalError: it cannot be read.
    """
    with open_segment(segment) as reader:
        if reader is not None:
            yield from reader.frames_of(kind, start)


def frames(
    journal: JournalSnapshot,
    wanted: Wanted,
    *,
    where: tuple[Table, Conditions] | None = None,
    newest_first: bool = False,
) -> Iterator[Frame | Damage]:
    """The frames of a journal and its damage; missing segments come first.

    `where`: segments and frames that hold no matching row of the table are passed over, neither read nor checked.
    Without `where`, each byte is checked.

    Raises:
        JournalError: a file cannot be read.
    """
    yield from journal.missing()

    def matches(part: Header | Summary) -> bool:
        return where is None or where[1].can_hold(where[0], part)

    for segment in reversed(journal.in_order) if newest_first else journal.in_order:
        summary = None if where is None or is_open_segment(segment) else summary_of(segment)
        if summary is None or matches(summary):
            yield from frames_in(
                segment,
                lambda header: wanted(header) and matches(header),
                check_all=where is None,
                newest_first=newest_first,
            )


def rows(
    journal: JournalSnapshot,
    table: Table,
    *,
    where: Conditions | None = None,
    columns: tuple[str, ...] | None = None,
    newest_first: bool = False,
    completes: bool = True,
    on_frame: Callable[[], object] = lambda: None,
) -> Iterator[Iterable[dict[str, Any]] | Damage]:
    """The rows of a table, one frame's at a time, and the journal's damage. They come in the order of their seq, or in
    the opposite order with `newest_first`.

    A null is a missing key. `where`: passes over segments and frames, see `frames`; rows are not filtered. `columns`:
    by default all. `completes`: an event without a payload gets the fields with which it was accepted. `on_frame` is
    called for each frame read.

    Raises:
        JournalError: a file cannot be read.
    """
    fields = AcceptedFields(journal.path) if completes and table is EVENTS else None

    def decoded(frame: Frame) -> Iterable[dict[str, Any]]:
        found = decode_rows(frame.payload).rows(table, frame.header.first_seq, columns=columns)
        in_order = found if fields is None else fields.complete(found)
        return reversed(list(in_order)) if newest_first else in_order

    of_rows = of_kinds(ROWS)
    for found in frames(journal, of_rows, where=None if where is None else (table, where), newest_first=newest_first):
        on_frame()
        if isinstance(found, Damage):
            yield found
        elif found.payload and found.header.kind == ROWS:
            yield decoded(found)


def read_rows(
    path: Path | str,
    table: Table,
    *,
    on_damage: Callable[[str], object] | None = None,
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
        yield from reporting(rows(look_at(parts.path), table), report)
        return
    for line in parts.problems:
        report(line)

    def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
        number = partition_number(folder)
        for row in reporting(rows(look_at(folder), table), parts.naming(folder, report)):
            row["partition"] = number
            yield row

    yield from heapq.merge(*map(rows_of, parts.folders), key=itemgetter(table.time))


def reporting(
    found: Iterable[Iterable[dict[str, Any]] | Damage], report: Callable[[str], object]
) -> Iterator[dict[str, Any]]:
    """The rows among what `rows` has found. `report` gets a line for each problem."""
    for each in found:
        if not isinstance(each, Damage):
            yield from each
        elif each.is_problem:
            report(each.line)
        del each  # otherwise the rows of two frames are held while the next one is decoded


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
    newest = reporting(rows(look_at(path), EVENTS, newest_first=True), _logged(path))
    return list(islice(newest, count))[::-1]


def _logged(path: Path) -> Callable[[str], object]:
    return lambda line: log.warning("%s: %s", path, line)


class Unhandled(NamedTuple):
    """What a journal in write-ahead mode owes at one moment."""

    events: tuple[Accepted, ...]
    """Accepted and not recorded as handled, oldest first."""
    first_line: bytes | None
    """The line of the first accepted event that the journal still has, handled or not; None: it has none."""

    @property
    def is_of_letters(self) -> bool:
        """The journal is a folder of dead letters."""
        return self.first_line is not None and marks_of(self.first_line).died is not None


def read_unhandled(folder: Path, on_damage: Callable[[str], object] = lambda line: None) -> Unhandled:
    """Read the unhandled events of one dispatcher's journal, without its writer's lock and without repairing it.

    `on_damage` gets a line for each damaged stretch and each missing segment.

    Raises:
        JournalError: not a journal, or a file cannot be read.
    """
    journal = look_at(folder)
    for damage in journal.missing():
        on_damage(damage.line)
    last = next(filter(None, map(summary_of, reversed(journal.closed))), None)
    first = max(1, last.recover_from if last is not None else 1)
    outstanding = Outstanding(journal.path, first)
    for segment in journal.in_order:
        if segment_number(segment) >= first:
            for damage in read_outstanding(outstanding, segment):
                if damage.is_problem and not damage.is_consequence:
                    on_damage(damage.line)
    return Unhandled(outstanding.accepted(), _first_line(journal))


def read_outstanding(outstanding: Outstanding, segment: Path) -> list[Damage]:
    """Add a segment to `outstanding`, and return the segment's damage. Raises JournalError: it cannot be read."""
    found, is_open = frames_in(segment, of_kinds(*NEEDED)), is_open_segment(segment)
    return outstanding.add(segment_number(segment), found, None if is_open else summary_of(segment), is_open=is_open)


def _first_line(journal: JournalSnapshot) -> bytes | None:
    for segment in journal.in_order:
        for found in frames_in(segment, of_kinds(ACCEPTED)):
            if isinstance(found, Frame) and found.header.kind == ACCEPTED:
                return found.payload.partition(b"\n")[0]
    return None
