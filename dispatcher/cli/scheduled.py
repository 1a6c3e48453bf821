"""What a journal has scheduled under keys, and forgetting it while no daemon runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dispatcher.cli.console import aligned, time_text
from dispatcher.journal.format.event_codec import in_order_of_acceptance
from dispatcher.journal.format.marks import is_without_event
from dispatcher.journal.format.outstanding import Accepted
from dispatcher.journal.partitioned import PartitionedJournal
from dispatcher.journal.read import read_unhandled
from dispatcher.journal.snapshot import config_to_continue, parts_of
from dispatcher.journal.writer import JournalWriter
from dispatcher.queue.rules import rule_text


class KeyedLine(NamedTuple):
    """What a key holds, in the log of one dispatcher or partition."""

    key: str
    due_ns: int
    """Unix ns."""
    last_ns: int
    """Unix ns of the time that was posted last; 0: none."""
    what: str
    """The event, as Class.NAME; `post_every`, if a factory makes it."""
    rule: str
    accepted_seq: int


def read_scheduled(journal: Path) -> list[KeyedLine]:
    """What keys hold, soonest first. The journal may be being written.

    Raises:
        JournalError: not a journal, or a file cannot be read.
    """
    found = [line for folder in parts_of(journal).folders for line in _keyed(read_unhandled(folder).events)]
    return sorted(found, key=lambda line: (line.due_ns, line.key))


def forget(journal: Path, keys: set[str]) -> set[str]:
    """Forget what these keys hold, on the disk; returns those that held something. No daemon runs.

    Raises:
        JournalError, JournalLossError: the journal is being written, or cannot be written.
    """
    parts, config = parts_of(journal), config_to_continue(journal)
    partitions = PartitionedJournal(journal, config) if parts.is_partitioned else None
    writers = (JournalWriter(journal, config),) if partitions is None else partitions.open(len(parts.folders))
    forgotten: set[str] = set()
    try:
        for writer in writers:
            lines = [line for line in _keyed(writer.recovered) if line.key in keys]
            writer.settle_on_disk(line.accepted_seq for line in lines)
            forgotten.update(line.key for line in lines)
    finally:
        for closing in (partitions,) if partitions is not None else writers:
            closing.close()
    return forgotten


def scheduled_table(lines: list[KeyedLine]) -> Iterator[str]:
    def row(line: KeyedLine) -> tuple[str, ...]:
        last = time_text(line.last_ns) if line.last_ns else "-"
        return time_text(line.due_ns), last, line.key, line.what, line.rule

    return aligned(("DUE", "LAST", "KEY", "WHAT", "RULE"), [*map(row, lines)])


def _keyed(accepted: tuple[Accepted, ...]) -> Iterator[KeyedLine]:
    for each, marks, _ in in_order_of_acceptance(accepted):
        key = marks.key or marks.timer
        if key and not (marks.has_event and (marks.key or marks.attempt > 1)):
            rule = "once" if marks.has_event else rule_text(marks.rule) if marks.rule else "-"
            yield KeyedLine(key, marks.due_ns, marks.last_ns, _what(each.line), rule, each.seq)


def _what(line: bytes) -> str:
    if is_without_event(line):
        return "post_every"
    said = json.loads(line)
    return f"{said['event_class']}.{said['event_type']}"
