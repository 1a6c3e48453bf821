"""The journal's two tables, declared once: the writer, the readers and Spark all have these columns.

How they lie on the disk is in `dispatcher.journal.format.segments` (files), `frames` (checksums) and `columns` (rows).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ColumnType = Literal["long", "string", "boolean"]


class Column(NamedTuple):
    """One column: its name, its type under Spark's name for it, and whether it can be null."""

    name: str
    type: ColumnType
    nullable: bool
    meaning: str


class Table(NamedTuple):
    """One table of the journal."""

    name: str
    columns: tuple[Column, ...]


EVENTS = Table(
    "events",
    (
        Column("seq", "long", False, "position in the order of handling, from 1, without gaps"),
        Column("dispatcher", "string", False, "name of the dispatcher that handled the event"),
        Column("event_class", "string", False, "name of the event type's Enum class"),
        Column("event_type", "string", False, "name of the Enum member"),
        Column("entity", "string", True, "what the event is about: an application's, a container's, a node's id"),
        Column("enqueued_at", "long", False, "Unix ns in the clock of the run"),
        Column("started_at", "long", False, "Unix ns in the clock of the run"),
        Column("finished_at", "long", False, "Unix ns in the clock of the run"),
        Column("queue_ns", "long", False, "wall-clock ns spent in the queue, also in virtual time"),
        Column("handling_ns", "long", False, "wall-clock ns spent in the handlers, also in virtual time"),
        Column("outcome", "string", False, "handled, failed or unregistered"),
        Column("error", "string", True, "class and message of what the handler raised"),
        Column("payload", "string", True, "a JSON object of what else the event says"),
        Column("accepted_seq", "long", True, "number in the order of acceptance; in write-ahead mode only"),
        Column("redelivered", "boolean", False, "handed to its handler again after a crash or a stop"),
    ),
)

TRANSITIONS = Table(
    "transitions",
    (
        Column("seq", "long", False, "seq of the event that was being handled"),
        Column("machine", "string", False, "name of the kind of machine, e.g. RMApp"),
        Column("entity", "string", False, "the machine's entity"),
        Column("from_state", "string", False, "state before"),
        Column("event_type", "string", False, "name of the Enum member that the machine was given"),
        Column("to_state", "string", False, "state after; the same as from_state where valid is false"),
        Column("at", "long", False, "Unix ns in the clock of the run"),
        Column("valid", "boolean", False, "false: the state does not take this event; nothing changed"),
    ),
)

TABLES = (EVENTS, TRANSITIONS)

WALL_CLOCK_COLUMNS = ("queue_ns", "handling_ns")
"""What may differ between two replays of one workload; every other column is the same byte for byte."""
