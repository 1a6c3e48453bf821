"""What the parts of one event queue share: its entries, its phase, its lock, and the counts of what is not handled.

    RUNNING -> DRAINING (posts from outside are refused, those of handlers accepted) -> STOPPED -> ABANDONED, never back

ABANDONED is the queue of a stop that does not wait for its events, or no longer: posts of handlers are refused, too.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from enum import Enum
from time import perf_counter_ns
from typing import Any, Final, Literal

from dispatcher.util.histogram import snapshot

RUNNING: Final = 0  # plain ints: comparing members of an Enum's int flavour runs Python code on the hot path
DRAINING: Final = 1
STOPPED: Final = 2
ABANDONED: Final = 3
FORKED: Final = 4  # this is a copy in a child process, whose handler thread stayed with the parent

OPEN: Final = 0  # what a post does before the append: nothing,
STAMP: Final = 1  # note the time, unless the handler thread waits for it,
STAMP_ALL: Final = 2  # note the time in any case,
LOOK: Final = 3  # or take the slow path

ClassAndKey = tuple[type, Hashable]
DropReason = Literal["stop", "drop_oldest", "superseded"]
Times = Literal["all", "sampled", "none"]

_STAMP_EVERY_NS: Final = 1_000_000
"""When sampling: at most one post in this time notes it."""


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


class PostFlags:
    """What each post reads. An object of its own: slots are quicker to read than one attribute of many."""

    __slots__ = ("alert", "gate", "phase", "woken_ns")

    def __init__(self) -> None:
        self.gate = OPEN  # before the append; written under the queue's lock
        self.alert = False  # after the append: the handler thread waits, or not RUNNING; written by any thread
        self.phase: int = RUNNING  # never goes back; written under the queue's lock
        self.woken_ns = 0  # when a post woke the handler thread; written by that post, reset by the handler thread


class QueueState:
    """Shared by posting, coalescing, the room and the shutdown of one queue.

    `settle(accepted_seq)` tells the write-ahead log that an event will never be handled.
    """

    def __init__(self, settle: Callable[[int], None]) -> None:
        self.entries: deque[Any] = deque()  # any thread appends; the handler thread takes from the left
        self.lock = threading.Lock()  # leaf lock; another one in a forked child
        self.flags = PostFlags()  # see there
        self.settle: Final = settle  # any thread
        self.queued: dict[ClassAndKey, QueuedEvent] = {}  # guarded by lock: entries that an event can supersede
        self.rejected: defaultdict[str, int] = defaultdict(int)  # posts refused, by reason; guarded by lock
        self.dropped: defaultdict[DropReason, int] = defaultdict(int)  # accepted, never handled; guarded by lock
        self._is_special = False  # posts take the slow path in any phase; written under lock
        self._stamp_gate = OPEN  # whether the next post notes its time; written under lock

    def set_gate(self, *, stamp_gate: int | None = None, is_special: bool = False) -> None:
        """Under lock: choose the way of the posts to come. `is_special` is for good: the slow one in any phase."""
        if stamp_gate is not None:
            self._stamp_gate = stamp_gate
        self._is_special = self._is_special or is_special
        self.flags.gate = LOOK if self._is_special or self.flags.phase != RUNNING else self._stamp_gate

    @property
    def is_stamping(self) -> bool:
        """Whether the next post notes its time."""
        return self._stamp_gate != OPEN

    def reject(self, reason: str) -> bool:
        """Count a refused post; False, which is what it returns."""
        with self.lock:
            self.rejected[reason] += 1
        return False

    def reject_shut(self) -> bool:
        """As `reject`, because the queue does not run."""
        return self.reject(self.why_shut())

    def why_shut(self) -> str:
        return "draining" if self.flags.phase == DRAINING else "stopped"

    def drop(self, entry: Any, reason: DropReason) -> None:
        """Under lock: an accepted event, which was taken out, will never be handled by this dispatcher."""
        self.dropped[reason] += 1
        self.forget(entry)
        # What a stop leaves behind stays in the log: it is handled after the next start.
        if reason != "stop" and type(entry) is QueuedEvent:
            self.settle(entry.accepted_seq)

    def forget(self, entry: Any) -> None:
        """Under lock: the entry is no longer queued, so nothing supersedes its event."""
        if type(entry) is QueuedEvent and entry.key is not None:
            self.queued.pop(entry.key, None)

    def contents(self) -> dict[Enum, int]:
        """How many events of each type wait; objects without an Enum type are left out. Any thread."""
        counts: dict[int, int] = defaultdict(int)  # by identity: hashing an Enum member runs Python code
        types: dict[int, Any] = {}
        for entry in snapshot(self.entries.copy):
            event_type = getattr(event_of(entry), "type", None)
            counts[id(event_type)] += 1
            types[id(event_type)] = event_type
        return {types[key]: count for key, count in counts.items() if isinstance(types[key], Enum)}


class Stamping:
    """The time stamps of one queue's posts."""

    def __init__(self, state: QueueState, times: Times) -> None:
        self._state = state
        self._samples: Final = times == "sampled"
        self._since_ns = 0  # handler thread: when the next post was last asked for its time
        with state.lock:
            state.set_gate(stamp_gate={"all": STAMP_ALL, "sampled": STAMP, "none": OPEN}[times])

    def stamped(self, event: Any) -> QueuedEvent:
        """The event with the time of its post, which is now. Any thread."""
        if self._samples:
            with self._state.lock:
                self._state.set_gate(stamp_gate=OPEN)
        return QueuedEvent(event, perf_counter_ns())

    def stamp_again(self, now_ns: int) -> None:
        """When sampling: have the next post note its time, if the last did so long enough ago. Handler thread."""
        if now_ns - self._since_ns >= _STAMP_EVERY_NS:
            self._since_ns = now_ns
            if not self._state.is_stamping:
                with self._state.lock:
                    self._state.set_gate(stamp_gate=STAMP)
