"""What stands in an event queue: an event itself, or an entry for an event of which more is to be known."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any

ClassAndKey = tuple[type, Hashable]


class InQueue(Enum):
    """The `type` of queue entries that are not events, by which the handler thread tells them from events."""

    ENTRY = 1


class QueuedEvent:
    """Stands in the queue for an event with a time stamp, a key or a place in the write-ahead log."""

    __slots__ = ("accepted_seq", "enqueued_ns", "event", "is_superseded", "key")

    type = InQueue.ENTRY

    def __init__(self, event: Any, enqueued_ns: int, key: ClassAndKey | None = None, accepted_seq: int = 0) -> None:
        self.event = event  # while the entry is queued with a key: replaced under the queue's lock; else never changed
        self.enqueued_ns = enqueued_ns  # of perf_counter_ns; 0: not measured; changed as `event` is
        self.is_superseded = False  # `event` came with a later post than this entry; changed as `event` is
        self.key = key  # None: nothing supersedes the event; never changed
        self.accepted_seq = accepted_seq  # in the write-ahead log; 0: not there; changed as `event` is


def event_of(entry: Any) -> Any:
    """The event that a queue entry is or stands for; None for None."""
    return entry.event if type(entry) is QueuedEvent else entry
