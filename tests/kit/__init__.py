"""What tests of all packages share: waits, threads that a test holds, events of no meaning, processes."""

from .effort import EFFORT, tries
from .events import Gate, Numbered, OfEntity, Other, Unreadable, Work, assert_accounts_balance
from .waiting import TIMEOUT_S, in_threads, no_thread_is_left, until, until_released

__all__ = [
    "EFFORT",
    "TIMEOUT_S",
    "Gate",
    "Numbered",
    "OfEntity",
    "Other",
    "Unreadable",
    "Work",
    "assert_accounts_balance",
    "in_threads",
    "no_thread_is_left",
    "tries",
    "until",
    "until_released",
]
