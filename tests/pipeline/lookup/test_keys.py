"""Keys in canonical form are equal if they stand for the same value."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import pytest

from pipeline.lookup import Column, LookupTableError
from pipeline.lookup.keys import KeyForm

UTC = datetime.UTC


def key(type_name: str, value: object, native: str = "") -> tuple[object, ...] | None:
    return KeyForm([Column("k", type_name, native)]).of([value])


@pytest.mark.parametrize(
    ("type_name", "native", "one", "other"),
    [
        ("bigint", "", 5, Decimal("5.00")),
        ("decimal(10,2)", "", 5, Decimal("5.00")),
        ("double", "", 2, 2.0),
        ("double", "", math.nan, -math.nan),
        ("binary", "", b"ab", bytearray(b"ab")),
        ("string", "bpchar", "ab", "ab  "),
        ("string", "uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}"),
        (
            "timestamp",
            "",
            datetime.datetime(2026, 1, 1, 12, tzinfo=UTC),
            datetime.datetime(2026, 1, 1, 14, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
        ),
    ],
)
def test_two_forms_of_one_key_are_equal(type_name: str, native: str, one: object, other: object) -> None:
    first, second = key(type_name, one, native), key(type_name, other, native)

    assert first is not None
    assert {first: 1} == {second: 1}


@pytest.mark.parametrize(
    ("type_name", "native", "value"),
    [
        ("bigint", "", None),
        ("bigint", "", 2**63),
        ("bigint", "", -(2**63) - 1),
        ("bigint", "", Decimal("1.5")),
        ("bigint", "", Decimal("NaN")),
        ("decimal(10,2)", "", Decimal("Infinity")),
        ("string", "uuid", "no uuid"),
    ],
)
def test_a_value_that_no_row_can_have_gives_no_key(type_name: str, native: str, value: object) -> None:
    assert key(type_name, value, native) is None


def test_a_null_in_one_column_makes_the_whole_key_match_nothing() -> None:
    form = KeyForm([Column("a", "int"), Column("b", "string")])

    assert form.of([1, "x"]) == (1, "x")
    assert form.of([1, None]) is None
    assert form.of([None, "x"]) is None


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("bigint", "5"),
        ("bigint", True),
        ("bigint", 5.0),
        ("decimal(10,2)", 5.0),
        ("double", "5"),
        ("string", 5),
        ("boolean", 1),
        ("binary", "text"),
        ("date", datetime.datetime(2026, 1, 1)),
        ("timestamp", datetime.date(2026, 1, 1)),
        ("timestamp_ntz", datetime.datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_value_of_another_type_is_refused_with_both_types(type_name: str, value: object) -> None:
    with pytest.raises(LookupTableError, match=type(value).__name__) as raised:
        key(type_name, value)

    assert f"'k' is {type_name}" in str(raised.value)


def test_a_nested_column_cannot_be_a_key() -> None:
    with pytest.raises(LookupTableError, match="array<int>, which cannot be a key"):
        KeyForm([Column("k", "array<int>")])
