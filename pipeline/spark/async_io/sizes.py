"""How many bytes checked values take in Arrow: Spark's rows, and the arrays of a batch, hold less than 2 GiB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from pyspark.sql import types as T

from pipeline.spark.async_io.spark_types import inner_types
from pipeline.spark.async_io.structs import Check
from pipeline.spark.errors import ResultSchemaError

Size: TypeAlias = Callable[[Sequence[Any]], int]
"""Takes checked values of a column, which may be None, and returns about how many bytes they take."""

MOST_ROW_BYTES: Final = 2**31 - 1024
"""Java addresses a row's bytes with an int, and needs a few of them itself."""

_FIXED_BYTES: Final = 8
_MOST_BYTES_OF_CHARACTER: Final = 4


def size_of(data_type: T.DataType) -> Size | None:
    """The size of values of a supported type; None if each takes `_FIXED_BYTES`, or about that many.

    A string counts a byte for each character.
    """
    if isinstance(data_type, T.StringType | T.CharType | T.VarcharType | T.BinaryType):
        return _total_length
    if isinstance(data_type, T.VariantType):
        return lambda values: _total_length(list(chain.from_iterable(filter(None, values))))
    if isinstance(data_type, T.UserDefinedType):
        return size_of(data_type.sqlType())
    if isinstance(data_type, T.ArrayType):
        element = _always(data_type.elementType)
        return lambda values: element(list(chain.from_iterable(filter(None, values))))
    if isinstance(data_type, T.MapType | T.StructType):
        fields = [_always(inner) for inner in inner_types(data_type)]
        if isinstance(data_type, T.MapType):
            return lambda values: _of_fields(fields, list(chain.from_iterable(filter(None, values))))
        return lambda values: _of_fields(fields, list(filter(None, values)))
    return None


def size_of_rows(schema: T.StructType) -> Size:
    """The size of checked rows of `schema`."""
    sizes = [size_of(field.dataType) for field in schema.fields]
    varying = [(place, size) for place, size in enumerate(sizes) if size is not None]
    fixed = _FIXED_BYTES * len(sizes)

    def size_of_values(rows: Sequence[Any]) -> int:
        total = fixed * len(rows)
        for place, size in varying:
            total += size([row[place] for row in rows])
        return total

    return size_of_values


def limited(check: Check, schema: T.StructType, most_bytes: int = MOST_ROW_BYTES) -> Check:
    """`check` of a result of `schema`, which also raises ResultSchemaError for one of more than `most_bytes`."""
    sizes = [(place, size) for place, field in enumerate(schema.fields) if (size := size_of(field.dataType))]
    if not sizes:
        return check
    # Below this many characters and bytes, the row fits however its characters are encoded.
    surely_fits = most_bytes // _MOST_BYTES_OF_CHARACTER - _FIXED_BYTES * len(schema.fields)

    def check_with_size(result: Any) -> Any:
        row = check(result)
        length = 0
        for place, size in sizes:
            value = row[place]
            if type(value) is str:
                length += len(value)
            elif value is not None:
                length += size((value,))
        if length > surely_fits:
            _require_fits(schema, row, most_bytes)
        return row

    return check_with_size


def _require_fits(schema: T.StructType, row: Sequence[Any], most_bytes: int) -> None:
    sizes = {field.name: _encoded_bytes(value) for field, value in zip(schema.fields, row, strict=True)}
    if (total := sum(sizes.values())) > most_bytes:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ResultSchemaError(
            largest,
            f"it takes {sizes[largest]:,} bytes of the row's {total:,}, and a row of Spark holds {most_bytes:,}. "
            "Return several rows, or store the value elsewhere and return its address",
        )


def _encoded_bytes(value: Any) -> int:
    """What a checked value takes, with its strings in UTF-8."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_encoded_bytes, value))
    return _FIXED_BYTES


def _always(data_type: T.DataType) -> Size:
    return size_of(data_type) or (lambda values: _FIXED_BYTES * len(values))


def _total_length(values: Sequence[Any]) -> int:
    return sum(map(len, filter(None, values)))


def _of_fields(sizes: Sequence[Size], records: Sequence[Sequence[Any]]) -> int:
    columns = zip(*records, strict=True)
    return sum(size(column) for size, column in zip(sizes, columns, strict=False))
