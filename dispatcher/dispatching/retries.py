"""Events whose handlers have failed, and that wait for their next attempt.

They wait outside the queue, in `retrying`, until the schedule posts them again. Each step from one to the other is one
call in C, so at every moment an event is in exactly one place (invariant 4). In write-ahead mode a new line in the log,
with the attempt and its time, takes the place of the event's line.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from itertools import count
from typing import Any

from dispatcher.dispatching.lanes import BeginsLater, EventTaken
from dispatcher.dispatching.times import Progress
from dispatcher.errors import DispatcherError, MailboxClosedError
from dispatcher.journal.format.event_codec import Marks
from dispatcher.journal.turns import LaterAppend
from dispatcher.mailbox.mail import MIN_PRIORITY, Mail
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.queue.delivery import Delivery, RecoveredFiring
from dispatcher.queue.entries import ABANDONED, QueuedEvent
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.schedule import Schedule
from dispatcher.queue.write_ahead import RecoveredEvent, WriteAhead
from dispatcher.retry import Retry
from dispatcher.util.foreign import tell, text_of, type_of

log = logging.getLogger("dispatcher.async_dispatcher")

_NO_DELIVERY = Delivery()


class Retries:
    """The retries of one dispatcher. Handler thread."""

    def __init__(self, queue: EventQueue, mailbox: TaskMailbox, progress: Progress, schedule: Schedule) -> None:
        self._queue = queue  # never changes, like all fields that do not say otherwise
        self._mailbox = mailbox
        self._progress = progress
        self._schedule = schedule
        self._retrying = queue.state.retrying
        self._numbers = count(1)
        self._behind: dict[_Key, Behind] = {}  # what waits behind one event of each key

    def retry(self, policy: Retry, event: Any, delivery: Delivery | None, accepted_seq: int) -> None:
        """The event has failed: hand it out again after its delay. Raises nothing."""
        delivery = delivery or _NO_DELIVERY
        behind, order = delivery.behind, delivery.order or accepted_seq
        if policy.ordered_by_key and behind is None:
            behind = self._hold_back(event, order)
        delivery = delivery.again(behind, order)
        delay_ns = policy.delay_ns(delivery.attempt - 1)
        number = self._keep(QueuedEvent(event, 0, None, accepted_seq, delivery))
        due_ns = self._schedule.now_ns() + delay_ns
        if not (accepted_seq and self._keep_in_log(number, delay_ns, lambda: self._schedule.again_at(due_ns, number))):
            self._schedule.again_at(due_ns, number)

    def restore(self, recovered: list[RecoveredEvent], policy_of: Callable[[Any], object]) -> int:
        """Before the start: queue the events of an earlier run that are due, schedule the others; returns how many are
        due."""
        now_ns, due, keys = self._schedule.unix_now_ns(), [], self._schedule.keys
        for each in recovered:
            marks = each.marks
            if self._schedule.has_ended_early(each.accepted_seq):
                continue
            if marks.due_ns <= now_ns:
                firing = keys.firings.setdefault(marks.key, RecoveredFiring()) if marks.key else None
                if marks.timer:
                    self._schedule.free_key(marks.timer, each.accepted_seq)
                delivery = Delivery(attempt=marks.attempt, scheduled=firing, is_redelivered=True, order=each.order)
                due.append((each.accepted_seq, each.event, delivery))
            elif marks.attempt > 1:
                self._wait_again(each, policy_of(each.event.type), marks.due_ns - now_ns)
            else:
                self._schedule.restore(each.event, each.accepted_seq, marks)
        self._queue.put_first(due)
        return len(due)

    def _wait_again(self, recovered: RecoveredEvent, policy: object, delay_ns: int) -> None:
        accepted_seq, event, marks, order = recovered
        is_ordered = isinstance(policy, Retry) and policy.ordered_by_key
        behind = self._hold_back(event, order) if is_ordered else None
        delivery = Delivery(attempt=marks.attempt, behind=behind, is_redelivered=True, order=order)
        number = self._keep(QueuedEvent(event, 0, None, accepted_seq, delivery))
        self._schedule.again_at(self._schedule.now_ns() + delay_ns, number)

    def in_order(self, handle: Callable[[Any], Any], event: Any) -> Any:
        """The handler of a class whose events keep their order by key.

        An event waits behind one that was accepted before it: after a crash, an event may come that was accepted before
        the one that is retrying.

        Raises EventTaken: the event waits, or its caller has withdrawn it.
        """
        entry = self._progress.entry
        delivery, accepted_seq = (entry.delivery, entry.accepted_seq) if type(entry) is QueuedEvent else (None, 0)
        own = delivery.behind if delivery is not None else None
        if self._behind or own is not None:
            behind = self.behind(event)
            if behind is None and isinstance(own, Behind):  # it has waited behind another one itself
                self._behind[own.key] = own
            elif behind is not None and behind is not own and _order_of(entry) >= behind.order:
                self.wait_behind(behind, event, accepted_seq, delivery)
                raise EventTaken
        if delivery is not None and type(handle) is not BeginsLater and not delivery.begin():
            self._queue.write_ahead.settle(accepted_seq)
            self._progress.withdrawn += 1
            raise EventTaken
        return handle(event)

    def behind(self, event: Any) -> Behind | None:
        """What the event has to wait behind; None: nothing."""
        return self._find(_key_of(event))

    def wait_behind(self, behind: Behind, event: Any, accepted_seq: int, delivery: Delivery | None) -> None:
        """Move an event in hand, which has not begun, to those that wait."""
        entry = QueuedEvent(event, 0, None, accepted_seq, delivery)
        place = len(behind.numbers)
        while place and _order_of(entry) < _order_of(self._retrying.get(behind.numbers[place - 1])):
            place -= 1  # it has waited for its own next attempt, while later ones came
        behind.numbers.insert(place, self._keep(entry))

    def let_go(self, behind: Behind) -> None:
        """The event that `behind` waits for has ended: the others go on, before all that is queued."""
        if self._find(behind.key) is behind:
            self._behind.pop(behind.key, None)
        while behind.numbers:
            self._queue.put_back(behind.numbers.pop())

    def let_go_soon(self, behind: Behind) -> None:
        """As `let_go`. Any thread."""
        with contextlib.suppress(MailboxClosedError):  # the dispatcher has ended, and discards them
            self._mailbox.put(Mail(behind.let_go, MIN_PRIORITY, "let events go on behind one that was discarded"))

    def _hold_back(self, event: Any, order: float) -> Behind | None:
        """Let later events of the key wait behind this one; None: its key cannot be compared."""
        key = _key_of(event)
        if key is None:
            message = "%s: the lock_key of %s cannot be compared, so later events of it do not wait"
            tell(log, logging.WARNING, message, self._queue.name, text_of(event))
            return None
        behind, other = Behind(self, key, order), self._behind.get(key)
        if other is None or order <= other.order:  # otherwise it waits behind that one, once its time has come
            self._behind[key] = behind
        return behind

    def _find(self, key: _Key | None) -> Behind | None:
        return self._behind.get(key) if key is not None else None

    def _keep(self, entry: QueuedEvent) -> int:
        """Move the event in hand to those that are retrying, in one step."""
        number = next(self._numbers)
        self._progress.move_to_retrying(self._retrying, number, entry)
        # A stop that empties `retrying` sets the phase first, so it or this thread sees the other.
        if self._queue.phase >= ABANDONED:
            self._queue.shutdown.discard_retrying()
        return number

    def _keep_in_log(self, number: int, delay_ns: int, then: Callable[[], None]) -> bool:
        """Replace the event's line in the log, and call `then`; returns False if that is not possible."""
        entry, write_ahead = self._retrying.get(number), self._queue.write_ahead
        if entry is None or entry.delivery is None:
            return False
        marks = Marks(
            due_ns=self._schedule.unix_now_ns() + delay_ns,
            attempt=entry.delivery.attempt,
            replaces=entry.accepted_seq,
            order=entry.delivery.order,
        )
        try:
            line = write_ahead.encode(entry.event, marks)
        except DispatcherError as error:  # the handler has changed it; its line stays, and a crash forgets the attempts
            name = self._queue.name
            tell(log, logging.WARNING, "%s: the attempts of %s are not kept", name, text_of(entry.event), error=error)
            return False
        write_ahead.append_later(_NextAttempt(line, entry, write_ahead, then), wait=False)
        return True


def _order_of(entry: Any) -> float:
    """The place of an entry's event among the accepted seqs; 0: it is not in the log."""
    if type(entry) is not QueuedEvent:
        return 0
    return (entry.delivery.order if entry.delivery is not None else 0) or entry.accepted_seq


class _NextAttempt(LaterAppend):
    """The line that takes the place of an event's line. The journal's writer calls its methods."""

    def __init__(self, line: bytes, entry: QueuedEvent, write_ahead: WriteAhead, then: Callable[[], None]) -> None:
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
        self.event_class = event_class
        self.lock_key = lock_key
        self.hashed = hash((event_class, lock_key))

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
        self.numbers: list[int] = []  # of the events that wait, in their order

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
