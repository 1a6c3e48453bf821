"""The event journal: one row for each event handled, one for each state transition made."""

from typing import TYPE_CHECKING

from dispatcher.util.lazy import lazy_names

if TYPE_CHECKING:
    from dispatcher.journal.format.event_codec import JsonText
    from dispatcher.journal.format.outstanding import Accepted
    from dispatcher.journal.format.schema import EVENTS, TABLES, TRANSITIONS, Column
    from dispatcher.journal.history import entity_history
    from dispatcher.journal.partitioned import PartitionedJournal
    from dispatcher.journal.read import read_rows, tail
    from dispatcher.journal.recovery import Recovered, recover
    from dispatcher.journal.snapshot import check_journal
    from dispatcher.journal.verification import verify
    from dispatcher.journal.writer import JournalWriter

__all__ = [
    "EVENTS",
    "TABLES",
    "TRANSITIONS",
    "Accepted",
    "Column",
    "JournalWriter",
    "JsonText",
    "PartitionedJournal",
    "Recovered",
    "check_journal",
    "entity_history",
    "read_rows",
    "recover",
    "tail",
    "verify",
]

# Imported when they are used: a dispatcher without a journal needs none of them.
__getattr__ = lazy_names(__name__)
