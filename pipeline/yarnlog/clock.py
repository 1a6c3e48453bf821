"""The times of logs, as Unix ns."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dispatcher.errors import DispatcherError
from dispatcher.util.units import NS_PER_S

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
ZONE = r"Z|UTC|GMT|[+-](?:0\d|1[0-8]):?[0-5]\d"
"""A time zone, as a regular expression."""

_SECONDS_KEPT = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WITHOUT_YEAR = re.compile(rf"({'|'.join(MONTHS)}) {{1,2}}(\d{{1,2}}) (\d\d:\d\d:\d\d.*)", re.ASCII)


class YarnLogError(DispatcherError):
    """The user's or the disk's fault: a path without logs, an unreadable file, an unknown time zone.

    It is about a log as a whole; no single line raises one.
    """


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
        """The time in Unix ns, or None if the date or the hour does not exist.

        `text`: 2015-10-18 18:01:47, with a T or slashes too, 15/10/18 18:01:47 or 18 Oct 2015 18:01:47.
        """
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
        day, clock_time = text[:-9], text[-8:]
        if day[2:3] == "/":
            day = f"20{day}"
        elif "0" <= day[:1] <= "9" and not day[:4].isdecimal():
            number, month, year = day.replace("-", " ").split(" ")
            day = f"{year}-{1 + MONTHS.index(month):02}-{int(number):02}"
        try:
            at = datetime.fromisoformat(f"{day.replace('/', '-')} {clock_time}")
            at = at.replace(tzinfo=self._zone if zone is None else _offset(zone))
            return (at - _EPOCH) // timedelta(seconds=1)
        except (ValueError, OverflowError):
            return None


def _offset(zone: str) -> tzinfo:
    if zone[0] not in "+-":
        return UTC
    sign = -1 if zone[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:])))


def with_year(text: str, latest: date) -> str:
    """A time such as `Nov 23 10:06:36`, with the last year in which it is not after `latest`; others as they are."""
    found = _WITHOUT_YEAR.fullmatch(text)
    if found is None:
        return text
    month, day, clock_time = found.groups()
    is_later = (1 + MONTHS.index(month), int(day)) > (latest.month, latest.day)
    return f"{day} {month} {latest.year - is_later} {clock_time}"
