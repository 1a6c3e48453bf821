"""Parses a log's lines into records.

A line that begins with a time and a level begins a record. The lines up to the next such line belong to it: a stack
trace, or the rest of a message. Each line of a file belongs to exactly one of

- a `Record`, whose message is of a known kind (`pipeline.yarnlog.messages`);
- an `Unparsed`, one for each line of other messages and each line before the first record.

The number of lines in a file is the sum of `line_count` over its records plus the number of its unparsed lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipeline.yarnlog.header import LogClock, RecordHeader, read_header
from pipeline.yarnlog.messages import Message, read_message, refused_entity, with_more_lines

LINES_KEPT = 5000
"""Lines per record; further lines are unparsed. Bounds the memory for a huge file that is not a log. The JVM prints at
most 1,024 frames of a stack."""


class Record(NamedTuple):
    """One record of a log."""

    line: int
    """Number of its first line, from 1."""
    line_count: int
    """Number of its lines, > 0."""
    at: int
    """Unix ns."""
    level: str
    thread: str | None
    logger: str
    text: str
    """All of its lines."""
    message: Message


class Unparsed(NamedTuple):
    """One line outside of records."""

    line: int
    text: str


class _Open:
    """The record that is still being read."""

    __slots__ = ("header", "line", "lines", "message")

    def __init__(self, line: int, text: str, header: RecordHeader, message: Message) -> None:
        self.line = line
        self.lines = [text]
        self.header = header
        self.message = message

    def takes(self, header: RecordHeader) -> bool:
        """Whether the line with this header belongs to this record: it names the entity of a refusal."""
        if self.message.entity is not None or self.message.error is None or header.logger != self.header.logger:
            return False
        refused = refused_entity(header.message)
        if refused is None or refused[0] != self._message().event_type:
            return False
        self.message = self.message._replace(entity=refused[1])
        return True

    def close(self) -> Record:
        header, message = self.header, self._message()
        text = "\n".join(self.lines)
        return Record(self.line, len(self.lines), header.at, header.level, header.thread, header.logger, text, message)

    def _message(self) -> Message:
        if len(self.lines) == 1:
            return self.message
        return with_more_lines(self.message, self.header.logger, self.header.message, self.lines[1:])


def parse_lines(
    lines: Iterable[bytes], clock: LogClock | None = None, *, errors: str = "surrogateescape"
) -> Iterator[Record | Unparsed]:
    """The records and the unparsed lines of one file, in the order of their first lines.

    `lines`: as a binary file yields them; line ends (`\\n` or `\\r\\n`) are stripped. `errors` is the decoder's handler
    for bytes that are not UTF-8: by default `text.encode(errors="surrogateescape")` restores them, while "replace"
    makes the text printable. `clock`: by default in UTC. No input raises an error.
    """
    clock = clock or LogClock()
    opened: _Open | None = None
    for number, raw in enumerate(lines, 1):
        text = raw.decode("utf-8", errors).removesuffix("\n").removesuffix("\r")
        header = read_header(text, clock)
        if header is None:
            if opened is not None and len(opened.lines) < LINES_KEPT:
                opened.lines.append(text)
                continue
        elif opened is not None and opened.takes(header):
            opened.lines.append(text)
            continue
        if opened is not None:
            yield opened.close()
            opened = None
        message = None if header is None else read_message(header.logger, header.message)
        if header is None or message is None:
            yield Unparsed(number, text)
        else:
            opened = _Open(number, text, header, message)
    if opened is not None:
        yield opened.close()
