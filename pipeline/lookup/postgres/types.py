"""PostgreSQL's column types: how they are read, and how keys are compared with them. Does not need psycopg."""

from __future__ import annotations

import re

from pipeline.lookup.schema import Column

_MAX_PRECISION = 38
_UNBOUNDED_NUMERIC = "decimal(38,18)"  # as Spark's own JDBC source reads it

_TYPES = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "float",
    "float8": "double",
    "text": "string",
    "varchar": "string",
    "bpchar": "string",
    "name": "string",
    "bytea": "binary",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}

# The type in which keys are sent: the widest of its family, because a key out of a narrower column's range must match
# nothing instead of failing. An index of the narrower type still serves. Columns of other types are compared as text.
KEY_ARRAYS = {
    **dict.fromkeys(("int2", "int4", "int8"), "int8[]"),
    **dict.fromkeys(("float4", "float8"), "float8[]"),
    **dict.fromkeys(("text", "varchar", "name"), "text[]"),
    **{n: f"{n}[]" for n in ("bool", "numeric", "bpchar", "uuid", "bytea", "date", "timestamp", "timestamptz")},
}


def column_of(name: str, native: str, modifier: int) -> Column:
    """A column of type `native` (pg_type.typname) with its type modifier (-1: none)."""
    element = native.removeprefix("_")
    if native == "numeric":
        return Column(name, _numeric(modifier), native)
    if native.startswith("_") and (element in _TYPES or element == "numeric"):
        return Column(name, f"array<{_TYPES.get(element) or _numeric(modifier)}>", native)
    return Column(name, _TYPES.get(native, "string"), native)


def _numeric(modifier: int) -> str:
    if modifier < 4:
        return _UNBOUNDED_NUMERIC
    precision = ((modifier - 4) >> 16) & 0xFFFF
    scale = (modifier - 4) & 0x7FF
    if scale >= 0x400:  # a scale is a signed number of 11 bits
        scale -= 0x800
    if scale < 0:  # numeric(3,-2) has up to 5 digits before the point
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return f"decimal({precision},{scale})" if precision <= _MAX_PRECISION else _UNBOUNDED_NUMERIC


def read_as_text(column: Column) -> bool:
    """Whether the server must send the column as text, because its type has no counterpart here."""
    return column.type == "string" and column.native not in ("text", "varchar", "bpchar", "name")


def decimal_type(column: Column) -> str | None:
    """The decimal type in a column's type, which may be an array's element; None without one."""
    found = re.search(r"decimal\(\d+,\d+\)", column.type)
    return None if found is None else found[0]
