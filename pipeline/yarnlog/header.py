"""What log4j writes before the message: time, level, thread, logger, in the layouts that Hadoop 2 and 3 come with.

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

from dispatcher.util.units import NS_PER_S
from pipeline.yarnlog.errors import YarnLogError

_SECONDS_KEPT = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The years are those whose nanoseconds a long can hold. The lengths are bounded, so that a long line costs no more
# than its length.
_START = (
    r"((?:19|20|21)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d|\d\d/\d\d/\d\d \d\d:\d\d:\d\d)(?:[,.](\d{1,9}))?"
    r"(?: ?(Z|UTC|GMT|[+-](?:0\d|1[0-8]):?[0-5]\d))?[ \t]+"
    r"(?:\[(.{0,200}?)\][ \t]+)?(TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b[ \t]*(?:\[(.{0,200}?)\][ \t]+)?"
)
_LOGGER = r"([\w.$-]{1,300})(?:(?: \([^\s()]{1,300}\(\d+\)\)|:\d+)?[ \t]+-(?:[ \t]|$)|:(?: |$))"
_WITH_LOGGER = re.compile(_START + _LOGGER + "(.*)", re.ASCII | re.DOTALL)
_WITHOUT_LOGGER = re.compile(_START + "()(.*)", re.ASCII | re.DOTALL)


class RecordHeader(NamedTuple):
    """A line that begins a record, taken apart."""

    at: int
    """Unix ns."""
    level: str
    thread: str | None
    """None where the layout leaves it out."""
    logger: str
    """As written: with its package, the end of it or none; empty where there is none to see."""
    message: str


class LogClock:
    """Reads the times of logs. Not thread-safe: it keeps the seconds that it has read, as they come again and again.

    `time_zone`: of the times that name none, such as Europe/Berlin; an hour that a clock went through twice is
    taken for the first one.

    Raises:
        YarnLogError: there is no such time zone.
    """

    def __init__(self, time_zone: str = "UTC") -> None:
        try:
            self._zone: tzinfo = UTC if time_zone == "UTC" else ZoneInfo(time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise YarnLogError(
                f"{time_zone!r} is no time zone; name one as the time zone database does, such as Europe/Berlin"
            ) from error
        self._seconds: dict[tuple[str, str | None], int | None] = {}

    def unix_ns(self, text: str, fraction: str | None, zone: str | None) -> int | None:
        """The time in Unix ns, or None if there is no such day or hour."""
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
    """The line taken apart; None if it does not begin with a time and a level, as a line of a stack trace."""
    if not "0" <= line[:1] <= "9":  # most lines that begin nothing begin with no digit
        return None
    found = _WITH_LOGGER.match(line) or _WITHOUT_LOGGER.match(line)
    if found is None:
        return None
    text, fraction, zone, thread, level, later_thread, logger, message = found.groups()
    at = clock.unix_ns(text, fraction, zone)
    if at is None:
        return None
    return RecordHeader(at, level, later_thread if thread is None else thread, logger, message)
