"""The journal's two tables. Each column is declared here, once; rows, frames, Arrow and Spark derive from it.

The format on disk is in `dispatcher.journal.format.segments` (files), `frames` (checksums) and `columns` (rows).

A new column must be `sparse`, `optional` or `flag`: frames may lack such a column, so older journals stay readable.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, Protocol

ColumnType = Literal["long", "string", "boolean"]

Encoding = Literal[
    "position",  # not stored: the frame's first seq plus the row's position
    "kind",  # one of few values; a row stores the position of its combination of them
    "number",  # 64 bits
    "offset",  # a number minus the frame's first seq
    "duration",  # a number >= 0, in the smallest type that holds the frame's greatest
    "text",  # of each row
    "sparse",  # a text that most rows lack
    "optional",  # a positive number, or 0 for null
    "flag",  # the rows for which it is true
    "before",  # not stored: the table's time minus the duration `span`; in virtual time equal to the table's time
    "after",  # like `before`, plus the duration
]

TIME_UNIT: Final = "Unix ns"
DURATION_UNIT: Final = "ns"


class Column(NamedTuple):
    """One column. `type` is Spark's name for its type."""

    name: str
    type: ColumnType
    nullable: bool
    meaning: str
    encoding: Encoding
    unit: str = ""
    """`TIME_UNIT` for a moment on the run's clock, `DURATION_UNIT` for a wall-clock duration."""
    span: str = ""
    """The column with the duration, for `before` and `after`."""
    stored_as: str = ""
    """Its name in a frame, if different."""


Row = tuple[Any, ...]
"""A row in the writer: `kind`, then the stored columns, in schema order."""
Kind = tuple[str | bool, ...]
"""The values of a table's `kind` columns, in schema order."""


class Counts(Protocol):
    """The rows of each table, counted: the header of a frame, the summary of a segment."""

    @property
    def events(self) -> int: ...

    @property
    def transitions(self) -> int: ...


class Table(NamedTuple):
    """One table of the journal."""

    name: str
    columns: tuple[Column, ...]
    time: str
    """The column that `since` and `until` filter."""
    prefix: str = ""
    """Prefix of its column names in a frame."""
    kinds_key: str = "kinds"
    """The payload's entry with the table's kinds."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def kind_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.encoding == "kind")

    @property
    def time_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.unit == TIME_UNIT)

    @property
    def stored(self) -> tuple[Column, ...]:
        """The columns of a `Row` after its `kind`."""
        return tuple(column for column in self.columns if column.encoding not in _NOT_IN_ROWS)

    @property
    def row_fields(self) -> tuple[str, ...]:
        return ("kind", *(column.name for column in self.stored))

    def column(self, name: str) -> Column:
        """Raises KeyError: there is none of that name."""
        return {column.name: column for column in self.columns}[name]

    def stored_name(self, column: Column) -> str:
        return self.prefix + (column.stored_as or column.name)

    def rows_in(self, counts: Counts) -> int:
        return counts.events if self.name == "events" else counts.transitions


_NOT_IN_ROWS: Final = ("position", "kind", "before", "after")
_DEFAULTS: Final[dict[ColumnType, Any]] = {"long": 0, "string": None, "boolean": False}

EVENTS = Table(
    "events",
    (
        Column("seq", "long", False, "position in the order of handling, from 1, without gaps", "position"),
        Column("dispatcher", "string", False, "name of the dispatcher that handled the event", "kind"),
        Column("event_class", "string", False, "name of the event type's Enum class", "kind"),
        Column("event_type", "string", False, "name of the Enum member", "kind"),
        Column("entity", "string", True, "id of what the event is about, such as an application or a node", "text"),
        Column("enqueued_at", "long", False, "when it was posted", "before", TIME_UNIT, span="queue_ns"),
        Column("started_at", "long", False, "when its handlers were called", "number", TIME_UNIT),
        Column("finished_at", "long", False, "when they had returned", "after", TIME_UNIT, span="handling_ns"),
        Column("queue_ns", "long", False, "real time in the queue, also in a replay", "duration", DURATION_UNIT),
        Column("handling_ns", "long", False, "real time in the handlers, also in a replay", "duration", DURATION_UNIT),
        Column("outcome", "string", False, "handled, failed, retried or unregistered", "kind"),
        Column("error", "string", True, "class and message of the exception that the handler raised", "sparse"),
        Column("payload", "string", True, "JSON: the event's `payload`, or in write-ahead mode its fields", "sparse"),
        Column(
            "accepted_seq", "long", True, "number in the order of acceptance; write-ahead mode only", "optional",
            stored_as="accepted",
        ),
        Column("redelivered", "boolean", False, "accepted by an earlier run, or a dead letter again", "flag"),
    ),
    time="started_at",
)  # fmt: skip

TRANSITIONS = Table(
    "transitions",
    (
        Column("seq", "long", False, "seq of the event that was being handled", "offset"),
        Column("machine", "string", False, "name of the kind of machine, such as RMApp", "kind"),
        Column("entity", "string", False, "the machine's entity", "text"),
        Column("from_state", "string", False, "state before", "kind"),
        Column("event_type", "string", False, "name of the Enum member that the machine was given", "kind"),
        Column("to_state", "string", False, "state after; the same as from_state if valid is false", "kind"),
        Column("at", "long", False, "when it was made", "number", TIME_UNIT),
        Column("valid", "boolean", False, "false if the state rejected the event, so nothing changed", "kind"),
        Column("data", "string", True, "JSON: the entity's data and its version, where they changed", "sparse"),
    ),
    time="at",
    prefix="move.",
    kinds_key="moves",
)

TABLES = (EVENTS, TRANSITIONS)


def table_named(name: str) -> Table:
    """The table of that name. A pickled table would arrive as a copy; its name arrives as the same table."""
    [found] = [table for table in TABLES if table.name == name]
    return found


WALL_CLOCK_COLUMNS = tuple(column.name for column in EVENTS.columns if column.unit == DURATION_UNIT)
"""The columns that may differ between two replays of a workload; all others are equal byte for byte."""


def _row_type(table: Table) -> Callable[..., Row]:
    """A named tuple of `kind` and the stored columns; omitted columns are null, 0 or false."""
    defaults = [_DEFAULTS[column.type] for column in table.stored]
    return namedtuple(f"{table.name}_row", table.row_fields, defaults=defaults)


EventRow: Final = _row_type(EVENTS)
TransitionRow: Final = _row_type(TRANSITIONS)
