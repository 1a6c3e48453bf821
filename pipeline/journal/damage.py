"""Damaged and missing parts of a journal, as every reader lists them.

They are what `dispatcher.journal.verification` finds, without the consequences of other damage, and with the rows that
are lost. Only `dispatcher journal verify` also checks that seqs continue from segment to segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dispatcher.errors import JournalError
from dispatcher.journal.format.frames import Damage
from dispatcher.journal.format.segments import segment_number, segment_path
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.snapshot import JournalSnapshot, Parts, about_file, gone, summary_of
from dispatcher.journal.verification import Progress, check_folder, check_segment
from dispatcher.util.figures import counted
from pipeline.journal.whole import WholeJournal


class Problem(NamedTuple):
    """A damaged or missing part of a journal. As a string, one line of text."""

    segment: str
    """Name of a file in the journal's folder, or of its partition."""
    offset: int | None
    """In bytes; like `length` None if the problem is about the whole file."""
    length: int | None
    problem: str
    """What is wrong, in one line that names the segment."""
    events: int | None = None
    """How many events are lost here; like `transitions` None if that is unknown."""
    transitions: int | None = None

    def __str__(self) -> str:
        return f"{self.problem}; {rows_lost(self.events, self.transitions)}"


def rows_lost(events: int | None, transitions: int | None) -> str:
    """How many rows are lost, in words; None: unknown."""
    if events is transitions is None:
        return "an unknown number of rows lost"
    if not events and not transitions and None not in (events, transitions):
        return "no row lost"
    of_events = "an unknown number of events" if events is None else counted(events, "event")
    of_transitions = "an unknown number of transitions" if transitions is None else counted(transitions, "transition")
    return f"{of_events} and {of_transitions} lost"


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """By file and place; a problem about a whole file comes first."""
    return sorted(problems, key=lambda one: (one.segment, -1 if one.offset is None else one.offset, one.problem))


def lacks_rows(problems: Iterable[Problem]) -> bool:
    """Whether rows are lost, or may be."""
    return any(problem.events != 0 or problem.transitions != 0 for problem in problems)


def total_lost(problems: Sequence[Problem]) -> str:
    """How many rows are lost in all, as far as known, in words."""
    if not lacks_rows(problems):
        return "no row"
    events, transitions = ([getattr(each, name) for each in problems] for name in ("events", "transitions"))
    known = sum(filter(None, events)), sum(filter(None, transitions))
    is_whole = None not in (*events, *transitions)
    if not any(known) and not is_whole:
        return "an unknown number of rows"
    return f"{'' if is_whole else 'at least '}{counted(known[0], 'event')} and {counted(known[1], 'transition')}"


def folder_problems(journal: WholeJournal) -> list[Problem]:
    """Problems that need no look into the closed segments.

    Raises:
        JournalError: an open segment cannot be read.
    """
    found = [problem_of(about_file(line)) for line in journal.parts.problems]
    for snapshot in journal.snapshots:
        problems = (_of_folder(snapshot, damage) for damage in check_folder(snapshot))
        found += (named(journal.parts, snapshot.path, problem) for problem in problems)
    return found


def _of_folder(snapshot: JournalSnapshot, damage: Damage) -> Problem:
    problem = problem_of(damage)
    segment = snapshot.path / damage.segment
    if problem.events is None and segment == segment_path(snapshot.path, segment_number(segment)):
        if segment in snapshot.closed:  # which is read
            return problem._replace(events=0, transitions=0)
        return problem._replace(events=_events_between(segment))
    return problem


def named(parts: Parts, folder: Path, problem: Problem) -> Problem:
    """The problem of one of the folders, with a name that is unique among all of them."""
    return problem._replace(segment=parts.named(folder, problem.segment), problem=parts.named(folder, problem.problem))


def all_problems(journal: WholeJournal) -> Iterator[Problem]:
    """Problems of the folder and of each byte of the closed segments.

    Raises:
        JournalError: a file cannot be read.
    """
    yield from folder_problems(journal)
    for segment, _ in journal.closed:
        for problem in segment_problems(segment):
            yield named(journal.parts, segment.parent, problem)


def segment_problems(segment: Path) -> list[Problem]:
    """Check each byte of a closed segment, and the order of its frames.

    Raises:
        JournalError: it cannot be read.
    """
    progress = Progress()
    found = list(check_segment(segment, progress))
    if found and found[0].is_gone:
        return [problem_of_gone(segment)]
    problems = _with_gaps(found)
    if (had := progress.summary) is not None:
        problems = _with_rest(problems, "events", had.events - progress.events)
        return _with_rest(problems, "transitions", had.transitions - progress.transitions)
    between = _events_between(segment) if problems else None
    return problems if between is None else _with_rest(problems, "events", between - progress.events)


def problem_of_gone(segment: Path) -> Problem:
    """A segment that does not exist."""
    return problem_of(gone(segment))._replace(events=_events_between(segment))


def problem_of(damage: Damage) -> Problem:
    """The damage as readers of the pipeline list it."""
    return Problem(damage.segment, damage.offset, damage.length, damage.line, damage.events, damage.transitions)


def _with_gaps(found: Iterable[Damage]) -> list[Problem]:
    """The damage that is no consequence of other damage.

    A gap in seq gives the number of lost events to the damage before it, if only one there has an unknown number.
    """
    problems: list[Problem] = []
    behind = 0  # where those begin that no gap has followed yet
    for damage in found:
        if not damage.is_consequence:
            problems.append(problem_of(damage))
        elif damage.events:
            since = _with_rest(problems[behind:], "events", damage.events)
            problems[behind:] = since
            behind = len(problems)
    return problems


def _with_rest(problems: list[Problem], column: str, lost: int) -> list[Problem]:
    """The problems of a stretch in which this many rows are lost in all: the rest goes to the only one with an unknown
    number."""
    rest = lost - sum(getattr(problem, column) or 0 for problem in problems)
    unknown = [index for index, problem in enumerate(problems) if getattr(problem, column) is None]
    # That a file has no end loses nothing by itself if a place is known where rows are lost.
    placed = [index for index in unknown if problems[index].offset is not None] or unknown
    if rest < 0 or (rest and len(placed) > 1):
        return problems
    numbers = dict.fromkeys(unknown, 0) | dict.fromkeys(placed, rest)
    return [
        Problem(**{**problem._asdict(), column: numbers[index]}) if index in numbers else problem
        for index, problem in enumerate(problems)
    ]


def _events_between(segment: Path) -> int | None:
    """How many events a segment had, by the seqs of the segments next to it; None: unknown."""
    number = segment_number(segment)
    before, after = (_neighbor(segment_path(segment.parent, other)) for other in (number - 1, number + 1))
    first_seq = 1 if number == 1 else None if before is None else before.next_seq
    return None if after is None or first_seq is None or after.first_seq < first_seq else after.first_seq - first_seq


def _neighbor(segment: Path) -> Summary | None:
    try:
        return summary_of(segment)
    except JournalError:
        return None
