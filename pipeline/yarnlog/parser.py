"""Parses a log's lines into records.

A line that begins with a time and a level begins a record. The lines up to the next such line belong to it: a stack
trace, or the rest of a message. Each line of a file belongs to exactly one of

- a `Record`, whose message is of a known kind (`pipeline.yarnlog.messages`);
- an `Unparsed`, one for each line of other messages and each line before the first record.

The number of lines in a file is the sum of `line_count` over its records plus the number of its unparsed lines.

A header has a time, a level, a thread and a logger, in the default layouts of Hadoop 2 and 3:

    2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.mapreduce.v2.app.MRAppMaster: message
    2015-10-18 18:01:47,978 INFO org.apache.hadoop.yarn.event.AsyncDispatcher: message
    2015-10-18 18:01:47,978 INFO  [main] rmapp.RMAppImpl (RMAppImpl.java:handle(123)) - message
    2015-10-18T18:01:47.978+0200 INFO  RMAppImpl:123 - message
    15/10/18 18:01:47 WARN resourcemanager.RMAuditLogger: message
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dispatcher.errors import DispatcherError
from dispatcher.util.units import NS_PER_S
from pipeline.yarnlog.messages import Message, read_message, refused_entity, with_more_lines

LINES_KEPT = 5000
"""Lines per record; further lines are unparsed. Bounds the memory for a huge file that is not a log. The JVM prints at
most 1,024 frames of a stack."""


_SECONDS_KEPT = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Only years whose nanoseconds fit into a long. Bounded lengths keep matching linear in the length of a line.
_START = (
    r"((?:19|20|21)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d|\d\d/\d\d/\d\d \d\d:\d\d:\d\d)(?:[,.](\d{1,9}))?"
    r"(?: ?(Z|UTC|GMT|[+-](?:0\d|1[0-8]):?[0-5]\d))?[ \t]+"
    r"(?:\[(.{0,200}?)\][ \t]+)?(TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b[ \t]*(?:\[(.{0,200}?)\][ \t]+)?"
)
_LOGGER = r"([\w.$-]{1,300})(?:(?: \([^\s()]{1,300}\(\d+\)\)|:\d+)?[ \t]+-(?:[ \t]|$)|:(?: |$))"
_WITH_LOGGER = re.compile(_START + _LOGGER + "(.*)", re.ASCII | re.DOTALL)
_WITHOUT_LOGGER = re.compile(_START + "()(.*)", re.ASCII | re.DOTALL)


class YarnLogError(DispatcherError):
    """The user's or the disk's fault: a path without logs, an unreadable file, an unknown time zone.

    It is about a log as a whole; no single line raises one.
    """


class RecordHeader(NamedTuple):
    """The fields of a record's first line."""

    at: int
    """Unix ns."""
    level: str
    thread: str | None
    """None if the layout omits it."""
    logger: str
    """As written: with its package, abbreviated or without; empty if the line has none."""
    message: str


class LogClock:
    """Parses the times of logs. Not thread-safe: it caches the seconds that it has parsed.

    `time_zone` applies to times that name none, such as Europe/Berlin; an ambiguous hour is taken for the first one.

    Raises:
        YarnLogError: the time zone does not exist.
    """

    def __init__(self, time_zone: str = "UTC") -> None:
        try:
            self._zone: tzinfo = UTC if time_zone == "UTC" else ZoneInfo(time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise YarnLogError(
                f"{time_zone!r} is not a time zone; use a name from the time zone database, such as Europe/Berlin"
            ) from error
        self._seconds: dict[tuple[str, str | None], int | None] = {}

    def unix_ns(self, text: str, fraction: str | None, zone: str | None) -> int | None:
        """The time in Unix ns, or None if the date or the hour does not exist."""
        key = text, zone
        try:
            seconds = self._seconds[key]
        except KeyError:
            if len(self._seconds) >= _SECONDS_KEPT:
                self._seconds.clear()
            seconds = self._seconds[key] = self._unix_s(text, zone)
        if seconds is None:
            return None
        return seconds * NS_PER_S + (int(fraction.ljust(9, "0")) if fraction else 0)

    def _unix_s(self, text: str, zone: str | None) -> int | None:
        if text[2] == "/":
            text = f"20{text.replace('/', '-')}"
        try:
            at = datetime.fromisoformat(text).replace(tzinfo=self._zone if zone is None else _offset(zone))
            return (at - _EPOCH) // timedelta(seconds=1)
        except (ValueError, OverflowError):
            return None


def _offset(zone: str) -> tzinfo:
    if zone[0] not in "+-":
        return UTC
    sign = -1 if zone[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:])))


def read_header(line: str, clock: LogClock) -> RecordHeader | None:
    """The header; None if the line does not begin with a time and a level, such as a line of a stack trace."""
    if not "0" <= line[:1] <= "9":  # rejects most other lines without a regex
        return None
    found = _WITH_LOGGER.match(line) or _WITHOUT_LOGGER.match(line)
    if found is None:
        return None
    text, fraction, zone, thread, level, later_thread, logger, message = found.groups()
    at = clock.unix_ns(text, fraction, zone)
    if at is None:
        return None
    return RecordHeader(at, level, later_thread if thread is None else thread, logger, message)


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
