"""Keys and results as text: JSON with tags for what JSON lacks. Any thread.

Reading it back runs no code of the file's, unlike pickle. A key's text is canonical: equal values have equal texts, so
it is sorted where order has no meaning, instants are in UTC, and numbers have no sign of zero and no trailing zeros
after the point. Results come back as they were, except that an aware
datetime has a fixed offset in place of its zone.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from operator import itemgetter
from typing import Any, Final

from dispatcher.errors import InvalidTypeError
from pipeline.streaming.errors import quoted
from pipeline.streaming.keys import instant

_TAG: Final = "$"
_ATOMS: Final = frozenset((type(None), bool, int, float, str))
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_WRITE: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), check_circular=False).encode


def key_text(value: Any) -> str:
    """The canonical text of a key: of a Row with the names of its columns, in any order.

    Raises:
        TypeError: a part of it has no canonical text; the message names its type.
    """
    return _WRITE(_guarded(_canonical, value))


def dump_results(results: Sequence[Any]) -> bytes:
    """A function's results, for `load_results`.

    Raises:
        TypeError: a part of them would not come back as it is; the message names its type.
    """
    return _WRITE(_guarded(_plain, list(results))).encode("ascii")


def load_results(stored: bytes) -> list[Any]:
    """The results that were dumped.

    Raises:
        ValueError: these are not results that `dump_results` made.
    """
    try:
        results = _READ(bytes(stored).decode("ascii"))
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError, RecursionError) as error:
        raise ValueError(f"stored results cannot be read ({error})") from error
    if type(results) is not list:
        raise ValueError(f"stored results are {quoted(results)}, not a list")
    return results


def _guarded(encode: Callable[[Any], Any], value: Any) -> Any:
    try:
        return encode(value)
    except RecursionError:
        raise InvalidTypeError(f"a {type(value).__qualname__} is nested too deeply, or contains itself") from None


def _tagged(tag: str, value: Any) -> dict[str, Any]:
    return {_TAG: tag, "v": value}


def _plain(value: Any) -> Any:
    """A value as JSON's own types."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:
        return [_plain(item) for item in value]
    if kind is tuple:
        return _tagged("tuple", [_plain(item) for item in value])
    if kind is dict:
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return _tagged("dict", [[_plain(key), _plain(item)] for key, item in value.items()])
    if kind in (set, frozenset):
        return _tagged(kind.__name__, [_plain(item) for item in value])
    scalar = _scalar(value)
    if scalar is None:
        raise InvalidTypeError(
            f"the result has {quoted(value)}, a {kind.__qualname__}, which cannot be kept in a cache. Return None, "
            "bool, int, float, str, bytes, Decimal, UUID, dates, times, and lists, tuples, sets and dicts of them."
        )
    return _tagged(*scalar)


def _canonical(value: Any) -> Any:
    """A key's value as JSON's own types; values that mean the same give the same."""
    kind = type(value)
    if kind in _ATOMS:
        return value or abs(value) if kind is float else value  # 0.0 for -0.0
    names = getattr(value, "__fields__", None)
    if isinstance(value, tuple) and isinstance(names, list):  # Spark's Row
        return _tagged("row", sorted(_row_entries(names, value), key=itemgetter(0)))
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, Mapping):
        entries = [[_canonical(key), _canonical(item)] for key, item in value.items()]
        return _tagged("dict", sorted(entries, key=_WRITE))
    if isinstance(value, set | frozenset):
        return _tagged("set", sorted(map(_canonical, value), key=_WRITE))
    if isinstance(value, enum.Enum):
        return _tagged("enum", [kind.__qualname__, value.name])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [[field.name, _canonical(getattr(value, field.name))] for field in dataclasses.fields(value)]
        return _tagged("dataclass", [kind.__qualname__, fields])
    if isinstance(value, dt.datetime):
        value = instant(value)
    if isinstance(value, Decimal):
        value = _same_of_equal(value)
    scalar = _scalar(value)
    if scalar is None and kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _canonical(value.item())
    if scalar is None:
        raise InvalidTypeError(
            f"{quoted(value)}, a {kind.__qualname__}, cannot be part of a cache's key. Give the cache key=, a function "
            "that returns strings, numbers, dates, or tuples of them."
        )
    return _tagged(*scalar)


def _same_of_equal(value: Decimal) -> Decimal:
    """One of all Decimals that equal `value`, and one of all NaN."""
    if value.is_nan():
        return Decimal("NaN")
    return _EXACT.normalize(value) if value else Decimal(0)


def _row_entries(names: list[str], row: tuple[Any, ...]) -> list[list[Any]]:
    return [[name, _canonical(item)] for name, item in zip(names, row, strict=True)]


def _scalar(value: Any) -> tuple[str, Any] | None:
    """The tag and text of a value without parts; None for a type that has none."""
    match value:
        case bytes() | bytearray() | memoryview():
            return "bytes", base64.b64encode(value).decode("ascii")
        case Decimal():
            return "decimal", str(value)
        case dt.datetime():
            return "datetime", value.isoformat()
        case dt.date():
            return "date", value.isoformat()
        case dt.time():
            return "time", value.isoformat()
        case dt.timedelta():
            return "timedelta", [value.days, value.seconds, value.microseconds]
        case uuid.UUID():
            return "uuid", str(value)
    return None


_LOADERS: Final[dict[str, Callable[[Any], Any]]] = {
    "tuple": tuple,
    "dict": dict,
    "set": set,
    "frozenset": frozenset,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "decimal": Decimal,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda parts: dt.timedelta(*parts),
    "uuid": uuid.UUID,
}


def _untagged(read: dict[str, Any]) -> Any:
    return _LOADERS[read[_TAG]](read["v"]) if _TAG in read else read


_READ: Final = json.JSONDecoder(object_hook=_untagged).decode
