"""The Arrow types of Spark's types, and which of Spark's types cannot cross to Python at all.

Our own and not PySpark's, whose functions for it are private and take other arguments in each version.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
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
    """The Arrow type in which Spark takes values of `data_type` back, all nullable; None where there is none."""
    if isinstance(data_type, T.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, T.ArrayType):
        element = arrow_type(data_type.elementType)
        return None if element is None else pa.list_(element)
    if isinstance(data_type, T.MapType):
        entry = arrow_type(data_type.keyType), arrow_type(data_type.valueType)
        return None if None in entry else pa.map_(*entry)
    if isinstance(data_type, T.StructType):
        return _struct_type(data_type)
    if isinstance(data_type, T.VariantType):
        # The mark on the second field is how Spark tells a variant from a struct of two binaries.
        first, second = (pa.field(name, pa.binary(), nullable=False) for name in _VARIANT_FIELDS)
        return pa.struct([first, second.with_metadata({"variant": "true"})])
    if isinstance(data_type, T.UserDefinedType):
        return arrow_type(data_type.sqlType())
    if TIME_TYPE is not None and isinstance(data_type, TIME_TYPE):
        return pa.time64("ns")
    return _SIMPLE.get(type(data_type))


def _struct_type(struct: T.StructType) -> pa.DataType | None:
    kinds = [arrow_type(field.dataType) for field in struct.fields]
    if None in kinds:
        return None
    return pa.struct([pa.field(field.name, kind) for field, kind in zip(struct.fields, kinds, strict=True)])


def require_supported(schema: T.StructType, what: str) -> None:
    """Look at every column of `schema`, called `what` in the message.

    Raises:
        UnsupportedTypeError: for the first column that has no Arrow type. ValueError: there is no column at all.
    """
    if not schema.fields:
        raise ValueError(f"{what} has no columns; give it at least one")
    for field in schema.fields:
        if arrow_type(field.dataType) is None:
            raise UnsupportedTypeError(what, field.name, field.dataType.simpleString())
