"""Keys and results as text."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from pipeline.streaming.cache.encoding import dump_results, key_text, load_results

BERLIN = ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED = 1


@dataclass
class Item:
    name: str
    size: int


class Pair(NamedTuple):
    left: int
    right: int


class FakeRow(tuple[Any, ...]):
    """As Spark's Row: a tuple with names."""

    __fields__: list[str]


def row(**columns: Any) -> FakeRow:
    made = FakeRow(columns.values())
    made.__fields__ = list(columns)
    return made


@pytest.mark.parametrize(
    "results",
    [
        [],
        [None, True, 0, -(2**70), 1.5, -0.0, "", "ü\ud800\0"],
        [(1, "a", (2.5, None)), [1, [2]], {"a": {"b": []}}],
        [{1: "a", (2, 3): "b", None: "c"}, {"$": "x", "v": 1}, {1, 2}, frozenset(["a"])],
        [b"\x00\xff", Decimal("1.10"), Decimal("-Infinity"), uuid.UUID(int=7)],
        [math.inf, -math.inf],
        [dt.date(2026, 1, 31), dt.time(12, 30, 1, 5), dt.timedelta(-3, 5, 7)],
        [dt.datetime(2026, 1, 31, 1, 2, 3, 4), dt.datetime(2026, 1, 31, tzinfo=dt.UTC)],
    ],
)
def test_results_come_back_as_they_were(results: list[Any]) -> None:
    loaded = load_results(dump_results(results))

    assert loaded == results
    assert repr(loaded) == repr(results)


def test_a_zone_comes_back_as_its_offset_and_nan_as_nan() -> None:
    moment = dt.datetime(2026, 7, 1, 12, tzinfo=BERLIN)

    loaded, nan = load_results(dump_results([moment, math.nan]))

    assert math.isnan(nan)
    assert loaded == moment
    assert (loaded.hour, loaded.utcoffset()) == (12, dt.timedelta(hours=2))


RING: list[Any] = []
RING.append(RING)


@pytest.mark.parametrize(
    "value",
    [object(), Item("a", 1), Pair(1, 2), Colour.RED, row(a=1), {"a": [object()]}, RING],
)
def test_a_result_that_would_come_back_as_something_else_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="contains itself" if value is RING else "cannot be kept in a cache"):
        dump_results([value])


@pytest.mark.parametrize(
    "stored",
    [
        *(b"", b"\xff", b"{}", b"[", b'["a', b'[{"$":"pickle","v":"x"}]', b'[{"$":"decimal","v":"x"}]'),
        *(b'[{"$":"date"}]', b'[{"$":"uuid","v":5}]'),
    ],
)
def test_foreign_bytes_are_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="stored results"):
        load_results(stored)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (row(a=1, b="x"), row(b="x", a=1)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({3, 1, 2}, {2, 3, 1}),
        (dt.datetime(2026, 7, 1, 12, tzinfo=BERLIN), dt.datetime(2026, 7, 1, 10, tzinfo=dt.UTC)),
        ((1, 2), [1, 2]),
        (Pair(1, 2), (1, 2)),
        (Item("a", 1), Item("a", 1)),
        (0.0, -0.0),
        (math.nan, -math.nan),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("1E+2"), Decimal(100)),
        (Decimal("-0.00"), Decimal(0)),
        (Decimal("NaN"), Decimal("-NaN7")),
        ([Decimal("9" * 38)], (Decimal("9" * 38 + ".0"),)),
    ],
)
def test_values_that_mean_the_same_have_one_key(one: Any, other: Any) -> None:
    assert key_text(one) == key_text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, True),
        (1, 1.0),
        (None, "null"),
        (("a", "bc"), ("ab", "c")),
        (row(a=1), row(b=1)),
        (row(a=1), {"a": 1}),
        (b"a", "a"),
        (Decimal(1), 1),
        (dt.date(2026, 1, 1), "2026-01-01"),
        (dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        (dt.datetime(2026, 10, 25, 2, tzinfo=BERLIN), dt.datetime(2026, 10, 25, 2, tzinfo=BERLIN, fold=1)),
        (dt.datetime(1, 1, 1, tzinfo=BERLIN), dt.datetime(1, 1, 1, 0, 1, tzinfo=BERLIN)),
        (Decimal(1), Decimal(-1)),
        (Item("a", 1), Item("a", 2)),
        (Colour.RED, "RED"),
    ],
)
def test_other_values_have_other_keys(one: Any, other: Any) -> None:
    assert key_text(one) != key_text(other)


def test_a_key_is_ascii_json() -> None:
    assert json.loads(key_text(["ü", 1])) == ["ü", 1]
    assert key_text("ü").isascii()


def test_a_key_without_a_canonical_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"cannot be part of a cache's key.*key="):
        key_text([object()])
