"""Parses a log's lines into records.

A line that begins with a header (`pipeline.yarnlog.headers`) begins a record. The lines up to the next such line belong
to it: a stack trace, or the rest of a message. Each line of a file belongs to exactly one of

- a `Record`, whose message is of a known kind (`pipeline.yarnlog.messages`);
- an `Unparsed`, one for each line of other messages and each line before the first record.

The number of lines in a file is the sum of `line_count` over its records plus the number of its unparsed lines.

The file's first lines show its format: the prefixes that other tools have written (`pipeline.yarnlog.prefixes`), and
the layout of the headers. Lines of several containers, hosts or files may alternate:
each has a record of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from itertools import chain, count, repeat
from typing import NamedTuple

from pipeline.yarnlog.clock import LogClock
from pipeline.yarnlog.headers import HeaderReader, RecordHeader, time_of_prefix
from pipeline.yarnlog.log_formats import LogFormat, find_format
from pipeline.yarnlog.messages import Message, read_message, refused_entity, with_more_lines
from pipeline.yarnlog.prefixes import without_prefixes

LINES_KEPT = 5000
"""Lines per record; further lines are unparsed. Bounds the memory for a huge file that is not a log. The JVM prints at
most 1,024 frames of a stack."""

_LINES_SEARCHED = 500
_CHARACTERS_SEARCHED = 1 << 20
_SOURCES_KEPT = 1000
_NO_YEAR = date(1970, 12, 31)

Pieces = Sequence[tuple[int, str]]
"""Number and text of the file's lines that hold a line."""
_Line = tuple[int, str, str | None, str | None, Pieces | None]
"""The fields of a `Numbered`, in its order."""


class Record(NamedTuple):
    """One record of a log."""

    line: int
    """Number of its first line, from 1."""
    line_count: int
    """Number of its lines, > 0."""
    at: int
    """Unix ns. Without a time in the header, the prefix's, or the time of the record before, or 0."""
    level: str
    thread: str | None
    logger: str
    text: str
    """All of its lines, as in the file."""
    message: Message


class Unparsed(NamedTuple):
    """One line outside of records."""

    line: int
    text: str


class _Open:
    """The record that is still being read."""

    __slots__ = ("_at", "_header", "_lines", "_message", "_number", "written")

    def __init__(self, number: int, header: RecordHeader, at: int, message: Message, written: list[str]) -> None:
        self.written = written  # as in the file
        self._number = number
        self._header = header
        self._at = at
        self._message = message
        self._lines: list[str] = []  # after the message's first line, without prefixes

    def add(self, line: str, pieces: Pieces | None) -> None:
        self._lines.append(line)
        if pieces is None:
            self.written.append(line)
        else:
            self.written.extend(_written(line, pieces))

    def takes(self, header: RecordHeader) -> bool:
        """Whether the line with this header belongs to this record: it names the entity of a refusal."""
        if self._message.entity is not None or self._message.error is None or header.logger != self._header.logger:
            return False
        refused = refused_entity(header.message)
        if refused is None or refused[0] != self._whole().event_type:
            return False
        self._message = self._message._replace(entity=refused[1])
        return True

    def close(self) -> Record:
        header, written = self._header, self.written
        text = "\n".join(written)
        return Record(
            self._number, len(written), self._at, header.level, header.thread, header.logger, text, self._whole()
        )

    def _whole(self) -> Message:
        if not self._lines:
            return self._message
        return with_more_lines(self._message, self._header.logger, self._header.message, self._lines)


def parse_lines(
    lines: Iterable[bytes],
    clock: LogClock | None = None,
    *,
    errors: str = "surrogateescape",
    latest: date = _NO_YEAR,
    on_format: Callable[[LogFormat], object] | None = None,
) -> Iterator[Record | Unparsed]:
    """The records and the unparsed lines of one file, in the order of their first lines.

    Records of containers, hosts or files that alternate are in the order in which they end.

    `lines`: as a binary file yields them; line ends (`\\n` or `\\r\\n`) are stripped. `errors` is the decoder's handler
    for bytes that are not UTF-8: by default `text.encode(errors="surrogateescape")` restores them, while "replace"
    makes the text printable. `clock`: by default in UTC. `latest`: no line is later; for prefixes whose times have no
    year. `on_format` is called once, before the first record; never, if no line is a header in any format. No input
    raises an error.
    """
    clock = clock or LogClock()
    texts = (raw.decode("utf-8", errors).removesuffix("\n").removesuffix("\r") for raw in lines)
    number = 1
    while window := _window(texts):
        found = find_format(window, clock)
        if found is None:
            yield from map(Unparsed, count(number), window)
            number += len(window)
            continue
        if on_format is not None:
            on_format(found)
        rest = chain(window, texts)
        if found.prefixes:
            of_file: Iterator[_Line] = without_prefixes(found.prefix_kinds(), zip(count(number), rest))
        else:
            of_file = zip(count(number), rest, repeat(None), repeat(None), repeat(None))
        yield from _Parser(found.reader(), clock, latest).parse(of_file)


def _window(texts: Iterator[str]) -> list[str]:
    """The next lines, as many as are searched for a format at a time."""
    window: list[str] = []
    characters = 0
    for text in texts:
        window.append(text)
        characters += len(text)
        if len(window) >= _LINES_SEARCHED or characters >= _CHARACTERS_SEARCHED:
            break
    return window


class _Parser:
    """Parses the lines of one file, without their prefixes."""

    def __init__(self, read: HeaderReader, clock: LogClock, latest: date) -> None:
        self._read = read
        self._clock = clock
        self._latest = latest
        self._last_at = 0  # of the last record
        self._aside: dict[str | None, _Open] = {}  # the open records of other sources

    def parse(self, lines: Iterable[_Line]) -> Iterator[Record | Unparsed]:
        opened: _Open | None = None
        wrapped: tuple[_Line, RecordHeader] | None = None  # a header whose message may be the next line
        current, read, clock = None, self._read, self._clock
        for line in lines:
            number, text, source, _, pieces = line
            if source is not current and source != current:
                if opened is not None:
                    yield from self._put_aside(current, opened)
                opened, current = self._aside.pop(source, None), source
            header = read(text, clock)
            if wrapped is not None:
                first, before = wrapped
                wrapped = None
                if header is None and first[2] == source:
                    whole = before._replace(message=text.strip())
                    message = read_message(whole.logger, whole.message)
                    if message is not None:
                        opened = self._open(first, whole, message)
                        opened.written.extend(_written(text, pieces))
                        continue
                yield from _unparsed(first)
            if header is None:
                if opened is not None and len(opened.written) < LINES_KEPT:
                    opened.add(text, pieces)
                    continue
            elif opened is not None and opened.takes(header):
                opened.add(text, pieces)
                continue
            if opened is not None:
                yield opened.close()
                opened = None
            if header is not None:
                message = read_message(header.logger, header.message)
                if message is not None:
                    opened = self._open(line, header, message)
                    continue
                if not header.message:
                    wrapped = line, header
                    continue
            if pieces is None:
                yield tuple.__new__(Unparsed, (number, text))  # as fast as most lines of a log need
            else:
                yield from _unparsed(line)
        if wrapped is not None:
            yield from _unparsed(wrapped[0])
        for each in (*self._aside.values(), *([] if opened is None else [opened])):
            yield each.close()

    def _open(self, line: _Line, header: RecordHeader, message: Message) -> _Open:
        number, text, _, time, pieces = line
        at = header.at
        if at is None and time is not None:
            at = time_of_prefix(time, self._clock, self._latest)
        self._last_at = at = self._last_at if at is None else at
        return _Open(number, header, at, message, [text] if pieces is None else _written(text, pieces))

    def _put_aside(self, source: str | None, opened: _Open) -> Iterator[Record]:
        self._aside[source] = opened
        if len(self._aside) > _SOURCES_KEPT:
            yield self._aside.pop(next(iter(self._aside))).close()


def _written(text: str, pieces: Pieces | None) -> list[str]:
    return [text] if pieces is None else [written for _, written in pieces]


def _unparsed(line: _Line) -> Iterator[Unparsed]:
    number, text, _, _, pieces = line
    for each, written in ((number, text),) if pieces is None else pieces:
        yield Unparsed(each, written)
