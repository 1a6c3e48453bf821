"""Keys in canonical form: equal keys compare equal whatever their source; a key that cannot match is not queried."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

from pipeline.lookup.errors import LookupTableError
from pipeline.lookup.schema import Column, LookupKey, base_of
from pipeline.streaming.keys import canonical_key, instant

Normalizer: TypeAlias = Callable[[object], object]
"""Takes a value that is not None to its canonical form; None if no row can match it. TypeError: wrong type. ValueError:
a row could match it, but Python has no value for that."""

_BIGGEST = 2**63 - 1


def _only(kinds: type | tuple[type, ...], convert: Callable[[Any], object] | None, value: object) -> object:
    """A value of these kinds, converted to one of them if `convert` is given."""
    if not isinstance(value, kinds):
        raise TypeError
    return value if convert is None else convert(value)


def _integer(value: object) -> object:
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise TypeError
        if isinstance(value, Decimal) and (not value.is_finite() or value != value.to_integral_value()):
            return None
        value = int(value)
    return value if -_BIGGEST - 1 <= value <= _BIGGEST else None


def _decimal(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TypeError
    value = Decimal(value)
    return value if value.is_finite() else None


def _float(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise TypeError
    return canonical_key(float(value))  # databases match NaN with NaN


def _padded(value: object) -> object:
    if not isinstance(value, str):
        raise TypeError
    return value.rstrip(" ")


def _uuid(value: object) -> object:
    if isinstance(value, uuid.UUID):
        return str(value)
    if not isinstance(value, str):
        raise TypeError
    try:
        return str(uuid.UUID(value))
    except ValueError:
        return None


def _date(value: object) -> object:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise TypeError
    return value


def _timestamp(value: object) -> object:
    if not isinstance(value, datetime.datetime):
        raise TypeError
    # A naive datetime is in the process's time zone: Spark hands timestamps to Python that way.
    moment = instant(value if value.utcoffset() is not None else value.astimezone())
    if not isinstance(moment, datetime.datetime):
        raise ValueError(f"{value} is not of the years 1 to 9999 in UTC")
    return moment


def _timestamp_ntz(value: object) -> object:
    if not isinstance(value, datetime.datetime) or value.tzinfo is not None:
        raise TypeError
    return value


_BY_TYPE: dict[str, Normalizer] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _integer),
    **dict.fromkeys(("float", "double"), _float),
    **dict.fromkeys(("string", "varchar", "char"), partial(_only, str, None)),
    "boolean": partial(_only, bool, None),
    "decimal": _decimal,
    "binary": partial(_only, (bytes, bytearray, memoryview), bytes),
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}
_BY_NATIVE: dict[str, Normalizer] = {"uuid": _uuid, "bpchar": _padded}
_CANONICAL: dict[Normalizer, type] = {_integer: int, _BY_TYPE["string"]: str, _BY_TYPE["boolean"]: bool}
"""Types whose values need no normalizer: any str, any bool, and any int of 64 bits."""


def normalizer_of(column: Column) -> Normalizer:
    """The normalizer of a key column. Raises LookupTableError if its type cannot be a key."""
    found = _BY_NATIVE.get(column.native) or _BY_TYPE.get(base_of(column.type))
    if found is None:
        raise LookupTableError(f"the column {column.name!r} is {column.type}, which cannot be a key.")
    return found


class KeyForm:
    """Normalizes the keys of one table. Immutable; pickles."""

    __slots__ = ("_columns", "_normalizers")

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._normalizers = tuple(normalizer_of(column) for column in columns)

    def of_columns(self, columns: Sequence[Sequence[object]]) -> list[LookupKey | LookupTableError | None]:
        """`of` each row of these columns, or the error that it raises."""
        if all(map(_are_canonical, self._normalizers, columns)):
            return list(zip(*columns, strict=True))
        return [self._of_or_error(values) for values in zip(*columns, strict=True)]

    def _of_or_error(self, values: Sequence[object]) -> LookupKey | LookupTableError | None:
        try:
            return self.of(values)
        except LookupTableError as error:
            return error

    def of(self, values: Sequence[object]) -> LookupKey | None:
        """The key of these values; None if no row can match, as with a null or a number out of range.

        Raises:
            LookupTableError: a value's type is not the table column's, or it is a timestamp that UTC does not have.
        """
        key = []
        for at, value in enumerate(values):
            if value is None:
                return None
            try:
                value = self._normalizers[at](value)
            except TypeError:
                column = self._columns[at]
                raise LookupTableError(
                    f"the key column {column.name!r} is {column.type}, got {value!r} of type {type(value).__name__}. "
                    "Cast the input's column."
                ) from None
            except (ValueError, OverflowError) as error:
                raise LookupTableError(f"the key column {self._columns[at].name!r}: {error}.") from None
            if value is None:
                return None
            key.append(value)
        return tuple(key)


def _are_canonical(normalizer: Normalizer, values: Sequence[Any]) -> bool:
    """Whether all values are in canonical form for certain."""
    kind = _CANONICAL.get(normalizer)
    if kind is None or set(map(type, values)) != {kind}:
        return False
    return kind is not int or (min(values) >= -_BIGGEST - 1 and max(values) <= _BIGGEST)
