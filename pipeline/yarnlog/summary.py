"""Counts of the lines and records in logs, what was not read of them, and transitions that violate the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from pipeline.yarnlog.clock import LogClock
from pipeline.yarnlog.files import read_log
from pipeline.yarnlog.log_formats import LogFormat
from pipeline.yarnlog.messages import MARKERS
from pipeline.yarnlog.parser import Record, Unparsed
from statemachines.conformance import releases_with, violation, wrong_refusal
from statemachines.registry import FACTORIES
from statemachines.releases.differences import ANY, CURRENT

TRANSITION_KINDS = ("transition", "invalid_transition")
"""The kinds of message that are rows of the transitions table."""
MARKED_KINDS = ("transition", "audit")
"""The kinds of message of which one line has one of `MARKERS`."""


def is_declared(machine: str) -> bool:
    return machine in FACTORIES


@lru_cache(maxsize=4096)  # a log repeats the same few transitions
def mismatch(
    machine: str, from_state: str, event_type: str, to_state: str, valid: bool, release: str = ANY
) -> str | None:
    """How a transition violates the machine's table, in one line; None: it conforms, or the table is unknown.

    An empty `event_type` stands for any event. `valid` false: the machine refused the event, as the table must.
    `release`: the release of Hadoop whose table it is, or `ANY`: one release that allows the transition is enough.

    Raises:
        UnknownReleaseError: the tables of this release are not known.
    """
    if not is_declared(machine):
        return None
    if valid:
        return violation(machine, from_state, to_state, event_type or None, release)
    return wrong_refusal(machine, from_state, event_type, release)


@lru_cache(maxsize=4096)
def older_releases(machine: str, from_state: str, event_type: str, to_state: str, valid: bool) -> tuple[str, ...]:
    """The releases of Hadoop that declare a transition which Hadoop 3 does not, from the oldest to the newest.

    Empty if Hadoop 3 declares it, no release does, the machine refused the event or its table is unknown.
    """
    if not valid or not is_declared(machine):
        return ()
    releases = releases_with(machine, from_state, to_state, event_type or None)
    return () if CURRENT in releases else releases


class Missed(NamedTuple):
    """A line that has one of `MARKERS` and was not parsed."""

    file: Path
    line: int
    """Its number, from 1; for a line in a record the number of the record's first line."""
    text: str


@dataclass(slots=True)
class Reading:
    """How the files were read."""

    formats: dict[Path, LogFormat | None] = field(default_factory=dict)
    """By file; None: no line of it is a header in any known format."""
    missed_lines: int = 0
    missed: list[Missed] = field(default_factory=list)
    """In the order of the logs, at most `keep`."""

    @property
    def unread(self) -> list[Path]:
        """The files of which nothing was read."""
        return [file for file, found in self.formats.items() if found is None]

    def add(self, file: Path, found: Record | Unparsed, keep: int) -> None:
        """Count the lines that were not parsed though they have one of `MARKERS`; `keep`: most of them to list."""
        for text in missed_in(found):
            self.missed_lines += 1
            if len(self.missed) < keep:
                self.missed.append(Missed(file, found.line, text))


def missed_in(found: Record | Unparsed) -> list[str]:
    """The lines that have one of `MARKERS`, except the one of a record that is a transition or an audit line."""
    if not any(marker in found.text for marker in MARKERS):
        return []
    lines = [line for line in found.text.split("\n") if any(marker in line for marker in MARKERS)]
    is_parsed = isinstance(found, Record) and found.message.kind in MARKED_KINDS
    return lines[1:] if is_parsed else lines


class Mismatch(NamedTuple):
    """A transition that violates its machine's table."""

    file: Path
    line: int
    machine: str
    entity: str
    from_state: str
    event_type: str
    """Empty if the log does not name it and the table allows several."""
    to_state: str
    why: str


@dataclass(slots=True)
class LogSummary:
    """Counts over all files. lines = the sum of `lines_by_kind` + unparsed_lines."""

    lines: int = 0
    unparsed_lines: int = 0
    records_by_kind: Counter[str] = field(default_factory=Counter)
    lines_by_kind: Counter[str] = field(default_factory=Counter)
    transitions_by_machine: Counter[str] = field(default_factory=Counter)
    """Including refused transitions and machines whose table is unknown."""
    mismatches_by_machine: Counter[str] = field(default_factory=Counter)
    mismatches: list[Mismatch] = field(default_factory=list)
    """In the order of the logs, at most `keep`."""
    older_by_releases: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter)
    """The transitions that only releases before Hadoop 3 declare, by machine and releases. Mismatches are not in it."""
    reading: Reading = field(default_factory=Reading)

    @property
    def parsed_lines(self) -> int:
        """Lines of records, including stack traces."""
        return self.lines_by_kind.total()

    def add(self, file: Path, record: Record, keep: int, release: str = ANY) -> None:
        """Count a record; `keep`: greatest number of mismatches to list. `release`: as for `mismatch`."""
        message = record.message
        self.lines += record.line_count
        self.records_by_kind[message.kind] += 1
        self.lines_by_kind[message.kind] += record.line_count
        if message.kind not in TRANSITION_KINDS:
            return
        machine, from_state, event, to_state = message.machine, message.from_state, message.event_type, message.to_state
        self.transitions_by_machine[machine] += 1
        is_made = message.kind == "transition"
        why = mismatch(machine, from_state, event, to_state, is_made, release)
        if why is None:
            older = older_releases(machine, from_state, event, to_state, is_made)
            if older:
                self.older_by_releases[machine, older] += 1
        else:
            self.mismatches_by_machine[machine] += 1
            if len(self.mismatches) < keep:
                entity = message.entity or ""
                self.mismatches.append(Mismatch(file, record.line, machine, entity, from_state, event, to_state, why))


def summarize(
    files: Iterable[Path], clock: LogClock | None = None, *, keep: int = 100, release: str = ANY
) -> LogSummary:
    """Read the files and count their lines, records and mismatches. `release`: as for `mismatch`.

    Raises:
        YarnLogError: a file cannot be read.
        UnknownReleaseError: the tables of this release are not known.
    """
    summary = LogSummary()
    for file in files:
        formats = summary.reading.formats
        formats[file] = None
        for found in read_log(file, clock, errors="replace", on_format=partial(formats.__setitem__, file)):
            if isinstance(found, Record):
                summary.add(file, found, keep, release)
                if found.line_count > 1:
                    summary.reading.add(file, found, keep)
            else:
                if "from" in found.text or "OPERATION=" in found.text:  # rejects most lines at once
                    summary.reading.add(file, found, keep)
                summary.lines += 1
                summary.unparsed_lines += 1
    return summary
