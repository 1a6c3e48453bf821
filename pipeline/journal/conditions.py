"""A query's conditions on rows, as far as headers, summaries and kinds can rule out whole frames and segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatcher.journal.format.columns import RowsPayload
from dispatcher.journal.format.frames import Header
from dispatcher.journal.format.schema import EVENTS, Table
from dispatcher.journal.format.summary import Summary


@dataclass(frozen=True, slots=True)
class Conditions:
    """A conjunction, by default empty. Picklable."""

    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """Least and greatest value, both inclusive, of `seq` and time columns."""
    values: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    """The allowed values of the table's `kind_columns`."""

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
