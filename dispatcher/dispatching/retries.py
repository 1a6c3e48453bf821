"""Events whose handlers have failed, and that wait for their next attempt.

They wait outside the queue, in `retrying`, until the schedule posts them again. Each step from one to the other is one
call in C, so at every moment an event is in exactly one place (invariant 4). In write-ahead mode a new line in the log,
with the attempt and its time, takes the place of the event's line.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any

from dispatcher.dispatching.lanes import EventTaken
from dispatcher.dispatching.times import Progress
from dispatcher.errors import DispatcherError
from dispatcher.journal.format.event_codec import Marks
from dispatcher.journal.turns import LaterAppend
from dispatcher.queue.delivery import Delivery
from dispatcher.queue.entries import ABANDONED, QueuedEvent
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.schedule import Schedule
from dispatcher.queue.write_ahead import WriteAhead
from dispatcher.retry import Retry
from dispatcher.util.foreign import tell, text_of, type_of

log = logging.getLogger("dispatcher.async_dispatcher")

_NO_DELIVERY = Delivery()


class Retries:
    """The retries of one dispatcher. Handler thread."""

    def __init__(self, queue: EventQueue, progress: Progress, schedule: Schedule) -> None:
        self._queue = queue  # never changes, like all fields that do not say otherwise
        self._progress = progress
        self._schedule = schedule
        self._retrying = queue.state.retrying
        self._numbers = count(1)
        # By Enum class and `lock_key`: the events that wait behind one that is retrying, in their order.
        self._behind: dict[tuple[type, Hashable], deque[int]] = {}

    def retry(self, policy: Retry, event: Any, delivery: Delivery | None, accepted_seq: int) -> None:
        """The event has failed: hand it out again after its delay."""
        delivery = (delivery or _NO_DELIVERY).again()
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # e.g. an event with slots
            object.__setattr__(event, "attempt", delivery.attempt)
        delay_ns = policy.delay_ns(delivery.attempt - 1)
        if policy.ordered_by_key:
            self._behind.setdefault(_key_of(event), deque())
        number = self._keep(QueuedEvent(event, 0, None, accepted_seq, delivery))
        due_ns = self._schedule.now_ns() + delay_ns
        if not (accepted_seq and self._keep_in_log(number, delay_ns, lambda: self._schedule.again_at(due_ns, number))):
            self._schedule.again_at(due_ns, number)

    def restore(self, policy: object, event: Any, delivery: Delivery, accepted_seq: int, delay_ns: int) -> None:
        """Before the start: an event of an earlier run is still to wait for its next attempt."""
        if isinstance(policy, Retry) and policy.ordered_by_key:
            self._behind.setdefault(_key_of(event), deque())
        number = self._keep(QueuedEvent(event, 0, None, accepted_seq, delivery))
        self._schedule.again_at(self._schedule.now_ns() + delay_ns, number)

    def in_order(self, handle: Callable[[Any], Any], event: Any) -> Any:
        """The handler of a class whose events keep their order by key. Raises EventTaken: the event waits."""
        if not self._behind:
            return handle(event)
        key, entry = _key_of(event), self._progress.entry
        behind = self._behind.get(key)
        delivery = entry.delivery if type(entry) is QueuedEvent else None
        if behind is not None and (delivery is None or delivery.attempt == 1):
            if delivery is not None:
                delivery.undo_begin()
            seq = entry.accepted_seq if type(entry) is QueuedEvent else 0
            behind.append(self._keep(QueuedEvent(event, 0, None, seq, delivery)))
            raise EventTaken
        value = handle(event)
        if behind is not None:
            self._let_go(key)
        return value

    def ended(self, event: Any) -> None:
        """The event has failed for good: those behind it go on."""
        if self._behind:
            self._let_go(_key_of(event))

    def _let_go(self, key: tuple[type, Hashable]) -> None:
        for number in reversed(self._behind.pop(key, ())):
            self._queue.put_back(number)

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
        )
        try:
            line = write_ahead.encode(entry.event, marks)
        except DispatcherError as error:  # the handler has changed it; its line stays, and a crash forgets the attempts
            name = self._queue.name
            tell(log, logging.WARNING, "%s: the attempts of %s are not kept", name, text_of(entry.event), error=error)
            return False
        write_ahead.append_later(_NextAttempt(line, entry, write_ahead, then), wait=False)
        return True


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


def _key_of(event: Any) -> tuple[type, Hashable]:
    return type(type_of(event)), getattr(event, "lock_key", None)
