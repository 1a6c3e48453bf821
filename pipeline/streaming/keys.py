"""The form of a key in which equal means the same: one form for each instant, and one for each number. Any thread.

Python compares two aware datetimes of one time zone by their wall clocks. In the hour that a zone repeats, two instants
an hour apart are equal then. And it holds a NaN unequal to itself. As dicts, sets and caches compare keys so, they take
them in this form. Like Spark's joins and groups, it makes one key of all NaN, and one of 0.0 and -0.0.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from numbers import Number
from typing import Any, Final

_EPOCH: Final = dt.datetime(1970, 1, 1)
_AS_THEY_ARE: Final = frozenset((str, int, bool, bytes, type(None), dt.date, dt.timedelta, uuid.UUID))


def canonical_key(value: Any) -> Any:
    """`value` in the form in which it is compared with other keys; the usual ones are returned as they are.

    An aware datetime is in UTC, and a NaN is `math.nan`, always the same object. So are the parts of a tuple, of a Row,
    of a frozenset and of a frozen dataclass. Whatever is not hashable is returned as it is.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return value if value == value else math.nan
    if isinstance(value, dt.datetime):
        return instant(value)
    if isinstance(value, tuple):
        is_plain: bool = kind.__eq__ is tuple.__eq__  # type: ignore[comparison-overlap]
        return tuple(map(canonical_key, value)) if is_plain else value
    if kind is frozenset:
        return frozenset(map(canonical_key, value))
    if isinstance(value, Number):
        return math.nan if _is_nan(value) else value
    if (parameters := getattr(kind, "__dataclass_params__", None)) is not None and parameters.eq and parameters.frozen:
        return _of_dataclass(value)
    return value


def canonical_keys(key_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`key_of`, a function of a value, with its keys in canonical form."""
    return lambda value: canonical_key(key_of(value))


def instant(moment: dt.datetime) -> Any:
    """An aware datetime in UTC, or if UTC has no such year, its distance from 1970; a naive one as it is."""
    offset = moment.utcoffset()
    if offset is None:
        return moment
    try:
        return moment.astimezone(dt.UTC)
    except OverflowError:
        return moment.replace(tzinfo=None) - _EPOCH - offset


def _is_nan(value: Any) -> bool:
    return value.is_nan() if isinstance(value, Decimal) else bool(value != value)


def _of_dataclass(value: Any) -> Any:
    fields = [each for each in dataclasses.fields(value) if (each.compare if each.hash is None else each.hash)]
    parts = [getattr(value, each.name) for each in fields]
    if _AS_THEY_ARE.issuperset(map(type, parts)):
        return value  # its class may define what is equal
    return type(value), *map(canonical_key, parts)
