"""Schemas and rows on the way from Spark to Python: Arrow types, names that Arrow can carry, and rows of batches.

PySpark's own functions for schemas are private, and their arguments change with the version. Rows are converted column
by column: a struct is a Row, a map a dict, an array a list, a TIMESTAMP an aware datetime in the session's time zone, a
TIMESTAMP_NTZ a naive one, binary is bytes, a variant a VariantVal, a day-time interval a timedelta.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as T

from pipeline.spark.errors import UnknownColumnError, UnsupportedTypeError

Reader = Callable[[Any], list[Any]]
"""Takes a pyarrow Array, returns one Python value per element."""

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
_VARIANT_METADATA = {b"variant": b"true"}
_UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH = dt.datetime(1970, 1, 1)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::?(\d\d))?(?::?(\d\d))?")


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
        return pa.struct([first, second.with_metadata(_VARIANT_METADATA)])
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


def read_rows(
    schema: T.StructType, batches: Iterable[pa.RecordBatch], slice_rows: int = 500, slice_bytes: int = 1 << 20
) -> Iterator[list[Row]]:
    """The rows of batches of `schema`, in lists of at most `slice_rows`, fewer if rows are large; no list is empty.

    Each slice is converted on demand, so that a whole batch never occupies memory or the GIL at once.
    """
    readers = [_reader(field.dataType) for field in schema.fields]
    make_row = row_maker(schema.names)
    for batch in batches:
        row_bytes = max(1.0, batch.nbytes / max(1, batch.num_rows))
        size = max(1, min(slice_rows, int(slice_bytes / row_bytes)))
        for start in range(0, batch.num_rows, size):
            part = batch.slice(start, size)
            columns = [reader(part.column(i)) for i, reader in enumerate(readers)]
            yield list(map(make_row, zip(*columns, strict=True)))


def row_maker(names: list[str]) -> Callable[[tuple[Any, ...]], Row]:
    """A function that makes a Row with the fields `names` from a tuple of values.

    PySpark's own way to make a Row and to look up a field costs more than the rest of the conversion. So the rows
    belong to a subclass with a property per name. They pickle as plain Rows.
    """
    members: dict[str, Any] = {"__fields__": names, "__getattr__": _other_field, "__getitem__": _field}
    for position, name in reversed(list(enumerate(names))):  # a Row gives the first of two columns of one name
        if name.isidentifier() and not hasattr(Row, name):
            members[name] = property(itemgetter(position))
    return partial(tuple.__new__, type("Row", (Row,), members))


def _other_field(row: Row, name: str) -> Any:
    """The field of a name that has no property. Python calls it last, so the usual names do not pay for it."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _field(row, name)


def _field(row: Row, key: Any) -> Any:
    if isinstance(key, str):
        try:
            key = row.__fields__.index(key)
        except ValueError:
            raise UnknownColumnError(key, row.__fields__) from None
    return tuple.__getitem__(row, key)


def reader_of(kind: pa.DataType) -> Reader:
    """A reader of arrays of an Arrow type that Spark made, for when Spark's own type is not known.

    A user-defined type is read as the type that it is stored as.
    """
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        if any(field.metadata == _VARIANT_METADATA for field in fields):
            return _read_variants
        return _structs_reader([field.name for field in fields], [reader_of(field.type) for field in fields])
    if pa.types.is_list(kind):
        element = reader_of(kind.value_type)
        return _read_plain if element is _read_plain else partial(_read_lists, element)
    if pa.types.is_map(kind):
        return partial(_read_maps, reader_of(kind.key_type), reader_of(kind.item_type))
    if pa.types.is_timestamp(kind):
        return _read_local_timestamps if kind.tz is None else _read_timestamps
    return _read_plain


def _reader(data_type: T.DataType) -> Reader:
    if isinstance(data_type, T.StructType):
        return _struct_reader(data_type)
    if isinstance(data_type, T.ArrayType):
        element = _reader(data_type.elementType)
        return _read_plain if element is _read_plain else partial(_read_lists, element)
    if isinstance(data_type, T.MapType):
        return partial(_read_maps, _reader(data_type.keyType), _reader(data_type.valueType))
    if isinstance(data_type, T.TimestampType):
        return _read_timestamps
    if isinstance(data_type, T.TimestampNTZType):
        return _read_local_timestamps
    if isinstance(data_type, T.VariantType):
        return _read_variants
    if isinstance(data_type, T.UserDefinedType):
        return partial(_read_user_defined, data_type, _reader(data_type.sqlType()))
    return _read_plain


def _read_plain(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _read_timestamps(array: Any) -> list[Any]:
    # Ten times as fast as Arrow's own conversion.
    zone = time_zone(array.type.tz)
    made = (_UTC_EPOCH + dt.timedelta(microseconds=us) if us is not None else None for us in _microseconds(array))
    return [moment.astimezone(zone) if moment is not None else None for moment in made]


def _read_local_timestamps(array: Any) -> list[Any]:
    return [_EPOCH + dt.timedelta(microseconds=us) if us is not None else None for us in _microseconds(array)]


def _microseconds(array: Any) -> list[int | None]:
    values: list[int | None] = array.cast(pa.int64()).to_pylist()
    return values


def _read_variants(array: Any) -> list[Any]:
    value, metadata = (child.to_pylist() for child in array.flatten())
    return [T.VariantVal(one, other) if one is not None else None for one, other in zip(value, metadata, strict=True)]


def _read_user_defined(data_type: Any, reader: Reader, array: Any) -> list[Any]:
    return [data_type.deserialize(value) if value is not None else None for value in reader(array)]


def _struct_reader(struct: T.StructType) -> Reader:
    return _structs_reader(struct.names, [_reader(field.dataType) for field in struct.fields])


def _structs_reader(names: list[str], readers: list[Reader]) -> Reader:
    make_row = row_maker(names)

    def read_structs(array: Any) -> list[Any]:
        if not readers:
            return [make_row(()) if valid else None for valid in array.is_valid().to_pylist()]
        # flatten applies the struct's own offset and nulls to its fields
        columns = [reader(child) for reader, child in zip(readers, array.flatten(), strict=True)]
        rows = map(make_row, zip(*columns, strict=True))
        if not array.null_count:
            return list(rows)
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]

    return read_structs


def _read_lists(element: Reader, array: Any) -> list[Any]:
    offsets = array.offsets.to_pylist()
    values = element(array.values.slice(offsets[0], offsets[-1] - offsets[0])) if len(array) else []
    return [None if span is None else values[span] for span in _spans(array, offsets)]


def _read_maps(key: Reader, value: Reader, array: Any) -> list[Any]:
    offsets = array.offsets.to_pylist()
    if not len(array):
        return []
    start, length = offsets[0], offsets[-1] - offsets[0]
    keys = key(array.keys.slice(start, length))
    values = value(array.items.slice(start, length))
    return [
        None if span is None else dict(zip(keys[span], values[span], strict=True)) for span in _spans(array, offsets)
    ]


def _spans(array: Any, offsets: list[int]) -> Iterator[slice | None]:
    """The slice of each list's entries in the flat values; None for a null."""
    valid = array.is_valid().to_pylist() if array.null_count else None
    first = offsets[0]
    for place in range(len(array)):
        if valid is not None and not valid[place]:
            yield None
        else:
            yield slice(offsets[place] - first, offsets[place + 1] - first)


def time_zone(name: str) -> dt.tzinfo:
    """The time zone that `spark.sql.session.timeZone` calls `name`: a region, Z, or an offset such as +01:00 or UTC+1.

    Raises:
        ValueError: Python has no such zone; Java has a few more, such as PST.
    """
    if name == "Z":
        return dt.UTC
    if offset := _OFFSET.fullmatch(name):
        sign, hours, minutes, seconds = offset.groups(default="0")
        distance = dt.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
        return dt.timezone(-distance if sign == "-" else distance)
    try:
        zone: dt.tzinfo = pa.lib.string_to_tzinfo(name)
    except Exception as error:  # of pytz if it is installed, else of zoneinfo
        raise ValueError(
            f"the session's time zone is {name!r}, which Python does not know; set spark.sql.session.timeZone to a "
            "region such as America/Los_Angeles, or to an offset such as +01:00"
        ) from error
    return zone
