"""The check of a whole journal: every byte, every number, and that nothing is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import ACCEPTED, END, ROWS, START, Damage, Frame
from dispatcher.journal.format.schema import TABLES
from dispatcher.journal.format.segments import (
    MANIFEST,
    Manifest,
    Summary,
    open_segments,
    read_manifest,
    segment_number,
    segments,
)
from dispatcher.journal.reader import check_journal, is_retired, missing_segments, open_frames

_LOOKS: Final = 100
"""More than enough to find a moment in which no segment is closed."""


class Verification(NamedTuple):
    """What `verify` found."""

    events: int
    transitions: int
    problems: tuple[str, ...]
    """One line each: segment, place and what is wrong; empty for a sound journal."""
    open_segments: tuple[Path, ...]
    """Being written, or left by a writer that died."""
    torn: tuple[str, ...] = ()
    """Ends of open segments that are no whole frame: cut off by a crash, or being written just now."""


class _Counted:
    """What was counted so far, and what comes next."""

    def __init__(self) -> None:
        self.events = 0
        self.transitions = 0
        self.next_seq: int | None = None
        self.next_accepted: int | None = None


def verify(path: Path | str) -> Verification:
    """Check each byte against its checksum, and that no frame, segment, event or accepted event is missing.

    Raises:
        JournalError: not a journal, one of another format, or a file cannot be read.
    """
    path = check_journal(path)
    manifest, problem, closed, left_open = _listed(path)
    problems = [problem] if problem is not None else []
    if manifest is None and problem is None:
        problems.append(f"{MANIFEST}: is missing")
    problems += missing_segments(path, closed)
    counted = _Counted()
    if manifest is not None:
        numbers = [segment_number(segment) for segment in closed]
        allowed = manifest.last if manifest.closed else manifest.last + 1
        problems += [f"{p.name}: the manifest ends at {manifest.last}" for p in closed if segment_number(p) > allowed]
        if manifest.first == 1 and (not numbers or numbers[0] == 1):
            counted.next_seq = counted.next_accepted = 1
        if manifest.closed:
            problems += [
                f"{p.name}: is open, and the manifest says that all are closed" for p in left_open if _is_begun(p)
            ]
        if not manifest.closed and not left_open and allowed not in numbers:
            problems.append(f"segment {allowed}: is missing: the manifest says that it is being written")
    torn: list[str] = []
    for segment in (*closed, *left_open):
        try:
            for found, is_torn in _of_segment(segment, counted, segment in left_open):
                (torn if is_torn else problems).append(found)
        except FileNotFoundError:
            # Removed by retention since it was listed; what comes next is the first.
            counted.next_seq = counted.next_accepted = None
            if not is_retired(path, segment_number(segment)):
                problems.append(f"{segment.name}: is missing")
        except OSError as error:
            raise JournalError(f"{segment}: cannot be read: {error.strerror or error}") from error
    return Verification(counted.events, counted.transitions, tuple(problems), tuple(left_open), tuple(torn))


def _listed(path: Path) -> tuple[Manifest | None, str | None, list[Path], list[Path]]:
    """The manifest, what is wrong with it, the closed and the open segments: of one moment, also beside a writer."""
    for _ in range(_LOOKS):
        manifest, problem = read_manifest(path)
        # In this order, so that one that is closed meanwhile is found.
        left_open, closed = open_segments(path), segments(path)
        if read_manifest(path) == (manifest, problem):
            break
    if manifest is not None:
        # A segment before the first is about to be removed, or a crash came before that.
        closed = [segment for segment in closed if segment_number(segment) >= manifest.first]
    numbers = set(map(segment_number, closed))
    return manifest, problem, closed, [segment for segment in left_open if segment_number(segment) not in numbers]


def _is_begun(segment: Path) -> bool:
    """Whether more than its start is in an open segment."""
    with open_frames(segment) as reader:
        return any(isinstance(found, Frame) and found.header.kind != START for found in reader.frames(lambda _: False))


def _of_segment(segment: Path, counted: _Counted, is_open: bool) -> Iterator[tuple[str, bool]]:
    """The problems of one segment, each with whether it is but a torn tail."""
    number, events, transitions, last = 0, counted.events, counted.transitions, 0
    with open_frames(segment) as reader:
        for found in reader.frames(lambda _: True):
            if isinstance(found, Damage):
                yield str(found), is_open and found.at_end
                continue
            where = f"{segment.name}, frame {found.header.number}"
            if last == END:
                yield f"{where}: comes after the end", False
            number, last = found.header.number + 1, found.header.kind
            for problem in _of_frame(found, segment, counted, events, transitions):
                yield f"{where}: {problem}", False
        if not is_open and last != END:
            yield f"{segment.name}: has no end", False
        if not is_open and reader.last_frame() is None:
            yield f"{segment.name}: does not say where its end begins", False
        if not number and not is_open:
            yield f"{segment.name}: has no whole frame", False


def _of_frame(frame: Frame, segment: Path, counted: _Counted, events: int, transitions: int) -> Iterator[str]:
    header = frame.header
    try:
        if header.kind == ROWS:
            yield from _order("seq", header.first_seq, counted.next_seq)
            counted.next_seq = header.first_seq + header.events
            payload = decode_rows(frame.payload)
            counts = tuple(map(payload.rows_of, TABLES))
            if counts != (header.events, header.transitions):
                yield f"has {counts} rows and says {(header.events, header.transitions)}"
            counted.events += header.events
            counted.transitions += header.transitions
        elif header.kind == ACCEPTED:
            yield from _order("accepted seq", header.first_seq, counted.next_accepted)
            counted.next_accepted = header.first_seq + header.events
        elif header.kind == START:
            said = json.loads(frame.payload)["segment"]
            if said != segment_number(segment) or header.number:
                yield f"is the start of segment {said}"
        elif header.kind == END:
            summary = Summary(**json.loads(frame.payload))
            if (summary.events, summary.transitions) != (counted.events - events, counted.transitions - transitions):
                yield (
                    f"the segment had {summary.events} events and {summary.transitions} transitions, "
                    f"now {counted.events - events} and {counted.transitions - transitions}"
                )
        else:
            yield f"is of the unknown kind {header.kind}"
    except (ValueError, KeyError, TypeError) as error:
        yield f"cannot be read: {type(error).__name__}: {error}"


def _order(what: str, found: int, expected: int | None) -> Iterator[str]:
    if expected is not None and found != expected:
        yield f"{what} {found} follows {expected - 1}"
