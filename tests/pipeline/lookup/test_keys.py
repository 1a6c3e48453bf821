"""Keys in canonical form are asked for once if they stand for the same value."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import pytest

from pipeline.lookup import Column, LookupTableError

from .fakes import FakeReader, FakeTable, LookupFunction, LookupKey, LookupSchema, invoke

UTC = datetime.UTC


def ask(columns: list[Column], *rows: tuple[object, ...]) -> tuple[list[list[LookupKey]], list[Any]]:
    """The queries that reach a table with a key of these columns, and the results."""
    reader = FakeReader({})
    names = [column.name for column in columns]
    function = LookupFunction(FakeTable(reader, LookupSchema(tuple(columns), ())), names, input_columns=names)
    return reader.queries, invoke(function, rows)


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
def test_two_forms_of_one_key_are_asked_for_once(type_name: str, native: str, one: object, other: object) -> None:
    [query], _ = ask([Column("k", type_name, native)], (one,), (other,))

    assert len(query) == 1


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
def test_a_value_that_no_row_can_have_is_not_asked_for(type_name: str, native: str, value: object) -> None:
    queries, [result] = ask([Column("k", type_name, native)], (value,))

    assert (queries, result) == ([], [(value,)])


def test_a_null_in_one_column_makes_the_whole_key_match_nothing() -> None:
    queries, _ = ask([Column("a", "int"), Column("b", "string")], (1, "x"), (1, None), (None, "x"))

    assert queries == [[(1, "x")]]


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
def test_a_value_of_another_type_fails_its_row_with_both_types(type_name: str, value: object) -> None:
    queries, [result] = ask([Column("k", type_name)], (value,))

    assert queries == []
    assert isinstance(result, LookupTableError)
    assert f"'k' is {type_name}" in str(result)
    assert type(value).__name__ in str(result)


def test_a_nested_column_cannot_be_a_key() -> None:
    with pytest.raises(LookupTableError, match="array<int>, which cannot be a key"):
        ask([Column("k", "array<int>")])
