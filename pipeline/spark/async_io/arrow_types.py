"""Schemas on the way from Spark to Python and back: Arrow types, supported types, and column names.

PySpark's own functions for it are private, and their arguments change with the version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pipeline.spark.errors import UnsupportedTypeError

_SIMPLE: dict[type[T.DataType], pa.DataType] = {
    T.NullType: pa.null(),
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.StringType: pa.string(),
    T.CharType: pa.string(),
    T.VarcharType: pa.string(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", tz="UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
}
# Spark 4.0 has no type for the time of day.
TIME_TYPE: type[Any] | None = getattr(T, "TimeType", None)
_VARIANT_FIELDS = ("value", "metadata")


def arrow_type(data_type: T.DataType) -> pa.DataType | None:
    """The Arrow type in which Spark takes values of `data_type` back, all nullable; None if unsupported."""
    if isinstance(data_type, T.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, T.ArrayType):
        element = arrow_type(data_type.elementType)
        return None if element is None else pa.list_(element)
    if isinstance(data_type, T.MapType):
        entry = arrow_type(data_type.keyType), arrow_type(data_type.valueType)
        return None if None in entry else pa.map_(*entry)
    if isinstance(data_type, T.StructType):
        kinds = [arrow_type(field.dataType) for field in data_type.fields]
        return None if None in kinds else pa.struct(list(zip(data_type.names, kinds, strict=True)))
    if isinstance(data_type, T.VariantType):
        # Spark recognizes a variant by this metadata; without it, the type is a struct of two binaries.
        first, second = (pa.field(name, pa.binary(), nullable=False) for name in _VARIANT_FIELDS)
        return pa.struct([first, second.with_metadata({"variant": "true"})])
    if isinstance(data_type, T.UserDefinedType):
        return arrow_type(data_type.sqlType())
    if TIME_TYPE is not None and isinstance(data_type, TIME_TYPE):
        return pa.time64("ns")
    return _SIMPLE.get(type(data_type))


def require_supported(schema: T.StructType, what: str) -> None:
    """Check every column of `schema`, which messages call `what`.

    Raises:
        UnsupportedTypeError: for the first column without an Arrow type. ValueError: there are no columns.
    """
    if not schema.fields:
        raise ValueError(f"{what} has no columns; give it at least one")
    for field in schema.fields:
        if arrow_type(field.dataType) is None:
            raise UnsupportedTypeError(what, field.name, field.dataType.simpleString())


def with_plain_names(df: DataFrame) -> DataFrame:
    """`df` with names that `mapInArrow` can resolve; unchanged if its own can be resolved.

    `mapInArrow` resolves each name as in a query: a dot leads into a struct, and a repeated name is ambiguous.
    """
    names = df.columns
    is_plain = len({name.lower() for name in names}) == len(names) and not any(
        "." in name or "`" in name for name in names
    )
    return df if is_plain else df.toDF(*(f"column{place}" for place in range(len(names))))


def require_distinct(struct: T.StructType, path: str = "") -> None:
    """Raise ValueError for a repeated name in `struct` or a struct within it: Spark cannot read those from Arrow."""
    for name, count in Counter(struct.names).items():
        if count > 1:
            raise ValueError(f"the output would have {count} columns {path}{name}; rename them, so that it has one")
    for field in struct.fields:
        for inner in _structs(field.dataType):
            require_distinct(inner, f"{path}{field.name}.")


def _structs(data_type: T.DataType) -> Iterator[T.StructType]:
    if isinstance(data_type, T.StructType):
        yield data_type
    elif isinstance(data_type, T.ArrayType):
        yield from _structs(data_type.elementType)
    elif isinstance(data_type, T.MapType):
        yield from _structs(data_type.keyType)
        yield from _structs(data_type.valueType)
    elif isinstance(data_type, T.UserDefinedType):
        yield from _structs(data_type.sqlType())
