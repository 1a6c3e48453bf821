"""Posting later: events that are posted at a time, or again and again.

    any thread --post_after, post_at, post_every--> two heaps --timer--> timers' thread: post --> event queue

One heap is in the order of the monotonic clock, for delays and periods, and one in the order of the wall clock, for
`post_at`. One timer of the time service waits for the first of both. The timers' thread never waits for room in the
queue: a firing that finds none waits as a producer does, but as an entry of `_overdue`, which the thread that returns a
permit takes on.

In write-ahead mode the event of `post_after` and `post_at` is in the log with its time, so the next start schedules it
again. `post_every` with a key has a line of its own there, which holds the time of its next firing and is replaced
with each one. The firing's event is in the log before that line, and names its time: so a crash between the two does
not fire it twice.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from threading import get_ident
from typing import Any, Final, NamedTuple

from dispatcher.errors import EventRefusedError, InvalidValueError, QueueFullError
from dispatcher.journal.format.event_codec import Marks
from dispatcher.mailbox.system_timers import SystemProcessingTimeService
from dispatcher.mailbox.time_service import ProcessingTimeService, TimerFuture
from dispatcher.queue.delivery import Delivery, RecoveredFiring
from dispatcher.queue.due import duration_ns, is_event_not_factory, rhythm_ns, unix_ns
from dispatcher.queue.entries import DRAINING, ClassAndKey
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.scheduled import CANCELLED, FIRED, LEFT, WAITING, Scheduled
from dispatcher.queue.write_ahead import Tick
from dispatcher.util.foreign import fields_of, tell, text_of
from dispatcher.util.threads import NO_THREAD, is_owned, postpone

log = logging.getLogger("dispatcher.async_dispatcher")

_WALL_LOOK_NS: Final = 1_000_000_000
"""While events wait for the wall clock, which may be set, the time between two looks at it."""
_NEVER_MS: Final = 1 << 40
"""The period of a timer that is cancelled when it fires."""
_SWEEP_FROM: Final = 64
"""The number of cancelled entries in a heap that is not worth a sweep."""


class _Firing(NamedTuple):
    event: Any
    accepted_seq: int
    delivery: Delivery | None
    number: int = 0
    """Of an event that is retrying."""


class _Guard:
    """Holds the schedule's lock. What a signal handler or a `__del__` schedules meanwhile is armed at the end."""

    __slots__ = ("_schedule",)

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def __enter__(self) -> None:
        self._schedule._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._schedule._lock.release()
        if self._schedule._is_to_arm:
            self._schedule._arm()


class Schedule:
    """The events of one dispatcher that are posted later. Any thread, unless a method says otherwise."""

    def __init__(self, queue: EventQueue, time_service: Callable[[], ProcessingTimeService]) -> None:
        self._name = queue.name  # never changes, like all fields that do not say otherwise
        self._queue = queue
        self._time_service = time_service
        # Before the time service's; replaced in a fork. Re-entrant: a signal handler or a `__del__` may schedule, too.
        self._lock = threading.RLock()
        self._guard = _Guard(self)
        self._is_to_arm = False  # such a call has left that to the one it has interrupted; guarded
        self._lacks_thread = False  # to arm was postponed, for lack of a thread; guarded
        self._has_ended = False  # guarded
        # By due time of the monotonic (False) and of the wall clock (True): those that wait, and some that were
        # cancelled; guarded.
        self._heaps: dict[bool, list[tuple[int, int, Scheduled]]] = {False: [], True: []}
        self._order = itertools.count()
        self._count = 0  # those whose status is WAITING; written under the lock, any thread reads
        # The keys in use. All partitions of a MultiDispatcher share one dict, which replaces this one before the start.
        # Any thread adds and removes keys, in single steps.
        self.keys: dict[str, Scheduled] = {}
        self._recovered: dict[str, RecoveredFiring] = {}  # the last one of each key; complete before the start
        self._timer: TimerFuture | None = None  # for the first of them; guarded
        self._timer_due_ns: float = math.inf  # by the monotonic clock; guarded
        self._is_started = False  # guarded
        self._drain_ends_ns: float = math.inf  # by the monotonic clock; a thread that stops writes it
        self._firing: set[int] = set()  # threads that fire; each adds and removes itself, in single steps
        # Firings that wait for room, oldest first: the timers' thread appends, any takes and puts back; single steps.
        self._overdue: deque[_Firing] = deque()
        self.fired = 0  # the timers' thread writes, any reads
        # Firings left out: the last one's event still waited, or a whole period had passed; the timers' thread writes,
        # any reads.
        self.skipped = 0
        self.left = 0  # events that the end has left unposted; the thread that ends it writes, any reads

    # -- any thread ----------------------------------------------------------------------------------------------------

    def after(self, delay_s: float, event: Any) -> Scheduled:
        """
        Raises:
            ValueError: `delay_s` is negative or more than a century.
            EventRefusedError: the dispatcher stops, or the journal has failed.
            EventNotDeclaredError, JournalError: the journal cannot keep the event.
        """
        delay_ns = duration_ns("seconds", delay_s)
        one = Scheduled(
            self, event, wall=False, next_ns=self._now_ns(False) + delay_ns, context=self._context_of(event)
        )
        return self._add(one, self._now_ns(True) + delay_ns)

    def at(self, unix_s: float, event: Any) -> Scheduled:
        """Raises as `after`."""
        due_ns = unix_ns(unix_s)
        return self._add(Scheduled(self, event, wall=True, next_ns=due_ns, context=self._context_of(event)), due_ns)

    def every(
        self,
        period_s: float,
        event_or_factory: Any,
        *,
        first_s: float | None,
        jitter: float,
        key: str,
        place: Callable[[Any], Schedule] | None = None,
    ) -> Scheduled:
        """`place(event)` is the schedule whose queue an event of a factory goes to; None: this one.

        Raises:
            ValueError: `period_s` is less than a millisecond, `first_s` is negative, `jitter` is not from 0 to 1, or
                `key` is in use. TypeError: neither an event nor a callable. Otherwise as `after`.
        """
        period_ns, first_ns = rhythm_ns(period_s, first_s, jitter)
        is_event = is_event_not_factory(event_or_factory)
        one = Scheduled(
            self,
            event_or_factory if is_event else None,
            wall=bool(key) and self._queue.write_ahead.is_on,
            next_ns=0,
            period_ns=period_ns,
            make=None if is_event else event_or_factory,
            jitter=jitter,
            key=key,
            place=place,
            context=self._context_of(event_or_factory) if is_event else None,
        )
        if key and self.keys.setdefault(key, one) is not one:
            raise InvalidValueError(f"{self._name}: post_every(key={key!r}) is in use; cancel that first")
        try:
            self._set_first(one, first_ns)
            return self._add(one, one.next_ns)
        except BaseException:
            self.keys.pop(key, None)
            if one.accepted_seq:
                self._queue.write_ahead.put_tick(key, Tick(one.accepted_seq, one.next_ns, 0))
            raise

    def cancel(self, one: Scheduled) -> bool:
        with self._guard:
            if one.status is not WAITING:
                return one.status is CANCELLED
            self._close(one, CANCELLED)
            heap = self._heaps[one.wall]
            if len(heap) > 2 * self._count + _SWEEP_FROM:
                heap[:] = [entry for entry in heap if entry[2].status is WAITING]
                heapq.heapify(heap)
            accepted_seq = one.accepted_seq
        self._queue.write_ahead.settle(accepted_seq)
        return True

    def unix_due_s(self, one: Scheduled) -> float | None:
        if one.status is not WAITING:
            return None
        due_ns = one.next_ns if one.wall else self._now_ns(True) + one.next_ns - self._now_ns(False)
        return due_ns / 1e9

    def now_ns(self) -> int:
        """The monotonic clock."""
        return self._now_ns(False)

    def unix_now_ns(self) -> int:
        return self._now_ns(True)

    def again_at(self, due_ns: int, number: int) -> None:
        """Queue an event that is retrying, at that time of `now_ns`."""
        one = Scheduled(self, None, wall=False, next_ns=due_ns, number=number)
        self._push(one, is_new=True)
        if due_ns > self._drain_ends_ns:  # a stop that sets this meanwhile finds it in the heap
            self._queue.shutdown.late.append(number)
        self._arm()

    def drain_for(self, timeout_s: float) -> None:
        """A stop drains the queue for so long: events that retry only after that are given up. The thread that stops.

        Not on a manual clock, which has nothing to do with the timeout.
        """
        if not self._is_real():
            return
        self._drain_ends_ns = self._now_ns(False) + timeout_s * 1e9
        with self._guard:
            retrying = [(due_ns, one.number) for due_ns, _, one in self._heaps[False] if one.number]
        self._queue.shutdown.late.extend(number for due_ns, number in retrying if due_ns > self._drain_ends_ns)

    def size(self) -> int:
        """How many wait for their time, or for room in the queue, but for those that are retrying."""
        return max(0, self._count + len(self._overdue) - len(self._queue.state.retrying))

    def first(self, limit: int) -> list[Scheduled]:
        """Those that wait for their time, soonest first."""
        with self._guard:
            found = [entry[2] for heap in self._heaps.values() for entry in heap]
            waiting = [one for one in found if one.status is WAITING and not one.number]
        return heapq.nsmallest(limit, waiting, key=lambda one: self.unix_due_s(one) or 0.0)

    def is_firing(self) -> bool:
        """Whether the caller fires while the queue drains, which accepts its post then."""
        return bool(self._firing) and self._queue.phase == DRAINING and get_ident() in self._firing

    def restore(self, event: Any, accepted_seq: int, due_ns: int) -> None:
        """Before the start: schedule an event of an earlier run again. `due_ns`: Unix ns."""
        one = Scheduled(self, event, wall=True, next_ns=due_ns)
        one.accepted_seq = accepted_seq
        self._push(one, is_new=True)

    def recovered_firing(self, key: str) -> RecoveredFiring:
        """Before the start: what the event of a key's firing in an earlier run is to bring along."""
        found = self._recovered[key] = RecoveredFiring()
        return found

    def start(self) -> None:
        """From now on, events are posted. The thread that starts the dispatcher."""
        with self._guard:
            self._is_started = True
        self._arm()

    def end(self) -> None:
        """Fire no more, and report what is left; in a write-ahead log it stays. Repeating it is harmless."""
        with self._lock:
            left = [entry[2] for heap in self._heaps.values() for entry in heap if entry[2].status is WAITING]
            for one in left:
                self._close(one, LEFT)
            self._heaps = {False: [], True: []}
            self._has_ended = True
            timer, self._timer = self._timer, None
        self._queue.write_ahead.forget_ticks()
        if timer is not None:
            timer.cancel()
        events = [one.event for one in left if not (one.period_ns or one.number)]
        events += [firing.event for firing in self._overdue if not firing.number]
        self._overdue.clear()
        self.left += len(events)
        if events:
            some = ", ".join(map(text_of, events[:3])) + (", ..." if len(events) > 3 else "")
            is_kept = self._queue.write_ahead.is_on
            where = "the journal has them, and the next start schedules them again" if is_kept else "they are lost"
            message = "%s: stop left %d scheduled events; %s: %s"
            level, fields = (
                logging.INFO if is_kept else logging.WARNING,
                {"dispatcher": self._name, "count": len(events)},
            )
            tell(log, level, message, self._name, len(events), where, some, extra=fields)

    def after_fork(self) -> None:
        """In a child process: what is scheduled is posted in the parent."""
        self._lock = threading.RLock()
        self._heaps = {False: [], True: []}
        self._count, self._timer, self._is_started = 0, None, False
        self._overdue.clear()

    def _context_of(self, event: Any) -> Context | None:
        delivery = self._queue.in_context(event, None)
        return delivery.context if delivery is not None else None

    # -- adding --------------------------------------------------------------------------------------------------------

    def _add(self, one: Scheduled, due_ns: int) -> Scheduled:
        queue = self._queue
        if queue.refuses():
            raise EventRefusedError(self._name, queue.reason())
        if queue.write_ahead.is_on and (one.key or not one.period_ns) and not one.accepted_seq:
            marks = Marks(due_ns=due_ns, key=one.key)
            accept = queue.write_ahead.accept_tick if one.key else partial(queue.write_ahead.accept, one.event)
            one.accepted_seq = accept(marks)
            if not one.accepted_seq:
                queue.state.reject("journal")
                raise EventRefusedError(self._name, "journal")
        self._push(one, is_new=True)
        self._arm()
        return one

    def _set_first(self, one: Scheduled, first_ns: int) -> None:
        """When an event with a period fires first: with a key, when an earlier run would have fired it next."""
        known = self._queue.write_ahead.take_tick(one.key) if one.key else None
        if known is None:
            one.next_ns = self._now_ns(one.wall) + first_ns
            return
        one.accepted_seq, one.next_ns = known.accepted_seq, known.due_ns
        if known.fired_ns >= known.due_ns:  # a crash came between the event and the next time
            one.next_ns += one.period_ns

    def _push(self, one: Scheduled, *, is_new: bool) -> None:
        jitter_ns = int(random.random() * one.jitter * one.period_ns) if one.jitter else 0
        with self._guard:
            self._count += is_new
            if not self._has_ended:
                heapq.heappush(self._heaps[one.wall], (one.next_ns + jitter_ns, next(self._order), one))
            elif one.status is WAITING:  # it was fired, or added, meanwhile
                self._close(one, LEFT)

    def _close(self, one: Scheduled, status: str) -> None:
        """Under the lock: end its wait for its time."""
        one.status = status
        self._count -= 1
        self.keys.pop(one.key, None)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _is_real(self) -> bool:
        return isinstance(self._time_service(), SystemProcessingTimeService)

    def _now_ns(self, wall: bool) -> int:
        """The monotonic or the wall clock. A manual clock is both."""
        if self._is_real():
            return time.time_ns() if wall else time.monotonic_ns()
        return self._time_service().current_processing_time() * 1_000_000

    def _arm_again(self) -> None:
        """As `_arm`, once a thread may have become free. Raises NO_THREAD: none has."""
        self._arm(is_postponed=True)

    def _arm(self, *, is_postponed: bool = False) -> None:
        """Have the time service fire when the first one is due."""
        lack: BaseException | None = None
        if is_owned(self._lock):  # by the call that a signal handler or a `__del__` has interrupted, which goes on here
            self._is_to_arm = True
            return
        with self._lock:
            self._is_to_arm = False
            if not self._is_started or self._queue.phase > DRAINING:
                return
            by_wall_ns = self._delay_ns(True)
            if self._is_real() and by_wall_ns < math.inf:
                by_wall_ns = min(by_wall_ns, _WALL_LOOK_NS)
            delay_ns = max(0, min(self._delay_ns(False), by_wall_ns))
            due_ns = self._now_ns(False) + delay_ns
            if due_ns >= self._timer_due_ns:
                return
            self._timer_due_ns = math.inf  # before the next steps, which an interrupt may cut short
            if self._timer is not None:
                self._timer.cancel()
            try:
                self._timer = self._time_service().schedule_with_fixed_delay(
                    lambda _: self._fire_due(), math.ceil(delay_ns / 1e6), _NEVER_MS
                )
                self._timer_due_ns = due_ns
            except NO_THREAD as error:
                if is_postponed or isinstance(error, RecursionError):  # a RuntimeError as well, but the caller's own
                    raise
                lack, self._lacks_thread = (None if self._lacks_thread else error), True
            else:
                self._lacks_thread = False
        if lack is not None:
            postpone(f"{self._name}: the posts at a time", self._arm_again, lack)
        if self._is_to_arm:
            self._arm()

    def _delay_ns(self, wall: bool) -> float:
        """Until the first one of a clock is due. Under the lock."""
        heap = self._heaps[wall]
        while heap and heap[0][2].status is not WAITING:
            heapq.heappop(heap)
        return heap[0][0] - self._now_ns(wall) if heap else math.inf

    # -- firing: the timers' thread ------------------------------------------------------------------------------------

    def _fire_due(self) -> None:
        with self._guard:
            timer, self._timer, self._timer_due_ns = self._timer, None, math.inf
        if timer is not None:
            timer.cancel()
        try:
            while self._fire_until(self._now_ns(False), self._now_ns(True)):
                pass
        finally:
            self._arm()

    def _fire_until(self, steady_ns: int, unix_ns: int) -> bool:
        """Fire what is due at these times of the two clocks; returns whether something was."""
        has_fired = False
        while (one := self._take_due(steady_ns, unix_ns)) is not None:
            has_fired = True
            try:
                self._fire(one)
            except Exception as error:  # of a factory, of a function for keys, or of the journal
                message, fields = "%s: %s could not be posted", {"dispatcher": self._name}
                tell(log, logging.ERROR, message, self._name, text_of(one), error=error, extra=fields)
        return has_fired

    def _take_due(self, steady_ns: int, unix_ns: int) -> Scheduled | None:
        with self._guard:
            for wall, now_ns in ((False, steady_ns), (True, unix_ns)):
                heap = self._heaps[wall]
                while heap and (heap[0][0] <= now_ns or heap[0][2].status is not WAITING):
                    one = heapq.heappop(heap)[2]
                    if one.status is WAITING:
                        if not one.period_ns:
                            self._close(one, FIRED)
                        return one
        return None

    def _fire(self, one: Scheduled) -> None:
        if not one.period_ns:
            self.fired += not one.number
            delivery = Delivery(context=one.context) if one.context is not None else None
            self._post(_Firing(one.event, one.accepted_seq, delivery, one.number))
            return
        due_ns, write_ahead = one.next_ns, self._queue.write_ahead
        late = max(0, (self._now_ns(one.wall) - due_ns) // one.period_ns)
        with self._guard:
            one.next_ns += (late + 1) * one.period_ns
        recovered = self._recovered.get(one.key)
        is_queued = one.is_queued or (recovered is not None and recovered.is_queued)
        self.skipped += late + is_queued
        logs = bool(one.key) and write_ahead.is_on
        try:
            event, accepted_seq = None, 0
            if not is_queued:
                event = one.event if one.make is None else one.make()
                if logs:
                    accepted_seq = write_ahead.accept(event, Marks(key=one.key, fired_ns=due_ns))
        finally:
            if logs:
                self._log_next(one)
            if one.status is WAITING:
                self._push(one, is_new=False)
        if event is None or (logs and not accepted_seq):
            return
        if one.status is CANCELLED:  # by the factory, or while it ran
            write_ahead.settle(accepted_seq)
            return
        self.fired += 1
        target = self if one.place is None else one.place(event)
        one.is_queued = True
        target._post(
            _Firing(
                event,
                accepted_seq,
                Delivery(scheduled=one, context=one.context.copy() if one.context is not None else None),
            )
        )

    def _log_next(self, one: Scheduled) -> None:
        """Replace the line that has the time of a key's next firing."""
        marks = Marks(due_ns=one.next_ns, key=one.key, replaces=one.accepted_seq)
        accepted_seq = self._queue.write_ahead.accept_tick(marks)
        if not accepted_seq:  # the disk has failed, and the journal has ended
            return
        with self._guard:
            replaced = one.accepted_seq
            one.accepted_seq = accepted_seq
            is_cancelled = one.status is CANCELLED
        self._queue.write_ahead.settle(replaced)
        if is_cancelled:
            self._queue.write_ahead.settle(accepted_seq)

    def _post(self, firing: _Firing) -> None:
        """Post, or wait for room behind the firings that wait already."""
        if not self._overdue and self._has_posted(firing):
            return
        self._overdue.append(firing)
        self._queue.room.enter(self)
        if self._queue.room.permits:  # returned before this waited
            self.release()

    def release(self) -> bool:
        """As Turn: a permit was returned. Any thread; raises nothing."""
        try:
            firing = self._overdue.popleft()
        except IndexError:
            return True
        try:
            if not self._has_posted(firing):  # another producer was faster
                self._overdue.appendleft(firing)
        except Exception as error:
            what, fields = text_of(firing.event), fields_of(self._name, firing.event)
            tell(log, logging.ERROR, "%s: %s could not be posted", self._name, what, error=error, extra=fields)
        if not self._overdue or self._queue.phase > DRAINING:  # after a drain, `end` reports what is left
            return True
        self._queue.room.enter(self)
        return False

    def _has_posted(self, firing: _Firing) -> bool:
        """Post, unless there is no room; returns whether that is done, or refused."""
        self._firing.add(get_ident())
        try:
            return self._has_passed(firing)
        except BaseException:
            if firing.delivery is not None:
                firing.delivery.discard("stop")
            raise
        finally:
            self._firing.discard(get_ident())

    def _key_of(self, event: Any) -> ClassAndKey | None:
        """The event's key. None as well if `coalesce_by` raises: the event is in the log, so it has to be handled."""
        try:
            return self._queue.coalescing.key_of(event)
        except Exception as error:
            what, fields = text_of(event), fields_of(self._name, event)
            tell(log, logging.ERROR, "%s: coalesce_by failed for %s", self._name, what, error=error, extra=fields)
            return None

    def _has_passed(self, firing: _Firing) -> bool:
        """As `_has_tried`, by way of a subclass's `post`, which may refuse only what was not accepted before."""
        queue, event, answers = self._queue, firing.event, list[bool]()
        if queue.override.post is None:
            return self._has_tried(firing)
        if firing.number:
            entry = queue.state.retrying.get(firing.number)
            event = entry.event if entry is not None else None
        was_accepted = bool(firing.accepted_seq or firing.number)

        def step(given: Any) -> bool:
            answers.append(self._has_tried(firing if was_accepted else firing._replace(event=given)))
            return answers[0]

        try:
            queue.override.run(event, step)
        except Exception as error:
            if answers or not was_accepted:
                raise
            what, fields = text_of(event), fields_of(self._name, event)
            tell(log, logging.ERROR, "%s: its post failed for %s", self._name, what, error=error, extra=fields)
        if answers:
            return answers[0]
        if was_accepted:
            return self._has_tried(firing)
        if firing.delivery is not None:
            firing.delivery.discard("stop")
        return True

    def _has_tried(self, firing: _Firing) -> bool:
        queue, (event, accepted_seq, delivery, number) = self._queue, firing
        if accepted_seq or number:
            key = self._key_of(event) if not number else None
            if queue.phase > DRAINING or not queue.room.take_for_accepted():
                return False
            if number:
                queue.post_again(number)
            else:
                queue.enqueue_logged(event, key, accepted_seq, delivery)
            return True
        try:
            is_posted = queue.post_if_room(event) if delivery is None else queue.post_delivery(event, delivery, False)
        except QueueFullError:
            return False
        if not is_posted and delivery is not None:
            delivery.discard("stop")
        return True
