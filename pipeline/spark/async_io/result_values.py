"""What a user's function returns, checked against the schema it is to fit, value by value.

A check takes a value and gives it in the one form that the writer of Arrow arrays knows, or refuses it. It has to
refuse all that Arrow would: a refusal here is the error of one row, there it would be that of a whole batch. Numbers of
numpy pass for Python's; nothing is rounded, cut or turned into text on the way.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from pyspark.sql import types as T

from pipeline.spark.async_io.arrow_types import TIME_TYPE
from pipeline.spark.errors import ResultSchemaError
from pipeline.streaming.errors import quoted

Check = Callable[[Any], Any]

_INTEGER_BITS: Final = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_MAX_INTERVAL: Final = dt.timedelta(microseconds=2**63 - 1)


class _Misfit(Exception):
    """On its way up to the row, which knows the column."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def row_check(schema: T.StructType, time_zone: dt.tzinfo) -> Check:
    """A check of one result (Row, dict or tuple) that gives a plain tuple of values, one for each column.

    A dict and a Row with names go by name, anything else by position. What a dict leaves out is null. A naive datetime
    in a TIMESTAMP column is one in `time_zone`, the session's.

    Raises (the check): ResultSchemaError.
    """
    check = _struct_check(schema, time_zone)

    def check_row(result: Any) -> tuple[Any, ...]:
        try:
            values: tuple[Any, ...] = check(result)
            return values
        except _Misfit as misfit:
            raise ResultSchemaError(misfit.path.removeprefix("."), misfit.reason) from None

    return check_row


def _struct_check(struct: T.StructType, zone: dt.tzinfo) -> Check:
    names = struct.names
    known = frozenset(names)
    checks = [_check(field.dataType, field.nullable, zone) for field in struct.fields]

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
        raise AssertionError("a check has changed its mind")

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
        raise _Misfit(f"{_shown(result)} is no row; return a Row, a dict or a tuple, or a list of them")

    def by_name(result: Mapping[str, Any]) -> tuple[Any, ...]:
        if unknown := [str(name) for name in result if name not in known]:
            raise _Misfit(f"it has no column {', '.join(unknown)}; the columns are {', '.join(names)}")
        return tuple(result.get(name) for name in names)

    return check_struct


def _check(data_type: T.DataType, nullable: bool, zone: dt.tzinfo) -> Check:
    """The check of a column, an element or a field."""
    return _with_shortcut(data_type, _with_nulls(_value_check(data_type, zone), nullable))


def _with_shortcut(data_type: T.DataType, check: Check) -> Check:
    """`check`, which costs several calls, only for what is not as most values are."""
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
            raise _Misfit("it is null, and the schema says that it never is")
        return check(value)

    return check_nullable if nullable else check_required


def _value_check(data_type: T.DataType, zone: dt.tzinfo) -> Check:
    kind = type(data_type)
    if kind in _INTEGER_BITS:
        return partial(_check_integer, *_integer_bounds(data_type), data_type.simpleString())
    if isinstance(data_type, T.StringType | T.CharType | T.VarcharType):
        return _check_string
    if isinstance(data_type, T.FloatType | T.DoubleType):
        return partial(_check_float, data_type.simpleString())
    if isinstance(data_type, T.StructType):
        return _struct_check(data_type, zone)
    if isinstance(data_type, T.ArrayType):
        return _list_check(_check(data_type.elementType, data_type.containsNull, zone))
    if isinstance(data_type, T.MapType):
        return _map_check(
            _check(data_type.keyType, False, zone), _check(data_type.valueType, data_type.valueContainsNull, zone)
        )
    if isinstance(data_type, T.DecimalType):
        return partial(_check_decimal, data_type.precision, data_type.scale)
    if isinstance(data_type, T.TimestampType):
        return partial(_check_timestamp, zone)
    if isinstance(data_type, T.UserDefinedType):
        inner = _value_check(data_type.sqlType(), zone)
        return lambda value: inner(data_type.serialize(value))
    if TIME_TYPE is not None and isinstance(data_type, TIME_TYPE):
        return _check_time
    return _SIMPLE_CHECKS[kind]


def _integer_bounds(data_type: T.DataType) -> tuple[int, int]:
    bits = _INTEGER_BITS[type(data_type)]  # type: ignore[index]
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _check_integer(least: int, most: int, name: str, value: Any) -> int:
    number = _from_numpy(value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise _Misfit(f"{_shown(value)} is no {name}")
    if not least <= number <= most:
        raise _Misfit(f"{number} does not fit into {name}, which goes from {least} to {most}")
    return int(number)


def _check_float(name: str, value: Any) -> float:
    value = _from_numpy(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Misfit(f"{_shown(value)} is no {name}")
    try:
        return float(value)
    except OverflowError:
        raise _Misfit(f"{_shown(value)} does not fit into {name}") from None


def _check_string(value: Any) -> str:
    if not isinstance(value, str):
        raise _Misfit(f"{_shown(value)} is no string")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Misfit(f"{quoted(value)} has half of a surrogate pair, which is no text") from None
    return text


def _check_boolean(value: Any) -> bool:
    value = _from_numpy(value)
    if type(value) is not bool:
        raise _Misfit(f"{_shown(value)} is no boolean")
    return value


def _check_binary(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _Misfit(f"{_shown(value)} is no binary")
    return bytes(value)


def _check_null(value: Any) -> None:
    raise _Misfit(f"{_shown(value)} is not null, which alone fits into void")


def _check_date(value: Any) -> dt.date:
    if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
        raise _Misfit(f"{_shown(value)} is no date")
    return value


def _check_time(value: Any) -> dt.time:
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        raise _Misfit(f"{_shown(value)} is no time without a time zone")
    return value


def _check_timestamp(zone: dt.tzinfo, value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        raise _Misfit(f"{_shown(value)} is no timestamp")
    moment = _plain(value)
    if moment.utcoffset() is None:
        moment = moment.replace(tzinfo=zone)
    try:
        return moment.astimezone(dt.UTC)
    except OverflowError:
        raise _Misfit(f"{moment} is no timestamp of the years 1 to 9999 in UTC") from None


def _check_local_timestamp(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.utcoffset() is not None:
        raise _Misfit(f"{_shown(value)} is no timestamp without a time zone")
    return _plain(value)


def _plain(value: dt.datetime) -> dt.datetime:
    """Of the class itself: subclasses (those of pandas, for example) know nanoseconds, which Arrow refuses."""
    if type(value) is dt.datetime:
        return value
    try:
        return dt.datetime.combine(
            dt.date(value.year, value.month, value.day),
            dt.time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold),
        )
    except (TypeError, ValueError):  # not a time, in pandas
        raise _Misfit(f"{_shown(value)} is no timestamp") from None


def _check_interval(value: Any) -> dt.timedelta:
    if not isinstance(value, dt.timedelta):
        raise _Misfit(f"{_shown(value)} is no timedelta")
    if not -_MAX_INTERVAL <= value <= _MAX_INTERVAL:
        raise _Misfit(f"{_shown(value)} does not fit into an interval of 2^63 microseconds")
    return dt.timedelta(value.days, value.seconds, value.microseconds)


def _check_decimal(precision: int, scale: int, value: Any) -> decimal.Decimal:
    value = _from_numpy(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = decimal.Decimal(int(value))
    if not isinstance(value, decimal.Decimal):
        raise _Misfit(f"{_shown(value)} is no decimal")
    name = f"decimal({precision},{scale})"
    if not value.is_finite():
        raise _Misfit(f"{value} is no number that fits into {name}")
    if not value:
        return decimal.Decimal(0)  # with an exponent that fits
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    while -exponent > scale and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    if -exponent > scale:
        raise _Misfit(f"{value} has {-exponent} digits after the point, {name} has room for {scale}; round it")
    if len(digits) + exponent > precision - scale:
        raise _Misfit(f"{value} does not fit into {name}: {precision - scale} digits before the point")
    return decimal.Decimal((sign, digits, exponent))


def _check_variant(value: Any) -> tuple[bytes, bytes]:
    if not isinstance(value, T.VariantVal):
        raise _Misfit(f"{_shown(value)} is no variant; make one with VariantVal.parseJson")
    return bytes(value.value), bytes(value.metadata)


def _list_check(element: Check) -> Check:
    def check_list(values: Any) -> list[Any]:
        if not isinstance(values, list | tuple):
            as_list = getattr(values, "tolist", None)  # numpy's arrays, and those of the module array
            if not callable(as_list) or not isinstance(values := as_list(), list):
                raise _Misfit(f"{_shown(values)} is no list")
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
            raise _Misfit(f"{_shown(entries)} is no dict")
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


def _from_numpy(value: Any) -> Any:
    """A scalar of numpy as Python's own; anything else as it is."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def _shown(value: Any) -> str:
    return f"{quoted(value)} ({type(value).__qualname__})"
