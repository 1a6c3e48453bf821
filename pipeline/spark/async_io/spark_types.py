"""The types of Spark that Async I/O carries: one table of how their values are checked, written and read.

From Spark, a struct is a Row, a map a dict, an array a list, a TIMESTAMP an aware datetime in the session's time zone,
a TIMESTAMP_NTZ a naive one, binary is bytes, a variant a VariantVal, a day-time interval a timedelta. In the key of a
map, a TIMESTAMP of an hour that the zone repeats has the zone's offset in place of the zone: Python compares datetimes
of one zone by their wall clocks, and would make one entry of two.

To Spark, a check returns the value in the one form that the Arrow writer takes, or raises. It must refuse whatever
Arrow would refuse: here that fails one row, in Arrow a whole batch. numpy's numbers count as Python's, and a member of
an Enum as its value; no value is rounded, truncated or turned into text.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from pyspark.sql import types as T

from dispatcher.errors import InvalidValueError
from pipeline.spark.async_io.arrow_values import (
    Builder,
    Reader,
    build_lists,
    build_maps,
    build_structs,
    list_check,
    map_check,
    read_lists,
    read_maps,
    structs_reader,
)
from pipeline.spark.async_io.structs import Check, Misfit, shown, struct_check, values_reader
from pipeline.spark.errors import ResultSchemaError
from pipeline.streaming.errors import quoted

USUAL_BYTES: Final = 1 << 12

ExtraKeys: TypeAlias = Literal["refuse", "ignore"]
"""What happens to a name in a result that the schema does not have."""

_MAX_INTERVAL: Final = dt.timedelta(microseconds=2**63 - 1)
_UTC_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::?(\d\d))?(?::?(\d\d))?")
_VARIANT_METADATA: Final = {b"variant": b"true"}
_VARIANT: Final = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        # Spark recognizes a variant by this metadata; without it, the type is a struct of two binaries.
        pa.field("metadata", pa.binary(), nullable=False, metadata=_VARIANT_METADATA),
    ]
)
_NULL_VARIANT: Final = (bytes(1), bytes((1, 0, 0)))


class TypeRules(NamedTuple):
    """`zone`: of naive datetimes in a TIMESTAMP. `refuses`: names that a struct lacks."""

    zone: dt.tzinfo
    refuses: bool


@dataclass(frozen=True)
class Values:
    """How the values of one type are carried.

    `arrow`: the type in which Spark takes them, all nullable. `check_of`: makes a check of a value that is not null.
    `filler`: a checked value for a required column in a row that is dropped before it reaches the user. `build`: makes
    Arrow arrays of checked values, where Arrow's own conversion does not. `usual`: an expression of Python, of a value
    {0}, that is true for the usual values of up to USUAL_BYTES. They need no check, which costs several calls.
    """

    arrow: pa.DataType
    check_of: Callable[[TypeRules], Check]
    filler: Any
    build: Builder | None = None
    usual: str = ""

    def builder(self) -> Builder:
        """Makes Arrow arrays of checked values."""
        return self.build or partial(pa.array, type=self.arrow)

    def check(self, rules: TypeRules, nullable: bool) -> Check:
        """A check of a value, which may be None if it is `nullable`."""
        check = self.check_of(rules)

        def check_nullable(value: Any) -> Any:
            return None if value is None else check(value)

        def check_required(value: Any) -> Any:
            if value is None:
                raise Misfit("it is null, but the schema makes it required")
            return check(value)

        with_nulls = check_nullable if nullable else check_required
        if not self.usual:
            return with_nulls
        usual_first = f"lambda value: value if {self.usual.format('value')} else check(value)"
        return cast(Check, eval(usual_first, {"check": with_nulls}))


def values_of(data_type: T.DataType) -> Values:
    """How the values of a supported type are carried."""
    return next(_TYPES[base] for base in type(data_type).__mro__ if base in _TYPES)(data_type)


def is_supported(data_type: T.DataType) -> bool:
    return not _TYPES.keys().isdisjoint(type(data_type).__mro__) and all(map(is_supported, inner_types(data_type)))


def inner_types(data_type: T.DataType) -> Sequence[T.DataType]:
    """The types of a struct's fields, of an array's elements, of a map's keys and values; none for a simple type."""
    if isinstance(data_type, T.StructType):
        return [field.dataType for field in data_type.fields]
    if isinstance(data_type, T.ArrayType):
        return [data_type.elementType]
    if isinstance(data_type, T.MapType):
        return [data_type.keyType, data_type.valueType]
    return [data_type.sqlType()] if isinstance(data_type, T.UserDefinedType) else []


def row_check(
    schema: T.StructType, time_zone: dt.tzinfo, extra: ExtraKeys = "refuse", *, none_is_row: bool = False
) -> Check:
    """A check of one result that returns a plain tuple, one value per column.

    A dict, a Row with names, a dataclass or a pydantic model is matched by name, a tuple by position. If the schema has
    one column, any other value is that column's. A column that the result lacks is null; a name that the schema lacks
    is refused, or ignored if `extra` says so. With `none_is_row`, None makes all columns null. A naive datetime in a
    TIMESTAMP column is in `time_zone`, the session's. The check raises ResultSchemaError. Any thread.
    """
    rules = TypeRules(time_zone, extra == "refuse")
    checks = [values_of(field.dataType).check(rules, field.nullable) for field in schema.fields]
    check = struct_check(schema.names, checks, refuses=rules.refuses, is_result=True)
    nulls = (None,) * len(schema.names)

    def check_row(result: Any) -> tuple[Any, ...]:
        try:
            values: tuple[Any, ...] = check(nulls if result is None and none_is_row else result)
            return values
        except Misfit as misfit:
            raise ResultSchemaError(misfit.path.removeprefix("."), misfit.reason) from None

    return check_row


def usual_rows_first(check: Check, schema: T.StructType) -> Check:
    """`check` of a result of `schema`, spared where the result is a tuple or a dict of usual values.

    One function that knows all columns costs half as much as a check for each of them.
    """
    names = schema.names
    arguments = [f"value{place}" for place in range(len(names))]
    terms = []
    for argument, field in zip(arguments, schema.fields, strict=True):
        usual = values_of(field.dataType).usual.format(argument)
        if not usual:
            return check
        terms.append(f"({argument} is None or {usual})" if field.nullable else usual)
    are_usual = eval(f"lambda {', '.join(arguments)}: {' and '.join(terms)}")
    values_in = values_reader(names)
    count = len(names)

    def check_usual(result: Any) -> Any:
        row = result
        if type(row) is dict and len(row) == count:
            try:
                row = values_in(row)
            except KeyError:  # another name
                return check(result)
        if type(row) is tuple and len(row) == count and are_usual(*row):
            return row
        return check(result)

    return check_usual


# -- checks of simple values -------------------------------------------------------------------------------------------

_NO_SINGLE: Final = 2.0**128 - 2.0**103
"""The least number that becomes infinite in single precision."""
_USUAL_SINGLE: Final = f"type({{0}}) is float and {-_NO_SINGLE!r} < {{0}} < {_NO_SINGLE!r}"
_SINGLE: Final = struct.Struct("=f")
_GREATEST: Final = {"float": "3.4028235e38", "double": "1.7976931348623157e308"}


def _check_integer(least: int, most: int, name: str, value: Any) -> int:
    number = _plain_value(value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise Misfit(f"{shown(value)} is not of type {name}")
    if not least <= number <= most:
        raise Misfit(f"{number} does not fit into {name}, whose range is {least} to {most}")
    return int(number)


def _check_float(name: str, value: Any) -> float:
    number = _plain_value(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise Misfit(f"{shown(value)} is not of type {name}")
    try:
        rounded = float(number) if name == "double" else _single(number)
    except OverflowError:
        raise Misfit(f"{shown(value)} does not fit into {name}, whose greatest value is {_GREATEST[name]}") from None
    if isinstance(number, int) and rounded != number:
        raise Misfit(f"{number} would be rounded in {name}; return a float, or make the column a bigint or a decimal")
    return float(number)


def _single(number: float) -> float:
    """`number` in single precision. Raises OverflowError if it is beyond that."""
    single: float = _SINGLE.unpack(_SINGLE.pack(float(number)))[0]
    return single


def _check_string(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, str):
        raise Misfit(f"{shown(value)} is not a string")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misfit(f"{quoted(value)} has a lone surrogate, which UTF-8 cannot encode") from None
    return text


def _check_boolean(value: Any) -> bool:
    value = _plain_value(value)
    if type(value) is not bool:
        raise Misfit(f"{shown(value)} is not a boolean")
    return value


def _check_binary(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise Misfit(f"{shown(value)} is not binary")
    return bytes(value)


def _check_null(value: Any) -> None:
    raise Misfit(f"{shown(value)} is not null, the only value of void")


def _check_date(value: Any) -> dt.date:
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise Misfit(f"{shown(value)} is not a date")
    return value


def _check_time(value: Any) -> dt.time:
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        raise Misfit(f"{shown(value)} is not a time without a time zone")
    return value


def _check_timestamp(zone: dt.tzinfo, value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        raise Misfit(f"{shown(value)} is not a timestamp")
    moment = _plain(value)
    if moment.utcoffset() is None:
        moment = moment.replace(tzinfo=zone)
    try:
        return moment.astimezone(dt.UTC)
    except OverflowError:
        raise Misfit(f"{moment} is not a timestamp of the years 1 to 9999 in UTC") from None


def _check_local_timestamp(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or (moment := _plain(value)).utcoffset() is not None:
        raise Misfit(f"{shown(value)} is not a timestamp without a time zone")
    return moment


def _plain(value: dt.datetime) -> dt.datetime:
    """A plain datetime: Arrow refuses subclasses with nanoseconds, such as pandas'."""
    if type(value) is dt.datetime:
        return value
    _require_microseconds(value, getattr(value, "nanosecond", 0))
    try:
        return dt.datetime.combine(
            dt.date(value.year, value.month, value.day),
            dt.time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold),
        )
    except (TypeError, ValueError):  # pandas.NaT
        raise Misfit(f"{shown(value)} is not a timestamp") from None


def _check_interval(value: Any) -> dt.timedelta:
    if not isinstance(value, dt.timedelta):
        raise Misfit(f"{shown(value)} is not a timedelta")
    if not -_MAX_INTERVAL <= value <= _MAX_INTERVAL:
        raise Misfit(f"{shown(value)} does not fit into an interval of 2^63 microseconds")
    _require_microseconds(value, getattr(value, "nanoseconds", 0))
    return dt.timedelta(value.days, value.seconds, value.microseconds)


def _require_microseconds(value: Any, nanoseconds: Any) -> None:
    """Refuse a value of pandas with nanoseconds, which Spark's types lack. NaT has a NaN of them."""
    if nanoseconds and nanoseconds == nanoseconds:
        raise Misfit(f"{shown(value)} has nanoseconds, and the column microseconds; round it")


def _check_decimal(precision: int, scale: int, value: Any) -> decimal.Decimal:
    value = _plain_value(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = decimal.Decimal(int(value))
    if not isinstance(value, decimal.Decimal):
        raise Misfit(f"{shown(value)} is not a decimal")
    name = f"decimal({precision},{scale})"
    if not value.is_finite():
        raise Misfit(f"{value} is not a finite number, as {name} requires")
    if not value:
        return decimal.Decimal(0)  # normalizes the exponent
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    while -exponent > scale and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    if -exponent > scale:
        raise Misfit(f"{value} has {-exponent} digits after the point, {name} takes {scale}; round it")
    if len(digits) + exponent > precision - scale:
        raise Misfit(f"{value} does not fit into {name}: {precision - scale} digits before the point")
    return decimal.Decimal((sign, digits, exponent))


def _check_variant(value: Any) -> tuple[bytes, bytes]:
    if not isinstance(value, T.VariantVal):
        raise Misfit(f"{shown(value)} is not a variant; make one with VariantVal.parseJson")
    return bytes(value.value), bytes(value.metadata)


def _plain_value(value: Any) -> Any:
    """A numpy scalar as a Python value, an Enum member as its value; any other value unchanged."""
    if isinstance(value, Enum):
        return value.value
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


# -- the table ---------------------------------------------------------------------------------------------------------


def _simple(arrow: pa.DataType, check: Check, filler: Any, usual: str = "") -> Callable[[Any], Values]:
    values = Values(arrow, lambda _: check, filler, usual=usual)
    return lambda _: values


def _integer(arrow: pa.DataType, name: str) -> Callable[[Any], Values]:
    most = 2 ** (arrow.bit_width - 1) - 1
    least = -most - 1
    usual = f"type({{0}}) is int and {least} <= {{0}} <= {most}"
    return _simple(arrow, partial(_check_integer, least, most, name), 0, usual)


def _array(array: T.ArrayType) -> Values:
    element = values_of(array.elementType)
    return Values(
        pa.list_(element.arrow),
        lambda rules: list_check(element.check(rules, array.containsNull)),
        [],
        None if element.build is None else partial(build_lists, element.build),
    )


def _map(entries: T.MapType) -> Values:
    key, value = values_of(entries.keyType), values_of(entries.valueType)
    arrow = pa.map_(key.arrow, value.arrow)
    return Values(
        arrow,
        lambda rules: map_check(key.check(rules, False), value.check(rules, entries.valueContainsNull)),
        [],
        partial(build_maps, arrow, key.builder(), value.builder()) if key.build or value.build else None,
    )


def _struct(row: T.StructType) -> Values:
    fields = [(values_of(field.dataType), field.nullable) for field in row.fields]
    arrow = pa.struct([(name, values.arrow) for name, (values, _) in zip(row.names, fields, strict=True)])

    def check_of(rules: TypeRules) -> Check:
        checks = [values.check(rules, nullable) for values, nullable in fields]
        return struct_check(row.names, checks, refuses=rules.refuses)

    build = partial(build_structs, arrow, [values.builder() for values, _ in fields], (None,) * len(fields))
    return Values(arrow, check_of, tuple(values.filler for values, _ in fields), build)


def _user_defined(defined: Any) -> Values:
    stored = values_of(defined.sqlType())

    def check_of(rules: TypeRules) -> Check:
        check = stored.check_of(rules)
        return lambda value: check(defined.serialize(value))

    return Values(stored.arrow, check_of, stored.filler, stored.build)


_STRING: Final = _simple(
    pa.string(), _check_string, "", f"type({{0}}) is str and {{0}}.isascii() and len({{0}}) <= {USUAL_BYTES}"
)

_TYPES: Final[dict[type[T.DataType], Callable[[Any], Values]]] = {
    T.NullType: _simple(pa.null(), _check_null, None),
    T.BooleanType: _simple(pa.bool_(), _check_boolean, False),
    T.ByteType: _integer(pa.int8(), "tinyint"),
    T.ShortType: _integer(pa.int16(), "smallint"),
    T.IntegerType: _integer(pa.int32(), "int"),
    T.LongType: _integer(pa.int64(), "bigint"),
    T.FloatType: _simple(pa.float32(), partial(_check_float, "float"), 0.0, _USUAL_SINGLE),
    T.DoubleType: _simple(pa.float64(), partial(_check_float, "double"), 0.0, "type({0}) is float"),
    T.DecimalType: lambda number: Values(
        pa.decimal128(number.precision, number.scale),
        lambda _: partial(_check_decimal, number.precision, number.scale),
        decimal.Decimal(0),
    ),
    T.StringType: _STRING,
    T.CharType: _STRING,
    T.VarcharType: _STRING,
    T.BinaryType: _simple(pa.binary(), _check_binary, b""),
    T.DateType: _simple(pa.date32(), _check_date, _EPOCH.date()),
    T.TimestampType: lambda _: Values(
        pa.timestamp("us", tz="UTC"), lambda rules: partial(_check_timestamp, rules.zone), _UTC_EPOCH
    ),
    T.TimestampNTZType: _simple(pa.timestamp("us"), _check_local_timestamp, _EPOCH),
    T.DayTimeIntervalType: _simple(pa.duration("us"), _check_interval, dt.timedelta()),
    T.VariantType: lambda _: Values(
        _VARIANT,
        lambda _: _check_variant,
        _NULL_VARIANT,
        partial(build_structs, _VARIANT, [partial(pa.array, type=pa.binary())] * 2, _NULL_VARIANT),
    ),
    T.ArrayType: _array,
    T.MapType: _map,
    T.StructType: _struct,
    T.UserDefinedType: _user_defined,
}

PYTHON_TYPES: Final[dict[type, T.DataType]] = {
    bool: T.BooleanType(),
    int: T.LongType(),
    float: T.DoubleType(),
    str: T.StringType(),
    bytes: T.BinaryType(),
    bytearray: T.BinaryType(),
    decimal.Decimal: T.DecimalType(38, 18),
    dt.date: T.DateType(),
    dt.datetime: T.TimestampType(),
    dt.timedelta: T.DayTimeIntervalType(),
    T.VariantVal: T.VariantType(),
}
"""The type of Spark of a column that a class of Python declares."""

if (_time := getattr(T, "TimeType", None)) is not None:  # not in Spark 4.0
    _TYPES[_time] = _simple(pa.time64("ns"), _check_time, dt.time())
    PYTHON_TYPES[dt.time] = _time(6)


# -- from Arrow to Python ----------------------------------------------------------------------------------------------


def reader_of(kind: pa.DataType, data_type: T.DataType | None = None, *, of_key: bool = False) -> Reader:
    """A reader of arrays of an Arrow type that Spark made.

    `data_type`: Spark's own, if it is known; without it, a user-defined type is read as the type that it is stored as.
    `of_key`: the values are keys of a dict, or parts of them.
    """
    if isinstance(data_type, T.UserDefinedType):
        return _user_defined_reader(data_type, reader_of(kind, data_type.sqlType()))
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            return _read_local_timestamps
        return _read_instants if of_key else _read_timestamps
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        if any(field.metadata == _VARIANT_METADATA for field in fields):
            return _read_variants
        inner = [None] * len(fields) if data_type is None else inner_types(data_type)
        readers = [reader_of(field.type, within, of_key=of_key) for field, within in zip(fields, inner, strict=True)]
        return structs_reader([field.name for field in fields], readers)
    if pa.types.is_list(kind):
        element = reader_of(kind.value_type, None if data_type is None else inner_types(data_type)[0])
        return _read_plain if element is _read_plain else partial(read_lists, element)
    if pa.types.is_map(kind):
        key, value = (None, None) if data_type is None else inner_types(data_type)
        return partial(read_maps, reader_of(kind.key_type, key, of_key=True), reader_of(kind.item_type, value))
    return _read_plain


def _read_plain(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _read_timestamps(array: Any) -> list[Any]:
    # Ten times as fast as Arrow's own conversion.
    zone = time_zone(array.type.tz)
    if isinstance(zone, dt.timezone):
        epoch = _UTC_EPOCH.astimezone(zone)
        return [epoch + dt.timedelta(microseconds=us) if us is not None else None for us in _microseconds(array)]
    made = (_UTC_EPOCH + dt.timedelta(microseconds=us) if us is not None else None for us in _microseconds(array))
    return [moment.astimezone(zone) if moment is not None else None for moment in made]


def _read_instants(array: Any) -> list[Any]:
    """Timestamps that are equal only if they are the same instant."""
    return [_with_offset(moment) if moment is not None else None for moment in _read_timestamps(array)]


def _with_offset(moment: dt.datetime) -> dt.datetime:
    """The same instant and wall clock, but of an hour that the zone repeats, with the offset in place of the zone."""
    offset = moment.utcoffset()
    if offset is None or moment.replace(fold=1 - moment.fold).utcoffset() == offset:
        return moment
    return moment.replace(tzinfo=dt.timezone(offset), fold=0)


def _read_local_timestamps(array: Any) -> list[Any]:
    return [_EPOCH + dt.timedelta(microseconds=us) if us is not None else None for us in _microseconds(array)]


def _microseconds(array: Any) -> list[int | None]:
    values: list[int | None] = array.view(pa.int64()).to_pylist()
    return values


def _read_variants(array: Any) -> list[Any]:
    value, metadata = (child.to_pylist() for child in array.flatten())
    return [T.VariantVal(one, other) if one is not None else None for one, other in zip(value, metadata, strict=True)]


def _user_defined_reader(data_type: Any, reader: Reader) -> Reader:
    return lambda array: [data_type.deserialize(value) if value is not None else None for value in reader(array)]


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
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: such as the name of a folder of zones
        raise InvalidValueError(
            f"the session's time zone is {name!r}, which Python does not know; set spark.sql.session.timeZone to a "
            "region such as America/Los_Angeles, or to an offset such as +01:00"
        ) from error
