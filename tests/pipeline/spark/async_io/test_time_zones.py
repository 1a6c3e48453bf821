from __future__ import annotations

import datetime as dt

import pytest

from pipeline.spark.async_io.spark_types import time_zone

NOON = dt.datetime(2026, 7, 1, 12)


@pytest.mark.parametrize(
    ("name", "minutes"),
    [
        ("UTC", 0),
        ("Z", 0),
        ("Etc/UTC", 0),
        ("Europe/Berlin", 120),
        ("+01:00", 60),
        ("-1:30", -90),
        ("UTC+1", 60),
        ("GMT-08:00", -480),
        ("UT+0530", 330),
    ],
)
def test_sparks_names_of_time_zones_are_understood(name: str, minutes: int) -> None:
    assert NOON.replace(tzinfo=time_zone(name)).utcoffset() == dt.timedelta(minutes=minutes)


@pytest.mark.parametrize("name", ["PST", "Mars/Olympus", ""])
def test_unknown_names_are_refused_with_advice(name: str) -> None:
    with pytest.raises(ValueError, match=f"time zone is '{name}', which Python does not know; set spark.sql.session"):
        time_zone(name)
