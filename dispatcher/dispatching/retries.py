"""Events whose handlers have failed, and that wait for their next attempt.

They wait outside the queue until they are due, and the alarm posts them again; `Inbox.retrying` has them, so at every
moment an event is in exactly one place (invariant 4). In write-ahead mode a new line in the log, with the attempt and
its time, takes the place of the event's line.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, NamedTuple

from dispatcher.dispatching.lanes import BeginsLater, EventTaken
from dispatcher.dispatching.times import BatchProgress
from dispatcher.errors import DispatcherError, MailboxClosedError
from dispatcher.journal.format.marks import Marks
from dispatcher.journal.turns import LaterAppend
from dispatcher.mailbox.mail import MIN_PRIORITY, Mail
from dispatcher.mailbox.parking import NEVER
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.queue.alarm import Alarm
from dispatcher.queue.entry import HELD, RETRYING, Delivery, Entry, RecoveredFiring
from dispatcher.queue.flags import ABANDONED
from dispatcher.queue.inbox import Inbox
from dispatcher.queue.overdue import Overdue
from dispatcher.queue.schedule import Schedule
from dispatcher.queue.write_ahead import RecoveredEvent, WriteAhead
from dispatcher.retry import Retry
from dispatcher.util.foreign import class_name, entity_of, short_message, tell, text_of, type_name, type_of
from dispatcher.util.heaps import in_order

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")


class RetryingEvent(NamedTuple):
    """An event that has failed, and waits for its next attempt."""

    event_class: str
    event_type: str
    entity: str | None
    attempt: int
    """The number of the next attempt."""
    due: float
    """When that begins, in Unix seconds by the clocks as they are now."""
    error_class: str
    """Of the last attempt; empty if an earlier run made it."""
    message: str
    """At most 500 characters."""
    held_back: int
    """Events of its key that wait behind it."""


class Retries:
    """The retries of one dispatcher. Handler thread."""

    def __init__(
        self,
        inbox: Inbox,
        mailbox: TaskMailbox,
        progress: BatchProgress,
        schedule: Schedule,
        alarm: Alarm,
        overdue: Overdue,
    ) -> None:
        self._inbox = inbox  # never changes, like all fields that do not say otherwise
        self._mailbox = mailbox
        self._progress = progress
        self._schedule = schedule
        self._alarm = alarm
        self._overdue = overdue
        # By the time of the next attempt on the monotonic clock; some may be discarded; guarded by the inbox's lock.
        self._due: list[tuple[float, int, Entry]] = []
        self._order = count()
        self._drain_ends_ns: float = NEVER  # by the monotonic clock; a thread that stops writes it
        self._behind: dict[_Key, Behind] = {}  # what waits behind one event of each key

    def retry(self, policy: Retry, event: Any, error: BaseException, entry: Entry | None) -> None:
        """The event has failed: deliver it again after its delay. Raises nothing."""
        if entry is None:
            entry = Entry(self._inbox, event)
        delivery = entry.brings()
        delivery.order = entry.order
        delivery.scheduled = None
        if policy.ordered_by_key and delivery.behind is None:
            delivery.behind = self._hold_back(event, delivery.order)
        delay_ns = policy.delay_ns(delivery.attempt)
        delivery.attempt += 1
        delivery.failed = class_name(error), short_message(error)
        self._keep(entry, RETRYING)
        due_ns = self._alarm.now_ns(False) + delay_ns
        if not (entry.accepted_seq and self._keep_in_log(entry, delay_ns, due_ns)):
            self._again_at(due_ns, entry)

    def restore(self, recovered: list[RecoveredEvent], policy_of: Callable[[Any], object]) -> int:
        """Before the start: queue the events of an earlier run that are due, schedule the others; returns how many are
        due."""
        now_ns, due, keys = self._alarm.now_ns(True), [], self._schedule.keys
        for each in recovered:
            marks = each.marks
            if self._schedule.has_ended_early(each.accepted_seq):
                continue
            if marks.due_ns <= now_ns:
                firing = keys.firings.setdefault(marks.key, RecoveredFiring()) if marks.key else None
                if marks.timer:
                    self._schedule.free_key(marks.timer, each.accepted_seq)
                due.append(self._entry_of(each, firing))
            elif marks.attempt > 1:
                self._wait_again(each, policy_of(each.event.type), marks.due_ns - now_ns)
            else:
                self._schedule.restore(each.event, each.accepted_seq, marks)
        self._inbox.put_first(due)
        return len(due)

    def _entry_of(self, recovered: RecoveredEvent, firing: RecoveredFiring | None = None) -> Entry:
        attempt, order = recovered.marks.attempt, recovered.order
        context = self._inbox.write_ahead.context_of(recovered.marks)
        delivery = Delivery(attempt=attempt, scheduled=firing, context=context, is_redelivered=True, order=order)
        return Entry(self._inbox, recovered.event, delivery=delivery, accepted_seq=recovered.accepted_seq)

    def _wait_again(self, recovered: RecoveredEvent, policy: object, delay_ns: int) -> None:
        entry = self._entry_of(recovered)
        if isinstance(policy, Retry) and policy.ordered_by_key:
            entry.brings().behind = self._hold_back(entry.event, recovered.order)
        self._keep(entry, RETRYING)
        self._again_at(self._alarm.now_ns(False) + delay_ns, entry)

    # -- the next attempts: any thread ---------------------------------------------------------------------------------

    def _again_at(self, due_ns: float, entry: Entry) -> None:
        with self._inbox.lock:
            heappush(self._due, (due_ns, next(self._order), entry))
        if due_ns > self._drain_ends_ns:  # a stop that sets this meanwhile finds it in the heap
            self._inbox.shutdown.late.append(entry)
        self._alarm.arm()

    def delay_ns(self) -> float:
        """The time until the first attempt; NEVER: none waits."""
        while self._due and self._due[0][2].state != RETRYING:
            heappop(self._due)
        return self._due[0][0] - self._alarm.now_ns(False) if self._due else NEVER

    def fire(self) -> bool:
        """Queue the first event whose attempt is due; False if none is."""
        with self._inbox.lock:
            if self.delay_ns() > 0:
                return False
            entry = heappop(self._due)[2]
        self._overdue.post(entry)
        return True

    def drain_for(self, timeout_s: float) -> None:
        """A stop drains the queue for so long: events that retry only after that are given up. The thread that stops.

        Not on a manual clock, which has nothing to do with the timeout.
        """
        if self._alarm.is_real():
            self._drain_ends_ns = self._alarm.now_ns(False) + timeout_s * 1e9
            with self._inbox.lock:
                self._inbox.shutdown.late.extend(
                    entry for due_ns, _, entry in self._due if due_ns > self._drain_ends_ns
                )

    def next_attempt_s(self) -> float:
        """In how many seconds the first of the events that are retrying is due."""
        with self._inbox.lock:
            delay_ns = self.delay_ns()
        return 0.0 if delay_ns == NEVER else delay_ns / 1e9

    def waiting(self, limit: int) -> list[RetryingEvent]:
        """The events whose next attempts come first, soonest first."""
        with self._inbox.lock:
            due = self._due.copy()
        first = islice((each for each in in_order(due) if each[2].state == RETRYING), limit)
        ahead_ns = self._alarm.now_ns(True) - self._alarm.now_ns(False)
        return [_described(entry, (due_ns + ahead_ns) / 1e9) for due_ns, _, entry in first]

    # -- order by key --------------------------------------------------------------------------------------------------

    def in_order(self, handle: Callable[[Any], Any], event: Any) -> Any:
        """The handler of a class whose events keep their order by key.

        An event waits behind one that was accepted before it: after a crash, an event may come that was accepted before
        the one that is retrying.

        Raises EventTaken: the event waits, or its caller has withdrawn it.
        """
        entry = self._progress.entry_in_hand()
        own = entry.delivery.behind if entry is not None and entry.delivery is not None else None
        if self._behind or own is not None:
            behind = self.behind(event)
            if behind is None and isinstance(own, Behind):  # it has waited behind another one itself
                self._behind[own.key] = own
            elif behind is not None and behind is not own and _order_of(entry) >= behind.order:
                self.wait_behind(behind, event, entry)
                raise EventTaken
        if entry is not None and type(handle) is not BeginsLater and not entry.begin():
            raise EventTaken
        return handle(event)

    def behind(self, event: Any) -> Behind | None:
        """What the event has to wait behind; None: nothing."""
        return self._find(_key_of(event))

    def wait_behind(self, behind: Behind, event: Any, entry: Entry | None) -> None:
        """Move an event in hand, which has not begun, to those that wait."""
        if entry is None:
            entry = Entry(self._inbox, event)
        place = len(behind.entries)
        while place and _order_of(entry) < _order_of(behind.entries[place - 1]):
            place -= 1  # it has waited for its own next attempt, while later ones came
        behind.entries.insert(place, entry)
        self._keep(entry, HELD)

    def let_go(self, behind: Behind) -> None:
        """The event that `behind` waits for has ended: the others go on, before all that is queued."""
        if self._find(behind.key) is behind:
            self._behind.pop(behind.key, None)
        while behind.entries:
            self._inbox.put_back(behind.entries.pop())

    def let_go_soon(self, behind: Behind) -> None:
        """Have the handler thread let them go on. Any thread."""
        with contextlib.suppress(MailboxClosedError):  # the dispatcher has ended, and discards them
            self._mailbox.put(Mail(behind.let_go, MIN_PRIORITY, "let events go on behind one that was discarded"))

    def _hold_back(self, event: Any, order: float) -> Behind | None:
        """Let later events of the key wait behind this one; None: its key cannot be compared."""
        key = _key_of(event)
        if key is None:
            message = "%s: the lock_key of %s cannot be compared, so later events of it do not wait"
            tell(log, logging.WARNING, message, self._inbox.name, text_of(event))
            return None
        behind, other = Behind(self, key, order), self._behind.get(key)
        if other is None or order <= other.order:  # otherwise it waits behind that one, once its time has come
            self._behind[key] = behind
        return behind

    def _find(self, key: _Key | None) -> Behind | None:
        return self._behind.get(key) if key is not None else None

    def _keep(self, entry: Entry, state: int) -> None:
        """Move the event in hand to those that wait."""
        self._inbox.keep(entry, state)
        # A stop that empties `retrying` sets the phase first, so it or this thread sees the other.
        if self._inbox.phase >= ABANDONED:
            self._inbox.shutdown.discard_retrying()

    def _keep_in_log(self, entry: Entry, delay_ns: int, due_ns: int) -> bool:
        """Replace the event's line in the log, then wait; returns False if that is not possible."""
        delivery, inbox = entry.brings(), self._inbox
        marks = Marks(
            due_ns=self._alarm.now_ns(True) + delay_ns,
            attempt=delivery.attempt,
            replaces=entry.accepted_seq,
            order=delivery.order,
        )
        try:
            line = inbox.write_ahead.encode(entry.event, inbox.write_ahead.marked(delivery.context, marks))
        except DispatcherError as error:  # the handler has changed it; its line stays, and a crash forgets the attempts
            name = inbox.name
            tell(log, logging.WARNING, "%s: the attempts of %s are not kept", name, text_of(entry.event), error=error)
            return False
        then = partial(self._again_at, due_ns, entry)
        inbox.write_ahead.append_later(_NextAttempt(line, entry, inbox.write_ahead, then), wait=False)
        return True


def _order_of(entry: Entry | None) -> float:
    """The place of an event among the accepted seqs; 0: it is not in the log."""
    return entry.order if entry is not None else 0


def _described(entry: Entry, due: float) -> RetryingEvent:
    event_type, delivery = type_of(entry.event), entry.brings()
    behind = delivery.behind
    return RetryingEvent(
        class_name(event_type),
        type_name(event_type),
        entity_of(entry.event),
        delivery.attempt,
        due,
        *delivery.failed,
        len(behind.entries) if isinstance(behind, Behind) else 0,
    )


class _NextAttempt(LaterAppend):
    """The line that takes the place of an event's line. The journal's writer calls its methods."""

    def __init__(self, line: bytes, entry: Entry, write_ahead: WriteAhead, then: Callable[[], None]) -> None:
        super().__init__(line)
        self._entry = entry
        self._write_ahead = write_ahead
        self._then = then

    def end(self) -> None:
        if self.error is None:
            self._write_ahead.settle(self._entry.accepted_seq)
            self._entry.accepted_seq = self.seq
        super().end()

    def tell(self) -> None:
        self._then()


class _Key:
    """An Enum class and a `lock_key`, whose methods are foreign: they may raise when they are called here."""

    __slots__ = ("event_class", "hashed", "lock_key")

    def __init__(self, event_class: type, lock_key: Any) -> None:
        """Raises what hashing the key raises."""
        self.event_class: type = event_class
        self.lock_key: Any = lock_key
        self.hashed: int = hash((event_class, lock_key))

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Key) or self.event_class is not other.event_class:
            return False
        try:
            return bool(self.lock_key == other.lock_key)
        except Exception:  # keys that cannot be compared are equal only if they are the same object
            return self.lock_key is other.lock_key


class Behind:
    """What waits behind one event that is retrying. Handler thread, unless a method says otherwise."""

    def __init__(self, retries: Retries, key: _Key, order: float) -> None:
        self._retries = retries  # never changes
        self.key = key  # never changes
        self.order = order  # of the event that is retrying; never changes
        self.entries: list[Entry] = []  # of the events that wait, in their order; some may be withdrawn

    def let_go(self) -> None:
        self._retries.let_go(self)

    def let_go_soon(self) -> None:
        """Any thread."""
        self._retries.let_go_soon(self)


def _key_of(event: Any) -> _Key | None:
    """The event's Enum class and `lock_key`; None: the key cannot be read or hashed."""
    try:
        return _Key(type(type_of(event)), getattr(event, "lock_key", None))
    except Exception:
        return None
