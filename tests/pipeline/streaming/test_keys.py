"""Keys in canonical form."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from pipeline.streaming import ordered_wait
from pipeline.streaming.keys import canonical_key

NEW_YORK = ZoneInfo("America/New_York")
BEFORE = dt.datetime(2025, 11, 2, 1, 30, tzinfo=NEW_YORK)
AFTER = BEFORE.replace(fold=1)
"""An hour later: the clock shows the same again."""


class Point(NamedTuple):
    place: str
    at: object


@dataclass(frozen=True)
class Visit:
    place: str
    at: object


@dataclass(frozen=True)
class AnyCase:
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyCase) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


@pytest.mark.parametrize("of", [lambda at: at, lambda at: ("a", (at,)), lambda at: Point("a", at)])
@pytest.mark.parametrize("also", [lambda at: at, lambda at: frozenset([at]), lambda at: Visit("a", at)])
def test_instants_of_a_repeated_hour_are_two_keys(of: Any, also: Any) -> None:
    """Aware datetimes of one zone compare by the wall clock, so two of them shared one call."""
    keys = {canonical_key(of(also(at))) for at in (BEFORE, AFTER)}

    assert len(keys) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AFTER, AFTER.astimezone(dt.UTC)),
        (Visit("a", AFTER), Visit("a", AFTER.astimezone(dt.UTC))),
        (float("nan"), -float("nan")),
        (Decimal("NaN"), Decimal("sNaN")),
        (("a", float("nan")), ("a", float("nan"))),
        (0.0, -0.0),
        (Decimal("1.50"), Decimal("1.5")),
        (dt.datetime.max.replace(tzinfo=NEW_YORK), dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5)))),
        (AnyCase("a"), AnyCase("A")),
    ],
)
def test_what_means_the_same_is_one_key(one: Any, other: Any) -> None:
    keys = {canonical_key(one), canonical_key(other)}

    assert len(keys) == 1


@pytest.mark.parametrize("value", ["a", 1, True, None, b"a", dt.date(2026, 1, 1), 1.5, [1], {"a": math.nan}, object()])
def test_another_value_is_returned_as_it_is(value: Any) -> None:
    assert canonical_key(value) is value


def test_calls_are_shared_by_instants() -> None:
    async def epoch(at: dt.datetime) -> float:
        return at.timestamp()

    results = list(ordered_wait([BEFORE, AFTER], epoch, timeout=30, dedupe_by=lambda at: at, remember=9))

    assert results == [BEFORE.timestamp(), AFTER.timestamp()]
