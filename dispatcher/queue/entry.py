"""An event that is more than an append: its entry, and its end.

A plain event is queued bare, or with the time of its post (STAMPED). It has one owner at a time, the thread that has
popped it, and its end is a count. An event with a key, a line in the write-ahead log, an answer, a context or an
attempt has an Entry, and others may end it as well: its caller withdraws it, a newer event replaces it, a full queue
drops it, a stop discards it.

    NEW -> QUEUED -> IN_HAND -> OVER
             ^         |   ^
             |         v   |
             |       WAITING            for its turn among the events of its handler
             +-- RETRYING, HELD         for its next attempt, behind another one

Exactly one thread takes an entry, and ends it. `take` is for the thread that has popped it, `begin` for the thread that
hands it over after a wait, `discard` for everybody else, which takes it and ends it in one call. `end` does all that an
end has to do:

    outcome        count               permit         line in the log        answer       followers
    handled        route.handled       at the take    its row settles it     the value    go on
    failed         route.failed        at the take    its row settles it     the error    go on
    superseded     dropped[outcome]    to the heir    settled                discarded    go on
    drop_oldest    dropped[outcome]    to the post    settled                discarded    go on
    withdrawn      dropped[outcome]    given back     settled on return      cancelled    go on
    stop           dropped[outcome]    -              stays for the start    discarded    go on
    refused        rejected[reason]    given back     settled                refused      go on

An event that is tried again has not ended: its next line in the log takes the place of this one.

What a signal handler raises comes out behind a call. So a store that tells of a call stands right behind it, and steps
that belong together have no call between them.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from contextvars import Context
from enum import Enum
from typing import Any, ClassVar, Final, Literal, Protocol

# Where an entry is. Plain ints: comparing members of an IntEnum runs Python code on the hot path.
NEW: Final = 0  # its producer has it, or the journal's writer
QUEUED: Final = 1  # in the queue, or in the place of an older event there
WAITING: Final = 2  # taken, and waits for its turn
RETRYING: Final = 3
HELD: Final = 4
IN_HAND: Final = 5  # one thread has it
OVER: Final = 6

_OPEN: Final = (QUEUED, WAITING, RETRYING, HELD)
"""Where others than its owner may take it."""

DropReason = Literal["stop", "drop_oldest", "superseded", "withdrawn"]
Outcome = Literal["handled", "failed", "stop", "drop_oldest", "superseded", "withdrawn", "refused"]
ClassAndKey = tuple[type, Hashable]


class InQueue(Enum):
    """The `type` of an Entry, which routes it like an event."""

    ENTRY = 1


class RepeatedPost(Protocol):
    """What is posted again and again, but not while its last event waits."""

    is_queued: bool


class RecoveredFiring:
    """The event of a `post_every` with a key that an earlier run has posted, and not handled."""

    def __init__(self) -> None:
        self.is_queued = True  # the handler thread, or one that discards the event, resets it


class WaitingBehind(Protocol):
    """The events that wait behind one that is retrying."""

    def let_go(self) -> None:
        """The event that was retrying has ended: let those behind it go on. Handler thread."""

    def let_go_soon(self) -> None:
        """Have the handler thread let them go on. Any thread."""


class TypeCounts(Protocol):
    """What counts the events of one type."""

    handled: int
    failed: int


class AskFuture(Protocol):
    """The future that the caller of an ask waits for."""

    on_its_way: Any
    """Its post, on the way into the log; None: it is not."""

    def ended(self, outcome: str, value: Any, error: Any) -> None:
        """Its event has ended. Raises nothing; may be called again."""


class Room(Protocol):
    """The permits of a queue."""

    is_crowded: bool

    def wake_one(self) -> None: ...

    def take_back(self, entry: Entry) -> None: ...


class Log(Protocol):
    """The write-ahead log."""

    def settle(self, accepted_seq: int) -> None: ...

    def settle_now(self, accepted_seq: int) -> None: ...


class EntryOwner(Protocol):
    """What an entry needs of its inbox, which says what these are."""

    tombs: int
    withdrawn_waiting: int
    retrying: dict[Entry, None]

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    @property
    def room(self) -> Room: ...

    @property
    def write_ahead(self) -> Log: ...

    def forget_key(self, entry: Entry) -> None: ...

    def left_early(self, entry: Entry, has_left: bool) -> None: ...

    def count_end(self, entry: Entry, outcome: str, reason: str | None) -> None: ...


class Delivery:
    """What an event brings along for its handling. The thread that has the entry in hand changes it."""

    __slots__ = ("attempt", "behind", "context", "failed", "is_redelivered", "order", "scheduled")

    def __init__(
        self,
        *,
        scheduled: RepeatedPost | None = None,
        attempt: int = 1,
        context: Context | None = None,
        is_redelivered: bool = False,
        order: float = 0,
    ) -> None:
        self.scheduled: RepeatedPost | None = scheduled  # whose firing it is
        self.attempt: int = attempt  # 2: the handler has failed once
        # Of the last attempt: the class and message of its error; "": none has failed in this run.
        self.failed: tuple[str, str] = "", ""
        self.behind: WaitingBehind | None = None  # those that wait behind this event, which is retrying
        self.context: Context | None = context  # of the post, for the handler; None: its class does not keep it
        self.is_redelivered: bool = is_redelivered  # an earlier run has accepted it, or it was a dead letter
        # Its place among the accepted seqs, over its attempts and restarts; 0: its accepted seq.
        self.order: float = order


class Entry:
    """One event on its way. The thread that has it writes its fields; `state`, `heir` and `victim` are guarded by the
    inbox's lock while others may take it."""

    __slots__ = (
        "accepted_seq",
        "ask",
        "delivery",
        "dropped",
        "enqueued_ns",
        "event",
        "heir",
        "inbox",
        "key",
        "outcome",
        "permit",
        "state",
        "victim",
    )

    type: ClassVar[InQueue] = InQueue.ENTRY

    def __init__(
        self,
        inbox: EntryOwner,
        event: Any,
        *,
        key: ClassAndKey | None = None,
        ask: AskFuture | None = None,
        delivery: Delivery | None = None,
        accepted_seq: int = 0,
        enqueued_ns: int = 0,
    ) -> None:
        self.inbox: EntryOwner = inbox  # never changes
        self.event: Any = event
        self.key: ClassAndKey | None = key  # None: no event supersedes this one
        self.ask = ask  # the future that its caller waits for
        self.delivery = delivery  # None: it brings nothing else
        self.accepted_seq: int = accepted_seq  # in the write-ahead log; 0: not there
        self.enqueued_ns: int = enqueued_ns  # of perf_counter_ns; 0: not measured
        self.state: int = NEW
        self.permit: bool = False  # it holds one of the permits of a bounded queue
        self.outcome: str | None = None  # why somebody discards it; written once, under the lock
        self.heir: Entry | None = None  # the newest event of its key, which has this one's place in the queue
        # What this post has superseded, or taken out of a full queue, and owes an end.
        self.victim: Entry | None = None
        self.dropped: Any = None

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self) -> Entry | None:
        """Called with an entry just popped: the one that holds its place now, or None if that was withdrawn.

        From then on no event supersedes it, and its caller cannot withdraw it.
        """
        if self.ask is None and self.key is None and self.state == QUEUED:  # no other thread has it
            self.state = IN_HAND
            return self
        inbox = self.inbox
        with inbox.lock:
            entry = self.heir or self
            if self.key is not None:
                inbox.forget_key(self)
            if entry.state != QUEUED:
                inbox.tombs -= 1
                return None
            entry.state = IN_HAND
            return entry

    def wait(self) -> None:
        """It is in hand, and waits for its turn: its caller may withdraw it until it begins."""
        if self.ask is not None and self.state == IN_HAND and self.attempt == 1:
            self.state = WAITING

    def begin(self) -> bool:
        """The event is about to be handled; False if it was withdrawn meanwhile. The thread that hands it over."""
        if self.state != IN_HAND:
            with self.inbox.lock:
                if self.state != WAITING:
                    self.inbox.withdrawn_waiting -= 1
                    return False
                self.state = IN_HAND
        if self.delivery is not None and self.delivery.scheduled is not None:
            self.delivery.scheduled.is_queued = False
        return True

    def discard(self, outcome: DropReason, *, has_left: bool = False) -> bool:
        """Take it and end it, unless a thread has it in hand, or it has ended. Any thread.

        One call: between a take and an end, an exception would leave it taken for ever. `has_left`: its place has been
        popped from the queue.

        Raises:
            JournalError: it is withdrawn, but that cannot be written to the journal.
        """
        inbox = self.inbox
        try:
            with inbox.lock:
                state = self.state
                if self.outcome is not None or state not in _OPEN:
                    return False
                if outcome == "withdrawn" and self.attempt > 1:  # its handling has begun
                    return False
                # No call in these lines, so nothing interrupts them. From here on this call ends it.
                if state == QUEUED:
                    inbox.tombs += not has_left
                elif state == WAITING:
                    inbox.withdrawn_waiting += 1
                else:
                    del inbox.retrying[self]
                self.outcome, self.state = outcome, IN_HAND
                if state == QUEUED:
                    inbox.left_early(self, has_left)
            if inbox.room.is_crowded:
                inbox.room.wake_one()
            self.end(outcome)
        except BaseException:
            if self.outcome == outcome and self.state != OVER:
                self.end(outcome)
            raise
        return True

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self, outcome: Outcome, route: TypeCounts | None = None, value: Any = None, error: Any = None) -> None:
        """All that the end of an event has to do. The thread that has it in hand.

        `route` counts what was handled or has failed. `error` is the handler's or, of a refused event, the reason. What
        interrupts this comes out when all is done.
        """
        try:
            self._end(outcome, route, value, error)
        except BaseException:
            self._end(outcome, route, value, error)
            raise

    def _end(self, outcome: Outcome, route: TypeCounts | None, value: Any, error: Any) -> None:
        """Each step may be done twice."""
        if self.state != OVER:  # count
            if route is None:
                self.inbox.count_end(self, outcome, error)
            elif outcome == "handled":
                route.handled += 1
            else:
                route.failed += 1
            self.state = OVER
        if self.permit:  # permit
            self.inbox.room.take_back(self)
        if self.ask is not None:  # answer
            self.ask.ended(outcome, value, error)
            self.ask = None  # an error's traceback may lead to this entry, and the ask to the error
        if self.delivery is not None:  # followers
            self._let_go(self.delivery, route is not None)
        if self.accepted_seq and route is None and outcome != "stop":  # line
            if outcome == "withdrawn":
                self.inbox.write_ahead.settle_now(self.accepted_seq)
            else:
                self.inbox.write_ahead.settle(self.accepted_seq)

    @staticmethod
    def _let_go(delivery: Delivery, is_run: bool) -> None:
        if delivery.scheduled is not None:
            delivery.scheduled.is_queued = False
        if delivery.behind is not None:
            if is_run:
                delivery.behind.let_go()
            else:
                delivery.behind.let_go_soon()
            delivery.behind = None

    def reopen(self) -> None:
        """Its post has found no room, and is to be tried again. The thread that posts."""
        self.state = NEW
        if self.delivery is not None and self.delivery.scheduled is not None:
            self.delivery.scheduled.is_queued = True

    # -- what it brings ------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        return self.delivery.attempt if self.delivery is not None else 1

    @property
    def is_redelivered(self) -> bool:
        return self.delivery is not None and self.delivery.is_redelivered

    @property
    def order(self) -> float:
        """Its place among the accepted seqs; 0: it is not in the log."""
        return (self.delivery.order if self.delivery is not None else 0) or self.accepted_seq

    @property
    def context(self) -> Context | None:
        """That of its post; None: its class keeps none."""
        return self.delivery.context if self.delivery is not None else None

    def brings(self) -> Delivery:
        """What it brings along, made if there was nothing. The thread that has it."""
        if self.delivery is None:
            self.delivery = Delivery()
        return self.delivery


STAMPED: Final = object()
"""Ends a stamped entry: (event, enqueued_ns, STAMPED).

If all posts note the time, an event without an Entry is queued as such a tuple, which is made in a third of the time.
Nothing is queued bare then, so a tuple in the queue is no event of a producer.
"""


def is_stamped(entry: Any) -> bool:
    """Whether it is a stamped entry of a queue whose posts all note the time."""
    return type(entry) is tuple and len(entry) == 3 and entry[2] is STAMPED


def event_of(entry: Any) -> Any:
    """The event of what is in the queue, the newest one of its key; None for None, and for what was withdrawn."""
    if is_stamped(entry):
        return entry[0]
    if type(entry) is not Entry:
        return entry
    newest = entry.heir or entry
    return newest.event if newest.state != OVER else None


def enqueued_ns_of(entry: Any) -> int:
    """When the event of what is in the queue was posted (perf_counter_ns); 0: not measured."""
    if type(entry) is Entry:
        return entry.enqueued_ns
    return entry[1] if is_stamped(entry) else 0


OWN: Final = (RecursionError, MemoryError)
"""What an append or a pop raises itself, without another frame in the traceback. Any other error is a signal handler's,
and came behind the call, which was done. At the limit of recursion, only what makes no call can tell the two apart."""
