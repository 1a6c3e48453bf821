"""Damaged and missing parts of a journal as rows: a quick check of the folder and the segments' ends, or of every byte.

A view of the findings of `dispatcher.journal.verification`, without consequences of other findings. Only `dispatcher
journal verify` also checks that seqs continue from segment to segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dispatcher.journal.snapshot import Parts, unreadable
from dispatcher.journal.verification import Finding, Progress, check_folder, check_segment
from pipeline.journal.scan import why_gone
from pipeline.journal.whole import WholeJournal


class Problem(NamedTuple):
    """A damaged or missing stretch of a journal."""

    segment: str
    """Name of a file in the journal's folder, or of its partition."""
    offset: int | None
    """In bytes; like `length` null if the problem is about the whole file."""
    length: int | None
    problem: str
    """One line of text, which names the segment."""


def _problem(finding: Finding) -> Problem:
    return Problem(finding.segment, finding.offset, finding.length, finding.of_segment or finding.line)


def folder_problems(journal: WholeJournal) -> list[Problem]:
    """Problems that need no look into the segments."""
    found = [Problem(line.partition(":")[0], None, None, line) for line in journal.parts.problems]
    for snapshot in journal.snapshots:
        found += (named(journal.parts, snapshot.path, _problem(finding)) for finding in check_folder(snapshot))
    return found


def named(parts: Parts, folder: Path, problem: Problem) -> Problem:
    """The problem of one of the folders, with a name that is unique among all of them."""
    return problem._replace(segment=parts.named(folder, problem.segment), problem=parts.named(folder, problem.problem))


def quick_check(journal: WholeJournal) -> list[Problem]:
    """Missing partitions and segments, and segments whose end is damaged.

    Raises:
        JournalError: a file cannot be read.
    """
    found = folder_problems(journal)
    for segment in journal.summarized:
        if segment.summary is None and not segment.is_gone:
            name = journal.parts.named(segment.path.parent, segment.path.name)
            found.append(Problem(name, None, None, f"{name}: its end is damaged"))
    return found


def segment_problems(segment: Path) -> Iterator[Problem]:
    """Check each byte of a closed segment, and the order of its frames.

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
        raise unreadable(segment, error) from error
