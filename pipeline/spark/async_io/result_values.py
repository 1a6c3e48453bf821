"""Checks of the values that a user's function returns against the schema of its results.

A check returns the value in the one form that the Arrow writer takes, or raises. It must refuse whatever Arrow would
refuse: here that fails one row, in Arrow a whole batch. numpy's numbers count as Python's, and a member of an Enum as
its value; no value is rounded, truncated or turned into text.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql import types as T

from pipeline.spark.async_io.record_fields import record_fields
from pipeline.spark.async_io.rows import TIME_TYPE
from pipeline.spark.errors import ResultSchemaError
from pipeline.streaming.errors import quoted

Check = Callable[[Any], Any]
ExtraKeys: TypeAlias = Literal["refuse", "ignore"]
"""What happens to a name in a result that the schema does not have."""

_INTEGER_BITS: Final = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_MAX_INTERVAL: Final = dt.timedelta(microseconds=2**63 - 1)


class _Misfit(Exception):
    """A value that does not fit; each level of nesting adds its part of the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def row_check(
    schema: T.StructType, time_zone: dt.tzinfo, extra: ExtraKeys = "refuse", *, none_is_row: bool = False
) -> Check:
    """A check of one result that returns a plain tuple, one value per column.

    A dict, a Row with names, a dataclass or a pydantic model is matched by name, a tuple by position. If the schema has
    one column, any other value is that column's. A column that the result lacks is null; a name that the schema lacks
    is refused, or ignored if `extra` says so. With `none_is_row`, None makes all columns null. A naive datetime in a
    TIMESTAMP column is in `time_zone`, the session's. The check raises ResultSchemaError. Any thread.
    """
    check = _struct_check(schema, time_zone, extra == "refuse", is_result=True)
    nulls = (None,) * len(schema.names)

    def check_row(result: Any) -> tuple[Any, ...]:
        try:
            values: tuple[Any, ...] = check(nulls if result is None and none_is_row else result)
            return values
        except _Misfit as misfit:
            raise ResultSchemaError(misfit.path.removeprefix("."), misfit.reason) from None

    return check_row


def _struct_check(struct: T.StructType, zone: dt.tzinfo, refuses: bool, *, is_result: bool = False) -> Check:
    """`refuses`: names that the struct lacks. `is_result`: it is the row itself, so its only column's value will do."""
    names = struct.names
    known = frozenset(names)
    checks = [_check(field.dataType, field.nullable, zone, refuses) for field in struct.fields]
    takes_value = is_result and len(names) == 1
    # By class; None for one that is no record. Any thread adds: what two make for a class at once does the same.
    readers: dict[type, Check | None] = {}

    def check_struct(result: Any) -> tuple[Any, ...]:
        if type(result) is not tuple:
            result = in_order(result)
        elif len(result) != len(checks):
            raise _Misfit(f"{quoted(result)} has {len(result)} values; the columns are {', '.join(names)}")
        try:
            return tuple([check(value) for check, value in zip(checks, result)])  # noqa: B905 - lengths are equal
        except _Misfit:
            pass
        for name, check, value in zip(names, checks, result, strict=True):
            try:
                check(value)
            except _Misfit as misfit:
                raise _Misfit(misfit.reason, f".{name}{misfit.path}") from None
        raise AssertionError("a check is not deterministic")

    def in_order(result: Any) -> Any:
        if isinstance(result, tuple):
            fields = getattr(result, "__fields__", names)
            if fields != names:
                return by_name(dict(zip(fields, result, strict=False)))
            if len(result) != len(names):
                raise _Misfit(f"{quoted(result)} has {len(result)} values; the columns are {', '.join(names)}")
            return result
        if isinstance(result, Mapping):
            return by_name(result)
        kind = type(result)
        if kind not in readers:
            readers[kind] = _record_reader(kind, names, by_name)
        if (read := readers[kind]) is not None:
            return read(result)
        if takes_value:
            return (result,)
        raise _Misfit(
            f"{_shown(result)} is not a row; return a Row, a dict, a tuple, a dataclass or a pydantic model, or a list "
            "of them"
        )

    def by_name(result: Mapping[str, Any]) -> tuple[Any, ...]:
        if refuses and (unknown := [str(name) for name in result if name not in known]):
            raise _Misfit(
                f"the result names {', '.join(unknown)}; the columns are {', '.join(names)}. To leave out what the "
                'schema does not name, set extra="ignore"'
            )
        return tuple(result.get(name) for name in names)

    return check_struct


def _record_reader(kind: type, names: list[str], by_name: Check) -> Check | None:
    """A function of an instance that gives its values in the order of `names`; None if the class has no fields."""
    fields = record_fields(kind)
    if fields is None:
        return None
    readable = dict.fromkeys([*fields.names, *fields.computed])
    if set(fields.names) <= set(names) <= set(readable) and len(names) > 1 and not fields.has_more:
        return attrgetter(*names)
    wanted = [*fields.names, *(name for name in fields.computed if name in names)]

    def read(record: Any) -> Any:
        values = {name: getattr(record, name) for name in wanted}
        return by_name(values | (record.model_extra or {}) if fields.has_more else values)

    return read


def _check(data_type: T.DataType, nullable: bool, zone: dt.tzinfo, refuses: bool) -> Check:
    return _with_shortcut(data_type, _with_nulls(_value_check(data_type, zone, refuses), nullable))


def _with_shortcut(data_type: T.DataType, check: Check) -> Check:
    """Passes the usual values at once, and the others to `check`, which costs several calls."""
    if type(data_type) in _INTEGER_BITS:
        least, most = _integer_bounds(data_type)

        def check_integer(value: Any) -> Any:
            return value if type(value) is int and least <= value <= most else check(value)

        return check_integer
    if isinstance(data_type, T.StringType):
        return lambda value: value if type(value) is str and value.isascii() else check(value)
    if isinstance(data_type, T.FloatType | T.DoubleType):
        return lambda value: value if type(value) is float else check(value)
    return check


def _with_nulls(check: Check, nullable: bool) -> Check:
    def check_nullable(value: Any) -> Any:
        return None if value is None else check(value)

    def check_required(value: Any) -> Any:
        if value is None:
            raise _Misfit("it is null, but the schema makes it required")
        return check(value)

    return check_nullable if nullable else check_required


def _value_check(data_type: T.DataType, zone: dt.tzinfo, refuses: bool) -> Check:
    kind = type(data_type)
    if kind in _INTEGER_BITS:
        return partial(_check_integer, *_integer_bounds(data_type), data_type.simpleString())
    if isinstance(data_type, T.StringType | T.CharType | T.VarcharType):
        return _check_string
    if isinstance(data_type, T.FloatType | T.DoubleType):
        return partial(_check_float, data_type.simpleString())
    if isinstance(data_type, T.StructType):
        return _struct_check(data_type, zone, refuses)
    if isinstance(data_type, T.ArrayType):
        return _list_check(_check(data_type.elementType, data_type.containsNull, zone, refuses))
    if isinstance(data_type, T.MapType):
        return _map_check(
            _check(data_type.keyType, False, zone, refuses),
            _check(data_type.valueType, data_type.valueContainsNull, zone, refuses),
        )
    if isinstance(data_type, T.DecimalType):
        return partial(_check_decimal, data_type.precision, data_type.scale)
    if isinstance(data_type, T.TimestampType):
        return partial(_check_timestamp, zone)
    if isinstance(data_type, T.UserDefinedType):
        inner = _value_check(data_type.sqlType(), zone, refuses)
        return lambda value: inner(data_type.serialize(value))
    if TIME_TYPE is not None and isinstance(data_type, TIME_TYPE):
        return _check_time
    return _SIMPLE_CHECKS[kind]


def _integer_bounds(data_type: T.DataType) -> tuple[int, int]:
    bits = _INTEGER_BITS[type(data_type)]  # type: ignore[index]
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _check_integer(least: int, most: int, name: str, value: Any) -> int:
    number = _plain_value(value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise _Misfit(f"{_shown(value)} is not of type {name}")
    if not least <= number <= most:
        raise _Misfit(f"{number} does not fit into {name}, whose range is {least} to {most}")
    return int(number)


def _check_float(name: str, value: Any) -> float:
    value = _plain_value(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Misfit(f"{_shown(value)} is not of type {name}")
    try:
        return float(value)
    except OverflowError:
        raise _Misfit(f"{_shown(value)} does not fit into {name}") from None


def _check_string(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, str):
        raise _Misfit(f"{_shown(value)} is not a string")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Misfit(f"{quoted(value)} has a lone surrogate, which UTF-8 cannot encode") from None
    return text


def _check_boolean(value: Any) -> bool:
    value = _plain_value(value)
    if type(value) is not bool:
        raise _Misfit(f"{_shown(value)} is not a boolean")
    return value


def _check_binary(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _Misfit(f"{_shown(value)} is not binary")
    return bytes(value)


def _check_null(value: Any) -> None:
    raise _Misfit(f"{_shown(value)} is not null, the only value of void")


def _check_date(value: Any) -> dt.date:
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise _Misfit(f"{_shown(value)} is not a date")
    return value


def _check_time(value: Any) -> dt.time:
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        raise _Misfit(f"{_shown(value)} is not a time without a time zone")
    return value


def _check_timestamp(zone: dt.tzinfo, value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        raise _Misfit(f"{_shown(value)} is not a timestamp")
    moment = _plain(value)
    if moment.utcoffset() is None:
        moment = moment.replace(tzinfo=zone)
    try:
        return moment.astimezone(dt.UTC)
    except OverflowError:
        raise _Misfit(f"{moment} is not a timestamp of the years 1 to 9999 in UTC") from None


def _check_local_timestamp(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.utcoffset() is not None:
        raise _Misfit(f"{_shown(value)} is not a timestamp without a time zone")
    return _plain(value)


def _plain(value: dt.datetime) -> dt.datetime:
    """A plain datetime: Arrow refuses subclasses with nanoseconds, such as pandas'."""
    if type(value) is dt.datetime:
        return value
    try:
        return dt.datetime.combine(
            dt.date(value.year, value.month, value.day),
            dt.time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold),
        )
    except (TypeError, ValueError):  # pandas.NaT
        raise _Misfit(f"{_shown(value)} is not a timestamp") from None


def _check_interval(value: Any) -> dt.timedelta:
    if not isinstance(value, dt.timedelta):
        raise _Misfit(f"{_shown(value)} is not a timedelta")
    if not -_MAX_INTERVAL <= value <= _MAX_INTERVAL:
        raise _Misfit(f"{_shown(value)} does not fit into an interval of 2^63 microseconds")
    return dt.timedelta(value.days, value.seconds, value.microseconds)


def _check_decimal(precision: int, scale: int, value: Any) -> decimal.Decimal:
    value = _plain_value(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = decimal.Decimal(int(value))
    if not isinstance(value, decimal.Decimal):
        raise _Misfit(f"{_shown(value)} is not a decimal")
    name = f"decimal({precision},{scale})"
    if not value.is_finite():
        raise _Misfit(f"{value} is not a finite number, as {name} requires")
    if not value:
        return decimal.Decimal(0)  # normalizes the exponent
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    while -exponent > scale and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    if -exponent > scale:
        raise _Misfit(f"{value} has {-exponent} digits after the point, {name} takes {scale}; round it")
    if len(digits) + exponent > precision - scale:
        raise _Misfit(f"{value} does not fit into {name}: {precision - scale} digits before the point")
    return decimal.Decimal((sign, digits, exponent))


def _check_variant(value: Any) -> tuple[bytes, bytes]:
    if not isinstance(value, T.VariantVal):
        raise _Misfit(f"{_shown(value)} is not a variant; make one with VariantVal.parseJson")
    return bytes(value.value), bytes(value.metadata)


def _list_check(element: Check) -> Check:
    def check_list(values: Any) -> list[Any]:
        if not isinstance(values, list | tuple):
            as_list = getattr(values, "tolist", None)  # arrays of numpy and of the module array
            if not callable(as_list) or not isinstance(values := as_list(), list):
                raise _Misfit(f"{_shown(values)} is not a list")
        checked = []
        for place, value in enumerate(values):
            try:
                checked.append(element(value))
            except _Misfit as misfit:
                raise _Misfit(misfit.reason, f"[{place}]{misfit.path}") from None
        return checked

    return check_list


def _map_check(key_check: Check, value_check: Check) -> Check:
    def check_map(entries: Any) -> list[tuple[Any, Any]]:
        if not isinstance(entries, Mapping):
            raise _Misfit(f"{_shown(entries)} is not a dict")
        checked = []
        for key, value in entries.items():
            try:
                checked.append((key_check(key), value_check(value)))
            except _Misfit as misfit:
                raise _Misfit(misfit.reason, f"[{quoted(key)}]{misfit.path}") from None
        return checked

    return check_map


_SIMPLE_CHECKS: Final[dict[type[T.DataType], Check]] = {
    T.BooleanType: _check_boolean,
    T.BinaryType: _check_binary,
    T.NullType: _check_null,
    T.DateType: _check_date,
    T.TimestampNTZType: _check_local_timestamp,
    T.DayTimeIntervalType: _check_interval,
    T.VariantType: _check_variant,
}


def _plain_value(value: Any) -> Any:
    """A numpy scalar as a Python value, an Enum member as its value; any other value unchanged."""
    if isinstance(value, Enum):
        return value.value
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def _shown(value: Any) -> str:
    return f"{quoted(value)} ({type(value).__qualname__})"
