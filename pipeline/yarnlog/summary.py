"""Counts of the lines and records in logs, and the transitions that violate the machines' tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from pipeline.yarnlog.clock import LogClock
from pipeline.yarnlog.files import read_log
from pipeline.yarnlog.parser import Record
from pipeline.yarnlog.reading import Reading
from statemachines.conformance import arcs_of, violation
from statemachines.registry import FACTORIES

TRANSITION_KINDS = ("transition", "invalid_transition")
"""The kinds of message that are rows of the transitions table."""


def is_declared(machine: str) -> bool:
    return machine in FACTORIES


@lru_cache(maxsize=4096)  # a log repeats the same few transitions
def mismatch(machine: str, from_state: str, event_type: str, to_state: str, valid: bool) -> str | None:
    """How a transition violates the machine's table, in one line; None: it conforms, or the table is unknown.

    An empty `event_type` stands for any event. `valid` false: the machine refused the event, as the table must.
    """
    if not is_declared(machine):
        return None
    if valid:
        return violation(machine, from_state, to_state, event_type or None)
    arcs = arcs_of(machine)
    if from_state not in arcs:
        return f"{machine} has no state {from_state}"
    if event_type in arcs[from_state]:
        return f"{machine}: {from_state} takes {event_type}, which was refused"
    return None


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
    reading: Reading = field(default_factory=Reading)

    @property
    def parsed_lines(self) -> int:
        """Lines of records, including stack traces."""
        return self.lines_by_kind.total()

    def add(self, file: Path, record: Record, keep: int) -> None:
        """Count a record; `keep`: greatest number of mismatches to list."""
        message = record.message
        self.lines += record.line_count
        self.records_by_kind[message.kind] += 1
        self.lines_by_kind[message.kind] += record.line_count
        if message.kind not in TRANSITION_KINDS:
            return
        machine, from_state, event, to_state = message.machine, message.from_state, message.event_type, message.to_state
        self.transitions_by_machine[machine] += 1
        why = mismatch(machine, from_state, event, to_state, message.kind == "transition")
        if why is not None:
            self.mismatches_by_machine[machine] += 1
            if len(self.mismatches) < keep:
                entity = message.entity or ""
                self.mismatches.append(Mismatch(file, record.line, machine, entity, from_state, event, to_state, why))


def summarize(files: Iterable[Path], clock: LogClock | None = None, *, keep: int = 100) -> LogSummary:
    """Read the files and count their lines, records and mismatches.

    Raises:
        YarnLogError: a file cannot be read.
    """
    summary = LogSummary()
    for file in files:
        formats = summary.reading.formats
        formats[file] = None
        for found in read_log(file, clock, errors="replace", on_format=partial(formats.__setitem__, file)):
            if isinstance(found, Record):
                summary.add(file, found, keep)
                if found.line_count > 1:
                    summary.reading.add(file, found, keep)
            else:
                if "from" in found.text or "OPERATION=" in found.text:  # rejects most lines at once
                    summary.reading.add(file, found, keep)
                summary.lines += 1
                summary.unparsed_lines += 1
    return summary
