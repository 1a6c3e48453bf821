"""What is damaged or missing in a journal: at a glance, from its folder and the segments' ends, and byte by byte.

Knows nothing of Spark. The last word on a journal has `dispatcher journal verify`, which also checks its numbers from
segment to segment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dispatcher.errors import JournalError
from dispatcher.journal.format.frames import END, ROWS, Frame, FrameReader
from dispatcher.journal.format.segments import MANIFEST, read_manifest, read_summary, segments
from dispatcher.journal.reader import check_journal, missing_segments
from pipeline.journal.arrow import DamagedFrameError, open_frame
from pipeline.journal.scan import why_gone


class Problem(NamedTuple):
    """One stretch of a journal that cannot be read, or is not there."""

    segment: str
    """Name of a file in the journal's folder."""
    offset: int | None
    """In bytes; null with `length` where the file as a whole is concerned."""
    length: int | None
    problem: str
    """One line for people, which names the segment."""


def folder_problems(path: Path, listed: list[Path]) -> list[Problem]:
    """What the folder tells without a look into the `listed` segments.

    Raises:
        JournalError: the manifest is of a format that this version does not know.
    """
    manifest, problem = read_manifest(path)
    if manifest is None:
        problem = problem or f"{MANIFEST}: is missing"
    found = [] if problem is None else [Problem(MANIFEST, None, None, problem)]
    lines = missing_segments(path, listed)
    return found + [Problem(line.partition(":")[0], None, None, line) for line in lines]


def quick_check(path: Path | str) -> list[Problem]:
    """What the folder and the segments' ends tell: missing segments, and those whose end is damaged.

    Raises:
        JournalError: not a journal, one of another format, or a file cannot be read.
    """
    path = check_journal(path)
    listed = segments(path)
    found = folder_problems(path, listed)
    for segment in listed:
        try:
            if read_summary(segment) is None:
                found.append(_problem(segment, None, None, "its end is damaged"))
        except FileNotFoundError:
            continue  # removed since it was listed
        except OSError as error:
            raise JournalError(f"{segment}: cannot be read: {error.strerror or error}") from error
    return found


def segment_problems(segment: Path) -> Iterator[Problem]:
    """Check each byte of a closed segment against its checksum, and each frame's place.

    Raises:
        JournalError: it cannot be read.
    """
    try:
        with FrameReader(segment) as reader:
            yield from _problems(reader)
    except FileNotFoundError:
        yield Problem(segment.name, None, None, why_gone(segment))
    except OSError as error:
        raise JournalError(f"{segment}: cannot be read: {error.strerror or error}") from error


def _problems(reader: FrameReader) -> Iterator[Problem]:
    segment = reader.path
    events = transitions = 0
    end: Frame | None = None
    for found in reader.frames():
        if not isinstance(found, Frame):
            yield Problem(segment.name, found.offset, found.length, str(found))
            continue
        header = found.header
        end = found if header.kind == END else None
        if header.kind != ROWS:
            continue
        events += header.events
        transitions += header.transitions
        try:
            open_frame(header, found.payload, "")
        except DamagedFrameError as error:
            yield _problem(segment, found.offset, found.end - found.offset, f"frame {header.number} {error}")
    if end is None or reader.last_frame() is None:
        yield _problem(segment, None, None, "has no end" if end is None else "does not say where its end begins")
    if end is not None:
        said = json.loads(end.payload)
        if (said["events"], said["transitions"]) != (events, transitions):
            left = (
                f"{events} of {said['events']} events and {transitions} of {said['transitions']} transitions are left"
            )
            yield _problem(segment, None, None, left)


def _problem(segment: Path, offset: int | None, length: int | None, what: str) -> Problem:
    return Problem(segment.name, offset, length, f"{segment.name}: {what}")
