"""The event journal: one row for each event handled, one for each state transition made."""

from dispatcher.journal.reader import Verification, check_journal, read_rows, recover, tail, verify
from dispatcher.journal.schema import EVENTS, TABLES, TRANSITIONS, WALL_CLOCK_COLUMNS, Column, Table
from dispatcher.journal.writer import JournalWriter

__all__ = [
    "EVENTS",
    "TABLES",
    "TRANSITIONS",
    "WALL_CLOCK_COLUMNS",
    "Column",
    "JournalWriter",
    "Table",
    "Verification",
    "check_journal",
    "read_rows",
    "recover",
    "tail",
    "verify",
]
