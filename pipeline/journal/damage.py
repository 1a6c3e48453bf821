"""What is damaged or missing in a journal, as rows: at a glance, from its folder and the segments' ends, and byte by
byte.

A view of the findings of `dispatcher.journal.verification`, without those that only follow from another one. The last
word on a journal has `dispatcher journal verify`, which also checks the numbers from segment to segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dispatcher.errors import JournalError
from dispatcher.journal.snapshot import JournalSnapshot
from dispatcher.journal.verification import Finding, Progress, check_folder, check_segment
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


def _problem(finding: Finding) -> Problem:
    return Problem(finding.segment, finding.offset, finding.length, finding.of_segment or finding.line)


def folder_problems(snapshot: JournalSnapshot) -> list[Problem]:
    """What the folder shows without a look into its segments."""
    return list(map(_problem, check_folder(snapshot)))


def quick_check(snapshot: JournalSnapshot) -> list[Problem]:
    """What the folder and the segments' ends show: missing segments, and those whose end is damaged.

    Raises:
        JournalError: a file cannot be read.
    """
    found = folder_problems(snapshot)
    for segment in snapshot.summarized:
        if segment.summary is None and not segment.is_gone:
            name = segment.path.name
            found.append(Problem(name, None, None, f"{name}: its end is damaged"))
    return found


def segment_problems(segment: Path) -> Iterator[Problem]:
    """Check each byte of a closed segment, and each frame's place.

    Raises:
        JournalError: it cannot be read.
    """
    try:
        for finding in check_segment(segment, Progress()):
            if not finding.is_consequence:
                yield _problem(finding)
    except FileNotFoundError:
        yield Problem(segment.name, None, None, why_gone(segment))
    except OSError as error:
        raise JournalError(f"{segment}: cannot be read: {error.strerror or error}") from error
