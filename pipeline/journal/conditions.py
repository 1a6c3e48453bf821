"""What a query asks of a journal's rows, as far as frames and segments without such rows can be told from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatcher.journal.format.columns import RowsPayload
from dispatcher.journal.format.schema import EVENTS, Table


@dataclass(frozen=True, slots=True)
class Conditions:
    """All of them have to hold; none by default. Pickles."""

    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """Least and greatest value, both included, of `seq` and times."""
    values: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    """The values that one of the table's `kind_columns` may have."""

    def and_also(self, other: Conditions) -> Conditions:
        """Those of both. Where both say something of one column, that of `other` alone: it is but a hint."""
        return Conditions({**self.ranges, **other.ranges}, {**self.values, **other.values})

    def can_hold(self, table: Table, first_seq: int, events: int, min_at: int, max_at: int) -> bool:
        """Whether there can be such a row among those of a frame, or a segment, that has these numbers."""
        for name, (least, most) in self.ranges.items():
            low, high = min_at, max_at
            if name == "seq":
                low, high = first_seq, first_seq + events - 1
                if table is not EVENTS:
                    # One made between two events belongs to the one before; one written early, to the one to come.
                    low, high = low - 1, high + 1
            if (least is not None and high < least) or (most is not None and low > most):
                return False
        return True

    def can_hold_kinds(self, table: Table, payload: RowsPayload) -> bool:
        """Whether there can be such a row in a frame of this payload."""
        places = [(table.kind_columns.index(name), values) for name, values in self.values.items()]
        kinds = payload.kinds[table.name]
        return not places or any(all(kind[place] in values for place, values in places) for kind in kinds)
