"""The entries of one event queue, and what its parts share: phase, lock, time stamps, counts.

    RUNNING -> DRAINING (refuses posts from outside, accepts posts from handlers) -> STOPPED -> ABANDONED, never back

ABANDONED: the stop does not wait for the events, or has given up waiting. Posts from handlers are refused as well.

A post may come from a signal handler, a `__del__` or a weakref callback, which interrupt their thread anywhere: even in
the middle of another post or of a stop. So no post waits for a lock that its own thread may hold. Its steps are single
operations on a list, deque, dict or iterator, which are atomic in CPython: each is one call of a function in C, and
CPython runs signal handlers, the garbage collector and other threads between such calls, not inside them.

The one lock, `end_lock`, is for the end of a queue and for posts that meet it. It is re-entrant, and each of its
holders may be interrupted by a whole other one.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from itertools import islice, repeat, starmap
from operator import length_hint
from time import perf_counter_ns
from typing import Any, ClassVar, Final, Literal

from dispatcher.queue.delivery import Delivery, DropReason
from dispatcher.util.histogram import snapshot

RUNNING: Final = 0  # plain ints: comparing members of an IntEnum runs Python code on the hot path
DRAINING: Final = 1
STOPPED: Final = 2
ABANDONED: Final = 3
FORKED: Final = 4  # this is a copy in a child process, whose handler thread stayed with the parent

# The gate: what a post does before the append. An empty list: nothing. A list with an entry: note the time, unless the
# handler thread waits.
STAMP_ALL: Final = 2  # note the time
LOOK: Final = 3  # take the slow path, from now on for ever

ClassAndKey = tuple[type, Hashable]
Version = tuple[Any, int, int, bool, Delivery | None]
"""What a post brings to an entry: the event, when it was posted (0: not measured), its accepted seq (0: not logged),
whether it supersedes an event that was there before, and its delivery."""
Times = Literal["all", "sampled", "none"]

_STAMP_EVERY_NS: Final = 1_000_000
"""When sampling: at most one post in this time notes it."""
AT_ONCE: Final = 10_000
"""Entries of a long queue that a stop takes in one step, during which no other thread runs."""


class InQueue(Enum):
    """The `type` of a QueuedEvent, which routes it like an event."""

    ENTRY = 1


class QueuedEvent:
    """A queue entry for an event with a time stamp, a key, an accepted seq or a delivery. Other events are queued bare,
    or as a stamped entry (see STAMPED).

    With a key, other events can supersede its event until the thread that takes the entry closes it (see Coalescing).
    """

    __slots__ = ("accepted_seq", "delivery", "enqueued_ns", "event", "is_superseded", "key", "place", "versions")

    type: ClassVar[InQueue] = InQueue.ENTRY

    def __init__(
        self,
        event: Any,
        enqueued_ns: int,
        key: ClassAndKey | None = None,
        accepted_seq: int = 0,
        delivery: Delivery | None = None,
    ) -> None:
        # Never change, unless the entry has a key: then the thread that takes the entry sets them when it closes it.
        self.event = event
        self.enqueued_ns = enqueued_ns  # of perf_counter_ns; 0: not measured
        self.accepted_seq = accepted_seq  # in the write-ahead log; 0: not there
        self.delivery = delivery  # None: the event is handed over as it is
        self.is_superseded = False  # `event` came with a later post than this entry

        self.key = key  # None: no event supersedes this one; changed only before other threads see the entry
        if key is not None:
            self.event = None
            # Any thread appends its version, in single steps, and then removes the oldest one.
            self.versions: list[Version] = [(event, enqueued_ns, accepted_seq, False, delivery)]
            self.place = iter((self,))  # any thread extends the queue by this, in one step; exhausted: it is queued


CLOSED: Final[Version] = (None, 0, 0, False, None)
"""The last version of an entry that was closed: later ones do not count."""

STAMPED: Final = object()
"""Ends a stamped entry: (event, enqueued_ns, STAMPED).

If all posts note the time, an event without key, accepted seq and delivery is queued as such a tuple, which is made in
a third of the time of a QueuedEvent. Nothing is queued bare then, so a tuple in the queue is no event of a producer.
"""


def is_stamped(entry: Any) -> bool:
    """Whether it is a stamped entry of a queue whose posts all note the time."""
    return type(entry) is tuple and len(entry) == 3 and entry[2] is STAMPED


def event_of(entry: Any) -> Any:
    """The event of a queue entry, the newest one if the entry is open; None for None."""
    if is_stamped(entry):
        return entry[0]
    if type(entry) is not QueuedEvent:
        return entry
    return entry.versions[-1][0] if entry.key is not None and entry.event is None else entry.event


def enqueued_ns_of(entry: Any) -> int:
    """When the event of a queue entry was posted (perf_counter_ns); 0: not measured."""
    if type(entry) is QueuedEvent:
        return entry.enqueued_ns
    return entry[1] if is_stamped(entry) else 0


class Tally:
    """Counts by reason. Any thread adds, without a lock: a step of `repeat` is atomic, as `+= 1` is not."""

    def __init__(self) -> None:
        # Count = steps taken from the `repeat`. Threads may add reasons; no thread removes one.
        self._turns: dict[str, repeat[tuple[()]]] = {}
        self._in_vain: dict[str, repeat[tuple[()]]] = {}  # how many of them do not count; any thread, as `_turns`

    def add(self, reason: str) -> None:
        next(self._turns.get(reason) or self.turns(reason))

    def turns(self, reason: str) -> repeat[tuple[()]]:
        """An iterator, each step of which counts one."""
        return self._turns.setdefault(reason, repeat((), sys.maxsize))

    def take(self, reason: str, take: Callable[[], Any]) -> Any:
        """Call `take`, a function in C that takes an entry out of a collection, and count the entry, in one step.

        Raises:
            LookupError: the collection is empty; nothing was counted.
        """
        in_vain = self._in_vain.setdefault(reason, repeat((), sys.maxsize))
        taking = starmap(take, self.turns(reason))
        try:
            return next(taking)
        except LookupError:
            next(in_vain)
            raise

    def take_many(self, reason: str, take: Callable[[], Any], taken: list[Any], most: int = AT_ONCE) -> None:
        """As `take`, this many times in one step, which is a tenth of the work; appends the entries to `taken`."""
        in_vain = self._in_vain.setdefault(reason, repeat((), sys.maxsize))
        try:
            taken.extend(islice(starmap(take, self.turns(reason)), most))
        except IndexError:
            next(in_vain)
            raise

    def counts(self) -> dict[str, int]:
        """The counts that are not 0."""
        counts = {reason: _used(turns) for reason, turns in snapshot(self._turns.copy).items()}
        for reason, in_vain in snapshot(self._in_vain.copy).items():
            counts[reason] = counts.get(reason, 0) - _used(in_vain)
        return {reason: count for reason, count in counts.items() if count > 0}


def _used(turns: repeat[tuple[()]]) -> int:
    return sys.maxsize - length_hint(turns)


class PostFlags:
    """The flags that each post reads. An object of its own, because a slot is faster to read."""

    __slots__ = ("alert", "gate", "phase", "woken_ns")

    def __init__(self) -> None:
        self.gate: int | list[None] = []  # read before the append; any thread sets LOOK, nothing resets it
        self.alert = False  # read after the append: the handler thread waits, or not RUNNING; any thread writes
        self.phase: int = RUNNING  # never goes back; written under end_lock
        self.woken_ns = 0  # when a post woke the handler thread; written by that post, reset by the handler thread


class QueueState:
    """Shared by posting, coalescing, the room and the shutdown of one queue.

    `settle(accepted_seq)` records in the write-ahead log that an event will never be handled.
    """

    def __init__(self, settle: Callable[[int], None]) -> None:
        self.entries: deque[Any] = deque()  # any thread appends; the handler thread takes from the left
        self.end_lock = threading.RLock()  # see above; released before foreign code runs; replaced in a forked child
        self.flags = PostFlags()  # its fields say who may touch them
        self.settle: Final = settle  # any thread
        # Events that have failed and wait for their next attempt, by number. The handler thread adds, and a thread that
        # queues or discards one takes it, in single steps.
        self.retrying: dict[int, QueuedEvent] = {}
        self.has_deliveries = False  # an event with a delivery was posted; any thread sets it
        self.rejected = Tally()  # posts refused, by reason; any thread
        self.dropped = Tally()  # accepted, never handled, by DropReason; any thread

    def reject(self, reason: str) -> bool:
        """Count a refused post; returns False, as the post does."""
        self.rejected.add(reason)
        return False

    def reject_shut(self) -> bool:
        """As `reject`, because the queue is not RUNNING."""
        return self.reject("draining" if self.flags.phase == DRAINING else "stopped")

    def take_all_dropped(self, reason: DropReason, taken: list[Any]) -> None:
        """Take all entries, count them as never to be handled, and append them to `taken`."""
        take = self.entries.popleft
        with contextlib.suppress(IndexError):
            while len(self.entries) > AT_ONCE:
                self.dropped.take_many(reason, take, taken)
            while True:
                taken.append(self.dropped.take(reason, take))

    def take_dropped(self, reason: DropReason, taken: list[Any]) -> None:
        """Take the oldest entry, count it as never to be handled, and append it to `taken`.

        Raises IndexError: the queue is empty.
        """
        self.dropped.take_many(reason, self.entries.popleft, taken, most=1)


class Stamping:
    """Chooses which posts of one queue note their time: all, at most one per ms (sampled), or none."""

    def __init__(self, flags: PostFlags, times: Times) -> None:
        self.samples: Final = times == "sampled"
        self.stamps_all: Final = times == "all"
        # One entry: the next post notes its time. When sampling, the handler thread appends it and any thread pops it.
        self.due: Final[list[None]] = [None] if times != "none" else []
        self.again_at_ns = 0  # when the handler thread is to call `stamp_again` next, if sampling; handler thread
        flags.gate = STAMP_ALL if times == "all" else self.due

    def stamped(self, event: Any) -> Any:
        """The event as an entry that was posted now. Any thread."""
        if self.stamps_all:
            return (event, perf_counter_ns(), STAMPED)
        if self.samples and self.due:
            with contextlib.suppress(IndexError):  # another post was faster
                self.due.pop()
        return QueuedEvent(event, perf_counter_ns())

    def stamp_again(self, now_ns: int) -> None:
        """When sampling, once `again_at_ns` has passed: let the next post note its time. Handler thread."""
        self.again_at_ns = now_ns + _STAMP_EVERY_NS
        if not self.due:
            self.due.append(None)
