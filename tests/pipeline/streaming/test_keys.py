"""Keys in canonical form."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from pipeline.streaming import CallMetrics, ordered_wait

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


def calls_of(*keys: Any) -> int:
    """How many calls are made for values of these keys, of which answers are remembered."""
    metrics = CallMetrics()
    list(ordered_wait(keys, repr, timeout=30, dedupe_by=lambda key: key, remember=9, metrics=metrics))
    return metrics.calls


@pytest.mark.parametrize("of", [lambda at: at, lambda at: ("a", (at,)), lambda at: Point("a", at)])
@pytest.mark.parametrize("also", [lambda at: at, lambda at: frozenset([at]), lambda at: Visit("a", at)])
def test_instants_of_a_repeated_hour_are_two_keys(of: Any, also: Any) -> None:
    """Aware datetimes of one zone compare by the wall clock, so two of them shared one call."""
    assert calls_of(*(of(also(at)) for at in (BEFORE, AFTER))) == 2


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
    assert calls_of(one, other) == 1
