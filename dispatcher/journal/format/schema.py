"""The journal's two tables. Each column is declared here, once; rows, frames, Arrow and Spark follow from it.

How they lie on the disk is in `dispatcher.journal.format.segments` (files), `frames` (checksums) and `columns` (rows).

A column that is new must be `sparse`, `optional` or `flag`: frames may lack such a column, so that journals written
before it are still read.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, Protocol

ColumnType = Literal["long", "string", "boolean"]

Encoding = Literal[
    "position",  # not stored: the row's position behind the frame's first seq
    "kind",  # one of the strings that repeat; a row stores the number of their combination
    "number",  # 64 bits
    "offset",  # a number minus the frame's first seq
    "duration",  # a number, in as few bytes as the frame's greatest takes
    "text",  # of each row
    "sparse",  # a text that most rows lack
    "optional",  # a positive number, 0 where there is none
    "flag",  # which rows it is true of
    "before",  # not stored: the table's time minus the duration `span`; in virtual time the same moment
    "after",  # as `before`, plus the duration
]

TIME_UNIT: Final = "Unix ns"
DURATION_UNIT: Final = "ns"


class Column(NamedTuple):
    """One column: its name, its type under Spark's name for it, and whether it can be null."""

    name: str
    type: ColumnType
    nullable: bool
    meaning: str
    encoding: Encoding
    unit: str = ""
    """`TIME_UNIT`: a moment in the clock of the run; `DURATION_UNIT`: time by the wall clock."""
    span: str = ""
    """Of `before` and `after`: the column with the duration."""
    stored_as: str = ""
    """Its name in a frame where that is another one."""


Row = tuple[Any, ...]
"""A row as the writer keeps it: `kind`, then the columns that are stored, in the order of the schema."""
Kind = tuple[str | bool, ...]
"""The values of a table's `kind` columns, in the order of the schema."""


class Counts(Protocol):
    """What says how many rows of each table there are: the header of a frame, the summary of a segment."""

    @property
    def events(self) -> int: ...

    @property
    def transitions(self) -> int: ...


class Table(NamedTuple):
    """One table of the journal."""

    name: str
    columns: tuple[Column, ...]
    time: str
    """The column that `since` and `until` are about."""
    prefix: str = ""
    """Of the names of its columns in a frame."""
    kinds_key: str = "kinds"
    """Where a frame lists its kinds."""

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
        """The columns of a row behind its `kind`."""
        return tuple(column for column in self.columns if column.encoding not in _NOT_IN_ROWS)

    @property
    def row_fields(self) -> tuple[str, ...]:
        return ("kind", *(column.name for column in self.stored))

    def stored_name(self, column: Column) -> str:
        """The column's name in a frame."""
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
        Column("entity", "string", True, "id of the application, container or node that it is about", "text"),
        Column("enqueued_at", "long", False, "when it was posted", "before", TIME_UNIT, span="queue_ns"),
        Column("started_at", "long", False, "when its handlers were called", "number", TIME_UNIT),
        Column("finished_at", "long", False, "when they had returned", "after", TIME_UNIT, span="handling_ns"),
        Column("queue_ns", "long", False, "time in the queue, also in virtual time", "duration", DURATION_UNIT),
        Column("handling_ns", "long", False, "time in the handlers, also in virtual time", "duration", DURATION_UNIT),
        Column("outcome", "string", False, "handled, failed or unregistered", "kind"),
        Column("error", "string", True, "class and message of what the handler raised", "sparse"),
        Column("payload", "string", True, "a JSON object with the event's other fields", "sparse"),
        Column(
            "accepted_seq", "long", True, "number in the order of acceptance; write-ahead mode only", "optional",
            stored_as="accepted",
        ),
        Column("redelivered", "boolean", False, "handed to its handler again after a crash or a stop", "flag"),
    ),
    time="started_at",
)  # fmt: skip

TRANSITIONS = Table(
    "transitions",
    (
        Column("seq", "long", False, "seq of the event that was being handled", "offset"),
        Column("machine", "string", False, "name of the kind of machine, e.g. RMApp", "kind"),
        Column("entity", "string", False, "the machine's entity", "text"),
        Column("from_state", "string", False, "state before", "kind"),
        Column("event_type", "string", False, "name of the Enum member that the machine was given", "kind"),
        Column("to_state", "string", False, "state after; the same as from_state where valid is false", "kind"),
        Column("at", "long", False, "when it was made", "number", TIME_UNIT),
        Column("valid", "boolean", False, "false: the state does not take this event; nothing changed", "kind"),
    ),
    time="at",
    prefix="move.",
    kinds_key="moves",
)

TABLES = (EVENTS, TRANSITIONS)


def table_named(name: str) -> Table:
    """The table of that name: for processes to which a table travels, where a copy of it would be another one."""
    [found] = [table for table in TABLES if table.name == name]
    return found


WALL_CLOCK_COLUMNS = tuple(column.name for column in EVENTS.columns if column.unit == DURATION_UNIT)
"""What may differ between two replays of one workload; every other column is the same byte for byte."""


def _row_type(table: Table) -> Callable[..., Row]:
    """Makes the table's rows from `kind` and the stored columns by name; what is left out is null, 0 or false."""
    defaults = [_DEFAULTS[column.type] for column in table.stored]
    return namedtuple(f"{table.name}_row", table.row_fields, defaults=defaults)


EventRow: Final = _row_type(EVENTS)
TransitionRow: Final = _row_type(TRANSITIONS)
