"""The event journal: one row for each event handled, one for each state transition made."""

from dispatcher.journal.format.event_codec import JsonText
from dispatcher.journal.format.outstanding import Accepted, Loss
from dispatcher.journal.format.schema import EVENTS, TABLES, TRANSITIONS, WALL_CLOCK_COLUMNS, Column, Table
from dispatcher.journal.partitioned import PartitionedJournal
from dispatcher.journal.reader import read_rows, tail
from dispatcher.journal.recovery import Recovered, recover
from dispatcher.journal.snapshot import check_journal
from dispatcher.journal.verification import Verification, verify
from dispatcher.journal.writer import JournalWriter
from dispatcher.util.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dispatcher.journal.run_config import read_run_config, write_run_config

__all__ = [
    "EVENTS",
    "TABLES",
    "TRANSITIONS",
    "WALL_CLOCK_COLUMNS",
    "Accepted",
    "Column",
    "JournalWriter",
    "JsonText",
    "Loss",
    "PartitionedJournal",
    "Recovered",
    "Table",
    "Verification",
    "check_journal",
    "read_rows",
    "read_run_config",
    "recover",
    "tail",
    "verify",
    "write_run_config",
]

# Imported when they are used: the configuration's models take longer to import than all the rest.
__getattr__ = lazy_names(
    __name__, dict.fromkeys(("read_run_config", "write_run_config"), "dispatcher.journal.run_config")
)
