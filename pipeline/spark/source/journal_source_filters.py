"""Spark's filters as conditions on a journal's frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from dispatcher.journal.format.schema import Table
from pipeline.journal.conditions import Conditions

_LEAST: Final = {"EqualTo": 0, "EqualNullSafe": 0, "GreaterThan": 1, "GreaterThanOrEqual": 0}
_MOST: Final = {"EqualTo": 0, "EqualNullSafe": 0, "LessThan": -1, "LessThanOrEqual": 0}


def conditions_of(filters: Iterable[Any], table: Table) -> Conditions:
    """The conditions that `filters` place on `seq`, times and kinds; other filters are ignored.

    Filter classes are matched by name, because Spark 4.0 has none to import.
    """
    ranges: dict[str, tuple[int | None, int | None]] = {}
    values: dict[str, frozenset[Any]] = {}
    for one in filters:
        kind, value = type(one).__name__, getattr(one, "value", None)
        name = ".".join(getattr(one, "attribute", ()))
        if value is None:
            continue
        if name == "seq" or name in table.time_columns:
            for least, most in _spans(kind, value):
                old_least, old_most = ranges.get(name, (None, None))
                ranges[name] = _tighter(max, old_least, least), _tighter(min, old_most, most)
        elif name in table.kind_columns:
            among = frozenset(value) if kind == "In" else frozenset((value,))
            if kind in ("In", "EqualTo", "EqualNullSafe"):
                values[name] = values[name] & among if name in values else among
    return Conditions(ranges, values)


def _spans(kind: str, value: Any) -> Iterable[tuple[int | None, int | None]]:
    """The least and greatest value that pass a filter; empty for an unsupported one."""
    if kind == "In":
        numbers = [one for one in value if one is not None]
        if numbers and all(type(one) is int for one in numbers):
            yield min(numbers), max(numbers)
    elif type(value) is int and (kind in _LEAST or kind in _MOST):
        yield (
            value + _LEAST[kind] if kind in _LEAST else None,
            value + _MOST[kind] if kind in _MOST else None,
        )


def _tighter(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    return choose(one, other) if one is not None and other is not None else one if other is None else other
