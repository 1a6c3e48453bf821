"""What was read of logs, and what was not: formats, files without a record, lines that should have been parsed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pipeline.yarnlog.log_formats import LogFormat
from pipeline.yarnlog.messages import MARKERS
from pipeline.yarnlog.parser import Record, Unparsed

MARKED_KINDS = ("transition", "audit")
"""The kinds of message of which one line has one of `MARKERS`."""


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
