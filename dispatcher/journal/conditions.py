"""Conditions on rows that rule out whole frames and segments by their headers, summaries and kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dispatcher.journal.format.columns import RowsPayload
from dispatcher.journal.format.frames import Header
from dispatcher.journal.format.schema import EVENTS, Table
from dispatcher.journal.format.summary import Summary

_KIND_TYPES: Final = {"string": str, "boolean": bool, "long": int}
_LEAST: Final = {"=": 0, ">": 1, ">=": 0}
_MOST: Final = {"=": 0, "<": -1, "<=": 0}


class Comparison(NamedTuple):
    """`operator`: =, <, <=, >, >=, or in, whose value is a tuple."""

    column: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class Conditions:
    """A conjunction, by default empty. Picklable."""

    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """Least and greatest value, both inclusive, of `seq` and time columns."""
    values: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    """The allowed values of the table's `kind_columns`."""

    @staticmethod
    def of(comparisons: Iterable[Comparison], table: Table) -> Conditions:
        """What comparisons say about `seq`, times and kinds; comparisons of other columns and types are ignored."""
        ranges: dict[str, tuple[int | None, int | None]] = {}
        values: dict[str, frozenset[Any]] = {}
        types = {column.name: column.type for column in table.columns}
        for name, operator, value in comparisons:
            if name == "seq" or name in table.time_columns:
                for least, most in _spans(operator, value):
                    old_least, old_most = ranges.get(name, (None, None))
                    ranges[name] = _tighter(max, old_least, least), _tighter(min, old_most, most)
            elif name in table.kind_columns and operator in ("=", "in"):
                among = frozenset(value) if operator == "in" else frozenset((value,))
                if {type(one) for one in among if one is not None} == {_KIND_TYPES[types[name]]}:
                    values[name] = values[name] & among if name in values else among
        return Conditions(ranges, values)

    @property
    def is_empty(self) -> bool:
        return not self.ranges and not self.values

    def and_also(self, other: Conditions) -> Conditions:
        """Both together; where both restrict a column, only `other` applies, which reads more but loses nothing."""
        return Conditions({**self.ranges, **other.ranges}, {**self.values, **other.values})

    def can_hold(self, table: Table, part: Header | Summary) -> bool:
        """Whether the frame or segment with these numbers can hold a matching row."""
        if not table.rows_in(part):
            return False
        for name, (least, most) in self.ranges.items():
            low, high = part.min_at, part.max_at
            if name == "seq":
                low, high = part.first_seq, part.first_seq + part.events - 1
                if table is not EVENTS:
                    # A transition made between two events has the seq of the one before; one flushed before its
                    # event's row has the seq of the next frame's first event.
                    low, high = low - 1, high + 1
            if (least is not None and high < least) or (most is not None and low > most):
                return False
        return True

    def can_hold_kinds(self, table: Table, payload: RowsPayload) -> bool:
        """Whether a frame with this payload can hold a matching row."""
        places = [(table.kind_columns.index(name), values) for name, values in self.values.items()]
        kinds = payload.kinds[table.name]
        return not places or any(all(kind[place] in values for place, values in places) for kind in kinds)


def _spans(operator: str, value: Any) -> Iterable[tuple[int | None, int | None]]:
    """The least and greatest value that pass a comparison; empty for an unsupported one."""
    if operator == "in":
        numbers = [one for one in value if one is not None]
        if numbers and all(type(one) is int for one in numbers):
            yield min(numbers), max(numbers)
    elif type(value) is int:
        yield (
            value + _LEAST[operator] if operator in _LEAST else None,
            value + _MOST[operator] if operator in _MOST else None,
        )


def _tighter(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    return choose(one, other) if one is not None and other is not None else one if other is None else other
