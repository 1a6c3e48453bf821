"""Verification of a journal: of its folder, of one segment byte by byte, and of the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import ACCEPTED, END, ROWS, SNAPSHOT, START, Damage, Frame, FrameReader
from dispatcher.journal.format.live_states import STATES_FILES, decode_states, decode_states_file
from dispatcher.journal.format.schema import TABLES
from dispatcher.journal.format.segments import (
    MANIFEST,
    is_open_segment,
    read_manifest,
    segment_number,
    segment_path,
)
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.read import frames_from, frames_in, headers_only
from dispatcher.journal.snapshot import JournalSnapshot, about_file, gone, look_at, open_segment, parts_of, unreadable
from dispatcher.util.files import read_file


class Verification(NamedTuple):
    """What `verify` found."""

    events: int
    transitions: int
    problems: tuple[str, ...]
    """One line each: segment, place and what is wrong; empty for a sound journal."""
    open_segments: tuple[Path, ...]
    """Segments that are being written, or were when their writer died."""
    torn: tuple[str, ...] = ()
    """Incomplete frames at the ends of open segments: cut off by a crash, or being written."""


class Progress:
    """Counts of the rows checked so far, and the seqs expected next; None accepts any."""

    def __init__(self) -> None:
        self.events = 0
        self.transitions = 0
        self.next_seq: int | None = None
        self.next_accepted: int | None = None
        self.summary: Summary | None = None
        """At the end of the segment that was checked last; None: the end is damaged."""


def verify(path: Path | str) -> Verification:
    """Check each byte against its checksum, and that no frame, segment, event or accepted event is missing.

    For a partitioned journal, this checks each partition, that none is missing, and the states of its entities.

    Raises:
        JournalError: it isn't a journal, has another format, or a file can't be read.
    """
    parts = parts_of(path)
    if not parts.is_partitioned:
        return _verify(parts.path)
    found = [(folder, _verify(folder)) for folder in parts.folders]
    return Verification(
        sum(each.events for _, each in found),
        sum(each.transitions for _, each in found),
        (
            *parts.problems,
            *_check_states_files(parts.path),
            *(parts.named(folder, line) for folder, each in found for line in each.problems),
        ),
        tuple(segment for _, each in found for segment in each.open_segments),
        tuple(parts.named(folder, line) for folder, each in found for line in each.torn),
    )


def _verify(path: Path) -> Verification:
    snapshot = look_at(path)
    manifest, closed = snapshot.manifest, snapshot.closed
    progress = Progress()
    if manifest is not None and manifest.first == 1 and (not closed or segment_number(closed[0]) == 1):
        progress.next_seq = progress.next_accepted = 1
    problems = [damage.line for damage in check_folder(snapshot)]
    torn: list[str] = []
    for segment in sorted((*closed, *snapshot.left_open), key=segment_number):
        for damage in check_segment(segment, progress):
            if damage.is_problem:
                problems.append(damage.line)
            elif damage.is_torn:
                torn.append(damage.line)
    return Verification(progress.events, progress.transitions, tuple(problems), snapshot.left_open, tuple(torn))


def _check_states_files(path: Path) -> Iterator[str]:
    """A line for each damaged file of the states with which a partitioned journal's last run began."""
    for file in sorted(path.glob(STATES_FILES)):
        try:
            decode_states_file(read_file(file))
        except OSError as error:
            raise unreadable(file, error) from error
        except ValueError as error:
            yield f"{file.name}: {error}"


def check_folder(snapshot: JournalSnapshot) -> list[Damage]:
    """What is wrong with the manifest, and missing and odd segments.

    Raises:
        JournalError: an open segment cannot be read.
    """
    lines = [snapshot.problem] if snapshot.problem is not None else []
    if snapshot.manifest is None and snapshot.problem is None:
        lines.append(f"{MANIFEST}: is missing")
    return [
        *map(about_file, lines),
        *snapshot.missing(),
        *(about_file(line)._replace(events=0, transitions=0) for line in snapshot.odd),
        *map(about_file, _against_manifest(snapshot)),
    ]


def _against_manifest(snapshot: JournalSnapshot) -> list[str]:
    """Where the segments contradict each other or the manifest; nothing if a writer has changed it meanwhile."""
    found = list(_contradictions(snapshot))
    return found if not found or read_manifest(snapshot.path)[0] == snapshot.manifest else []


def _contradictions(snapshot: JournalSnapshot) -> Iterator[str]:
    manifest = snapshot.manifest
    last = max(map(segment_number, (*snapshot.closed[-1:], *snapshot.left_open[-1:])), default=0)
    for segment in snapshot.left_open:
        if segment_number(segment) < last:
            yield f"{segment.name}: is open, but segment {last} was begun after it"
    if manifest is None:
        return
    allowed = manifest.last if manifest.closed else manifest.last + 1
    numbers = list(map(segment_number, snapshot.closed))
    before = [number for number in numbers if number < manifest.first]
    # The one before the first may be about to be removed, or a crash prevented its removal.
    for number in before if before != [manifest.first - 1] else ():
        yield f"{segment_path(snapshot.path, number).name}: the manifest begins at {manifest.first}"
    for segment, number in zip(snapshot.closed, numbers, strict=True):
        if number > allowed:
            yield f"{segment.name}: the manifest ends at {manifest.last}"
    if manifest.closed:
        for segment in filter(_is_begun, snapshot.left_open):
            yield f"{segment.name}: is open, and the manifest says that all are closed"
    elif not snapshot.left_open and allowed not in numbers:
        yield f"segment {allowed}: is missing: the manifest says that it is being written"


def _is_begun(segment: Path) -> bool:
    """Whether an open segment holds more than its START frame."""
    return any(isinstance(found, Frame) and found.header.kind != START for found in frames_in(segment, headers_only))


def check_segment(segment: Path, progress: Progress) -> Iterator[Damage]:
    """Check each byte of a segment and each frame's place and numbers, and add its rows to `progress`.

    Raises:
        JournalError: it cannot be read.
    """
    progress.summary = None
    with open_segment(segment) as reader:
        if reader is None:
            # Any seq may follow.
            progress.next_seq = progress.next_accepted = None
            yield gone(segment)
        else:
            yield from _check(segment, reader, progress)


def _check(segment: Path, reader: FrameReader, progress: Progress) -> Iterator[Damage]:
    name, frames, last, is_damaged, is_open = segment.name, 0, 0, False, is_open_segment(segment)
    before = progress.events, progress.transitions
    for found in frames_from(reader, is_open=is_open):
        if isinstance(found, Damage):
            is_damaged |= found.offset is not None
            yield found
            continue
        where = f"{name}, frame {found.header.number}"
        damage = Damage(name, where, found.offset, found.end - found.offset)
        if last == END:
            yield damage._replace(line=f"{where}: comes after the end")
        frames, last = found.header.number + 1, found.header.kind
        for problem, gap in _out_of_order(found, progress):
            yield damage._replace(line=f"{where}: {problem}", events=gap, is_consequence=is_damaged)
        try:
            if last == END:
                for problem, *lost in _lost_rows(found, before, progress):
                    line = f"{where}: {problem}"
                    yield damage._replace(line=line, events=lost[0], transitions=lost[1], is_consequence=is_damaged)
            else:
                for problem in _unfit(found, segment, progress):
                    yield damage._replace(line=f"{where}: {problem}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            yield damage._replace(line=f"{where}: cannot be read: {type(error).__name__}: {error}")
    if is_open:
        return
    if reader.last_frame() is None:
        line = f"{name}: its trailer does not point to its end"
        yield Damage(name, line, is_consequence=is_damaged or last != END)
    if not frames:
        yield Damage(name, f"{name}: has no intact frame", is_consequence=True)


def is_whole(segment: Path) -> bool:
    """Whether a closed segment has no damage by itself. Raises JournalError."""
    return next(check_segment(segment, Progress()), None) is None


def _out_of_order(frame: Frame, progress: Progress) -> Iterator[tuple[str, int | None]]:
    """Check that the frame's first seq follows the previous frame; with each problem, how many events are between."""
    header = frame.header
    if header.kind == ROWS:
        for problem in _order("seq", header.first_seq, progress.next_seq):
            gap = header.first_seq - (progress.next_seq or 0)
            yield problem, gap if gap > 0 else None
        progress.next_seq = header.first_seq + header.events
    elif header.kind == ACCEPTED:
        for problem in _order("accepted seq", header.first_seq, progress.next_accepted):
            yield problem, 0
        progress.next_accepted = header.first_seq + header.events


def _order(what: str, found: int, expected: int | None) -> Iterator[str]:
    if expected is not None and found != expected:
        yield f"{what} {found} follows {expected - 1}"


def _unfit(frame: Frame, segment: Path, progress: Progress) -> Iterator[str]:
    """Contradictions between a payload and its header. Raises ValueError, KeyError, TypeError: it cannot be read."""
    header = frame.header
    if header.kind == ROWS:
        payload = decode_rows(frame.payload)
        counts = tuple(map(payload.rows_of, TABLES))
        if counts != (header.events, header.transitions):
            yield f"has {counts} rows, but its header says {(header.events, header.transitions)}"
        else:
            yield from payload.misfits(header)
        progress.events += header.events
        progress.transitions += header.transitions
    elif header.kind == START:
        number = json.loads(frame.payload)["segment"]
        if number != segment_number(segment) or header.number:
            yield f"is the start of segment {number}"
    elif header.kind == SNAPSHOT:
        decode_states(frame.payload)
    elif header.kind != ACCEPTED:
        yield f"is of the unknown kind {header.kind}"


def _lost_rows(end: Frame, before: tuple[int, int], progress: Progress) -> Iterator[tuple[str, int, int]]:
    """Compare the segment's rows with the counts in its END frame; with the problem, the difference. Raises as
    `_unfit`."""
    had = progress.summary = Summary(**json.loads(end.payload))
    events, transitions = progress.events - before[0], progress.transitions - before[1]
    if (had.events, had.transitions) != (events, transitions):
        line = f"the segment had {had.events} events and {had.transitions} transitions, now {events} and {transitions}"
        yield line, had.events - events, had.transitions - transitions
