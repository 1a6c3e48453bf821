"""Columns, their types, and which types can be compared as keys."""

from __future__ import annotations

import pytest

from pipeline.lookup import Column, FunctionTable, LookupTableError
from pipeline.lookup.schema import LookupSchema, check_key_types


def test_columns_are_read_as_spark_writes_them() -> None:
    """A decimal without a scale was passed on, and the first to read its scale failed."""
    columns = (
        "node string, `memory mb` LONG, cost decimal(10, 2), size Decimal(12), count decimal, tags array<string>,"
        " at: struct<Day: int, h: decimal(4,1)>"
    )

    assert FunctionTable(str, key="k int", columns=columns).read_schema(["k"]).values == (
        Column("node", "string"),
        Column("memory mb", "bigint"),
        Column("cost", "decimal(10,2)"),
        Column("size", "decimal(12,0)"),
        Column("count", "decimal(10,0)"),
        Column("tags", "array<string>"),
        Column("at", "struct<Day: int, h: decimal(4,1)>"),
    )


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("node", "cannot parse 'node'"),
        ("node string,", "cannot parse ''"),
        ("node strnig", "'strnig' is not a column type"),
        ("cost decimal(x)", r"'decimal\(x\)' is not a column type"),
        ("node string, node int", "'node' is repeated"),
        ("k string", "'k' is repeated"),
    ],
)
def test_columns_that_cannot_be_parsed_are_refused(ddl: str, message: str) -> None:
    with pytest.raises(LookupTableError, match=message):
        FunctionTable(str, key="k int", columns=ddl)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [("int", "bigint"), ("decimal(10,2)", "int"), ("float", "double"), ("string", "string"), ("varchar(5)", "string")],
)
def test_types_of_one_family_fit(mine: str, theirs: str) -> None:
    check_key_types("t", LookupSchema((Column("key", theirs),), ()), ["id"], [mine])


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("string", "bigint"),
        ("double", "bigint"),
        ("timestamp", "timestamp_ntz"),
        ("date", "timestamp"),
        ("array<int>", "int"),
        ("binary", "string"),
    ],
)
def test_other_types_are_refused_with_the_cast_that_helps(mine: str, theirs: str) -> None:
    with pytest.raises(LookupTableError) as refused:
        check_key_types("t", LookupSchema((Column("key", theirs),), ()), ["id"], [mine])

    assert f"'id' of the input is {mine}" in str(refused.value)
    assert f"'key' is {theirs}" in str(refused.value)
    assert f"col('id').cast('{theirs}')" in str(refused.value)
