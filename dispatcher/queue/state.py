"""State shared by the parts of one event queue: entries, phase, lock, time stamps, and counts of unhandled events.

    RUNNING -> DRAINING (refuses posts from outside, accepts posts from handlers) -> STOPPED -> ABANDONED, never back

ABANDONED: the stop does not wait for the events, or has given up waiting. Posts from handlers are refused as well.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from enum import Enum
from time import perf_counter_ns
from typing import Any, Final, Literal

from dispatcher.util.histogram import snapshot

RUNNING: Final = 0  # plain ints: comparing members of an IntEnum runs Python code on the hot path
DRAINING: Final = 1
STOPPED: Final = 2
ABANDONED: Final = 3
FORKED: Final = 4  # this is a copy in a child process, whose handler thread stayed with the parent

# The gate: what a post does before the append.
OPEN: Final = 0  # nothing
STAMP: Final = 1  # note the time, unless the handler thread waits
STAMP_ALL: Final = 2  # note the time
LOOK: Final = 3  # take the slow path

ClassAndKey = tuple[type, Hashable]
DropReason = Literal["stop", "drop_oldest", "superseded"]
Times = Literal["all", "sampled", "none"]

_STAMP_EVERY_NS: Final = 1_000_000
"""When sampling: at most one post in this time notes it."""


class InQueue(Enum):
    """The `type` of a QueuedEvent, which routes it like an event."""

    ENTRY = 1


class QueuedEvent:
    """A queue entry for an event with a time stamp, a key or an accepted seq. Other events are queued bare."""

    __slots__ = ("accepted_seq", "enqueued_ns", "event", "is_superseded", "key")

    type = InQueue.ENTRY

    def __init__(self, event: Any, enqueued_ns: int, key: ClassAndKey | None = None, accepted_seq: int = 0) -> None:
        self.event = event  # with a key, while queued: replaced under the queue's lock; otherwise never changed
        self.enqueued_ns = enqueued_ns  # of perf_counter_ns; 0: not measured; changes as `event` does
        self.is_superseded = False  # `event` came with a later post than this entry; changes as `event` does
        self.key = key  # None: no event supersedes this one; never changed
        self.accepted_seq = accepted_seq  # in the write-ahead log; 0: not there; changes as `event` does


def event_of(entry: Any) -> Any:
    """The event of a queue entry; None for None."""
    return entry.event if type(entry) is QueuedEvent else entry


class PostFlags:
    """The flags that each post reads. An object of its own, because a slot is faster to read."""

    __slots__ = ("alert", "gate", "phase", "woken_ns")

    def __init__(self) -> None:
        self.gate = OPEN  # read before the append; written under the queue's lock
        self.alert = False  # read after the append: the handler thread waits, or not RUNNING; any thread writes
        self.phase: int = RUNNING  # never goes back; written under the queue's lock
        self.woken_ns = 0  # when a post woke the handler thread; written by that post, reset by the handler thread


class QueueState:
    """Shared by posting, coalescing, the room and the shutdown of one queue.

    `settle(accepted_seq)` records in the write-ahead log that an event will never be handled.
    """

    def __init__(self, settle: Callable[[int], None]) -> None:
        self.entries: deque[Any] = deque()  # any thread appends; the handler thread takes from the left
        self.lock = threading.Lock()  # leaf lock; replaced in a forked child
        self.flags = PostFlags()  # its fields say who may touch them
        self.settle: Final = settle  # any thread
        self.queued: dict[ClassAndKey, QueuedEvent] = {}  # guarded by lock: entries whose event can be superseded
        self.rejected: defaultdict[str, int] = defaultdict(int)  # posts refused, by reason; guarded by lock
        self.dropped: defaultdict[DropReason, int] = defaultdict(int)  # accepted, never handled; guarded by lock
        self._is_special = False  # posts take the slow path in any phase; written under lock
        self._stamp_gate = OPEN  # whether the next post notes its time; written under lock

    def set_gate(self, *, stamp_gate: int | None = None, is_special: bool = False) -> None:
        """Under lock: set the gate for later posts. `is_special` sends them all down the slow path, permanently."""
        if stamp_gate is not None:
            self._stamp_gate = stamp_gate
        self._is_special = self._is_special or is_special
        self.flags.gate = LOOK if self._is_special or self.flags.phase != RUNNING else self._stamp_gate

    @property
    def is_stamping(self) -> bool:
        """The next post notes its time."""
        return self._stamp_gate != OPEN

    def reject(self, reason: str) -> bool:
        """Count a refused post; returns False, as the post does."""
        with self.lock:
            self.rejected[reason] += 1
        return False

    def reject_shut(self) -> bool:
        """As `reject`, because the queue is not RUNNING."""
        return self.reject("draining" if self.flags.phase == DRAINING else "stopped")

    def drop(self, entry: Any, reason: DropReason) -> None:
        """Under lock: this dispatcher will never handle the event of an entry that was removed from the queue."""
        self.dropped[reason] += 1
        self.forget(entry)
        # Events discarded by a stop stay in the log: the next start redelivers them.
        if reason != "stop" and type(entry) is QueuedEvent:
            self.settle(entry.accepted_seq)

    def forget(self, entry: Any) -> None:
        """Under lock: the entry is no longer queued, so no event supersedes its event."""
        if type(entry) is QueuedEvent and entry.key is not None:
            self.queued.pop(entry.key, None)

    def contents(self) -> dict[Enum, int]:
        """Events that wait, by type, except those without an Enum type. Any thread."""
        counts: dict[int, int] = defaultdict(int)  # by identity: hashing an Enum member runs Python code
        types: dict[int, Any] = {}
        for entry in snapshot(self.entries.copy):
            event_type = getattr(event_of(entry), "type", None)
            counts[id(event_type)] += 1
            types[id(event_type)] = event_type
        return {types[key]: count for key, count in counts.items() if isinstance(types[key], Enum)}


class Stamping:
    """Chooses which posts of one queue note their time: all, at most one per ms (sampled), or none."""

    def __init__(self, state: QueueState, times: Times) -> None:
        self._state = state
        self._samples: Final = times == "sampled"
        self._since_ns = 0  # when the gate was last set to STAMP; handler thread
        with state.lock:
            state.set_gate(stamp_gate={"all": STAMP_ALL, "sampled": STAMP, "none": OPEN}[times])

    def stamped(self, event: Any) -> QueuedEvent:
        """The event as an entry that was posted now. Any thread."""
        if self._samples:
            with self._state.lock:
                self._state.set_gate(stamp_gate=OPEN)
        return QueuedEvent(event, perf_counter_ns())

    def stamp_again(self, now_ns: int) -> None:
        """When sampling: let the next post note its time, if the last stamp is old enough. Handler thread."""
        if now_ns - self._since_ns >= _STAMP_EVERY_NS:
            self._since_ns = now_ns
            if not self._state.is_stamping:
                with self._state.lock:
                    self._state.set_gate(stamp_gate=STAMP)
