"""Types of SQLite's columns, and converters of their values. SQLite does not enforce a column's declared type."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

from pipeline.lookup.schema import Column, ToDecimal, base_of

Converter: TypeAlias = Callable[[Any], object]
"""Takes a value that is not None to the column's type. ValueError, TypeError: it cannot be converted."""

_NAMED = {
    **dict.fromkeys(("BOOLEAN", "BOOL"), "boolean"),
    **dict.fromkeys(("TIMESTAMP", "DATETIME"), "timestamp_ntz"),
    "DATE": "date",
}
_MAX_PRECISION = 38


def type_of(declared: str) -> str | None:
    """The type of a declaration, by SQLite's rules of affinity; None if it determines none."""
    text = declared.strip().upper()
    decimal = re.fullmatch(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", text)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        return f"decimal({precision},{scale})" if scale <= precision <= _MAX_PRECISION else "double"
    named = _NAMED.get(re.sub(r"\(.*\)", "", text).strip())
    if named is not None:
        return named
    for parts, type_name in (
        (("INT",), "bigint"),
        (("CHAR", "CLOB", "TEXT"), "string"),
        (("BLOB",), "binary"),
        (("REAL", "FLOA", "DOUB"), "double"),
        (("NUMERIC", "DECIMAL"), "double"),
    ):
        if any(part in text for part in parts):
            return type_name
    return None


def _integer(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int):
        return value
    raise TypeError


def _float(value: object) -> object:
    if isinstance(value, int | float):
        return float(value)
    raise TypeError


def _string(value: object) -> object:
    if isinstance(value, str):
        return value
    raise TypeError


def _binary(value: object) -> object:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError


def _boolean(value: object) -> object:
    if value in (0, 1):
        return bool(value)
    raise ValueError


def _timestamp(value: Any) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(value)  # raises a TypeError if it is not a str
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def _timestamp_ntz(value: Any) -> datetime.datetime:
    return _timestamp(value).astimezone(datetime.UTC).replace(tzinfo=None)


_CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _integer),
    **dict.fromkeys(("float", "double"), _float),
    "string": _string,
    "binary": _binary,
    "boolean": _boolean,
    "date": datetime.date.fromisoformat,
    "timestamp_ntz": _timestamp_ntz,
    "timestamp": _timestamp,
}


def converter_of(column: Column) -> Converter | None:
    """The converter of a column's values; None if SQLite's values cannot have its type."""
    base = base_of(column.type)
    return ToDecimal(column.type) if base == "decimal" else _CONVERTERS.get(base)


def bound(value: object) -> object:
    """A key's value as SQLite stores it."""
    if isinstance(value, Decimal | datetime.date):  # a column of numeric affinity converts the text to a number
        return str(value)
    return value
