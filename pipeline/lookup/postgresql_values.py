"""Values of PostgreSQL and of Python: the types of columns, arrays of keys, and the rows of an answer.

psycopg is imported only when it is needed. Any thread.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from pipeline.lookup.schema import Column, ToDecimal
from pipeline.lookup.sql import Converter, Unreadable

if TYPE_CHECKING:
    import psycopg

_TIMES: Final = (1082, 1114, 1184)  # date, timestamp, timestamptz
_INFINITIES: Final = {
    (sign * 2 ** (bits - 1) - (sign > 0)).to_bytes(bits // 8, "big", signed=True): name
    for bits in (32, 64)
    for sign, name in ((1, "infinity"), (-1, "-infinity"))
}
"""By their binary form."""
_NULL: Final = (-1).to_bytes(4, "big", signed=True)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
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
_KEY_ARRAYS = {
    **dict.fromkeys(("int2", "int4", "int8"), "int8[]"),
    **dict.fromkeys(("float4", "float8"), "float8[]"),
    **dict.fromkeys(("text", "varchar", "name"), "text[]"),
    **{n: f"{n}[]" for n in ("bool", "numeric", "bpchar", "bytea", "date", "timestamp", "timestamptz")},
    "uuid": "text[]::uuid[]",  # the server can cast it, whatever the driver sends
}


async def rows_of_cursor(cursor: psycopg.AsyncCursor[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """All rows of a binary answer. A value that psycopg cannot read is an Unreadable, and fails no other."""
    import psycopg
    from psycopg.adapt import Transformer
    from psycopg.pq import Format

    try:
        return await cursor.fetchall()
    except (psycopg.DataError, ValueError):
        answer: Any = cursor.pgresult
    transformer = Transformer.from_context(cursor)
    loads = [
        (answer.ftype(at), transformer.get_loader(answer.ftype(at), Format.BINARY)) for at in range(answer.nfields)
    ]

    def read(row: int, at: int) -> Any:
        raw = answer.get_value(row, at)
        type_oid, loader = loads[at]
        try:
            return None if raw is None else loader.load(raw)
        except (psycopg.DataError, ValueError) as error:
            return Unreadable(_shown(type_oid, raw, error))

    return [tuple([read(row, at) for at in range(answer.nfields)]) for row in range(answer.ntuples)]


def _shown(type_oid: int, raw: bytes, error: Exception) -> str:
    """A value that cannot be read, by its type and binary form, and by the driver's complaint."""
    if type_oid in _TIMES and raw in _INFINITIES:
        return _INFINITIES[raw]
    return f"a value that Python does not have ({error})"


class _Int8Array(bytes):
    """An array of bigint in PostgreSQL's binary form, made in a fraction of the time that psycopg takes for a list."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> _Int8Array:
        return cls(_array_head(20, values) + struct.pack("!" + "iq" * len(values), *_each_after(8, values)))


class _TextArray(bytes):
    """An array of text, likewise."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> _TextArray:
        parts = [_array_head(25, values)]
        for value in values:
            if _can_be_sent(value):
                text = value.encode()
                parts += (len(text).to_bytes(4, "big"), text)
            else:
                parts.append(_NULL)
        return cls(b"".join(parts))


def _array_head(element_oid: int, values: Sequence[Any]) -> bytes:
    return struct.pack("!iiIii", 1, 1, element_oid, len(values), 1)  # one dimension, maybe nulls, from 1


def _each_after(length: int, values: Sequence[Any]) -> Iterator[Any]:
    return chain.from_iterable(zip(repeat(length), values, strict=False))


def register_arrays(connection: psycopg.AsyncConnection[Any]) -> None:
    """Make the connection send what `parameter_of` makes."""
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    class ArrayDumper(Dumper):
        format = Format.BINARY

        def dump(self, obj: Any) -> Any:
            return obj

    class Int8ArrayDumper(ArrayDumper):
        oid = 1016

    class TextArrayDumper(ArrayDumper):
        oid = 1009

    connection.adapters.register_dumper(_Int8Array, Int8ArrayDumper)
    connection.adapters.register_dumper(_TextArray, TextArrayDumper)


def converter_of(column: Column) -> Converter | None:
    """The converter of a column's values; None if psycopg's are the column's as they are."""
    element = column.type.removeprefix("array<").removesuffix(">")
    if element.startswith("decimal"):
        return partial(_each, ToDecimal(element))
    return partial(_each, _text) if element == "string" else None


def plain_of(column: Column) -> type | None:
    """The type of psycopg's values that are the column's as they are, though it has a converter."""
    return str if column.type == "string" else None


def _text(value: str | bytes) -> str:
    """A text; a database without an encoding gives bytes."""
    return value if isinstance(value, str) else value.decode()


def _each(convert: Converter, value: Any) -> Any:
    if isinstance(value, list):
        return [None if one is None else _each(convert, one) for one in value]
    return convert(value)


def parameter_of(column: Column) -> Callable[[Sequence[Any]], Any]:
    """Makes the array of a key column's values."""
    array = _KEY_ARRAYS.get(column.native, "text[]")
    if array == "int8[]":
        return _Int8Array.of
    return _TextArray.of if array.startswith("text") else _sendable


def _sendable(values: Sequence[Any]) -> list[Any]:
    return [value if _can_be_sent(value) else None for value in values]


def _can_be_sent(value: object) -> bool:
    """Whether it is no text that matches nothing and would fail the query, as with a NUL or a lone surrogate."""
    if not isinstance(value, str):
        return True
    return "\0" not in value and (value.isascii() or _SURROGATE.search(value) is None)


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


def key_type(column: Column) -> str | None:
    """The type in which a column's keys are sent; None: as text, with which the column's text is compared."""
    return _KEY_ARRAYS.get(column.native)


def is_read_as_text(column: Column) -> bool:
    """Whether the server must send the column as text, because its type has no counterpart here."""
    return column.type == "string" and column.native not in ("text", "varchar", "bpchar", "name")
