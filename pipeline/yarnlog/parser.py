"""A log's lines in, its records out.

A line that begins with a time and a level begins a record, and the lines up to the next such line belong to it: a
stack trace, or a message of several lines. Each line of a file is in exactly one of

- a `Record`: the message is of a kind that is read (`pipeline.yarnlog.messages`), and all of its lines count as parsed;
- an `Unparsed`, one for each line: the message is of no such kind, or there was no record yet that the line could
  belong to.

So the lines of a file are the sum of `line_count` over its records, plus the number of its unparsed lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipeline.yarnlog.header import LogClock, RecordHeader, read_header
from pipeline.yarnlog.messages import Message, read_message, refused_entity, with_more_lines

LINES_KEPT = 5000
"""Of a record, so that a file without end of what is no log is not kept in memory; lines beyond are unparsed. The
JVM prints at most 1,024 frames of a stack."""


class Record(NamedTuple):
    """One thing that a log says."""

    line: int
    """Of its first line, from 1."""
    line_count: int
    """How many lines it has, > 0."""
    at: int
    """Unix ns."""
    level: str
    thread: str | None
    logger: str
    text: str
    """All of its lines."""
    message: Message


class Unparsed(NamedTuple):
    """One line that says nothing that is read."""

    line: int
    text: str


class _Open:
    """The record whose lines are still coming."""

    __slots__ = ("header", "line", "lines", "message")

    def __init__(self, line: int, text: str, header: RecordHeader, message: Message) -> None:
        self.line = line
        self.lines = [text]
        self.header = header
        self.message = message

    def takes(self, header: RecordHeader) -> bool:
        """Whether the line with this header only adds the entity to a refusal that did not tell it."""
        if self.message.entity is not None or self.message.error is None or header.logger != self.header.logger:
            return False
        told = refused_entity(header.message)
        if told is None or told[0] != self._message().event_type:
            return False
        self.message = self.message._replace(entity=told[1])
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

    `lines`: as a binary file gives them; an end of line (`\\n` or `\\r\\n`) is taken off. Bytes that are no UTF-8 are
    kept as `errors` says: by default so that `text.encode(errors="surrogateescape")` has them again; "replace" makes
    them fit to be shown. `clock`: by default one of UTC. Whatever the lines are, none raises.
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
