"""The header of a log4j record: time, level, thread and logger, in the default layouts of Hadoop 2 and 3.

2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.mapreduce.v2.app.MRAppMaster: message
2015-10-18 18:01:47,978 INFO org.apache.hadoop.yarn.event.AsyncDispatcher: message
2015-10-18 18:01:47,978 INFO  [main] rmapp.RMAppImpl (RMAppImpl.java:handle(123)) - message
2015-10-18T18:01:47.978+0200 INFO  RMAppImpl:123 - message
15/10/18 18:01:47 WARN resourcemanager.RMAuditLogger: message
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dispatcher.errors import DispatcherError
from dispatcher.util.units import NS_PER_S

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
