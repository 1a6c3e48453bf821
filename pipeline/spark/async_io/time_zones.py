"""Spark's names of time zones, of which Python knows most."""

from __future__ import annotations

import datetime as dt
import re

import pyarrow as pa

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::?(\d\d))?(?::?(\d\d))?")


def time_zone(name: str) -> dt.tzinfo:
    """The time zone that `spark.sql.session.timeZone` calls `name`: a region, Z, or an offset, also as in UTC+1.

    Raises:
        ValueError: Python knows no such zone; Java knows some more, such as PST.
    """
    if name == "Z":
        return dt.UTC
    if offset := _OFFSET.fullmatch(name):
        sign, hours, minutes, seconds = offset.groups(default="0")
        distance = dt.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
        return dt.timezone(-distance if sign == "-" else distance)
    try:
        zone: dt.tzinfo = pa.lib.string_to_tzinfo(name)
    except Exception as error:  # of pytz, or of zoneinfo where there is no pytz
        raise ValueError(
            f"the session's time zone is {name!r}, which Python does not know; set spark.sql.session.timeZone to a "
            "region such as America/Los_Angeles, or to an offset such as +01:00"
        ) from error
    return zone
