"""Posting later: events that are posted at a time, or again and again.

    any thread --post_after, post_at, post_every--> two heaps --timer--> timers' thread: post --> event queue

One heap is in the order of the monotonic clock, for delays and periods, and one in the order of the wall clock, for
`post_at`. One timer of the time service waits for the first of both. The timers' thread never waits for room in the
queue: a firing that finds none waits as a producer does, but as an entry of `_overdue`, which the thread that returns a
permit takes on.

In write-ahead mode the event of `post_after` and `post_at` is in the log with its time, so the next start schedules it
again. `post_every` with a key has a line of its own there, which holds the time of its next firing and is replaced
with each one. The firing's event is in the log before that line, and names its time: so a crash between the two does
not fire it twice. What a cancel or a newer schedule of a key ends is settled in the log before the call returns.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context
from threading import get_ident
from typing import Any, Final, NamedTuple

from dispatcher.errors import EventRefusedError, InvalidValueError, QueueFullError
from dispatcher.journal.format.event_codec import Marks
from dispatcher.mailbox.system_timers import SystemProcessingTimeService
from dispatcher.mailbox.time_service import ProcessingTimeService, TimerFuture
from dispatcher.queue.delivery import Delivery
from dispatcher.queue.due import duration_ns, is_event_not_factory, rhythm_ns, unix_ns
from dispatcher.queue.entries import DRAINING, ClassAndKey
from dispatcher.queue.keys import Keys
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.scheduled import CANCELLED, CLAIMED, FIRED, LEFT, WAITING, Scheduled
from dispatcher.util.foreign import fields_of, tell, text_of
from dispatcher.util.threads import NO_THREAD, is_owned, postpone

log = logging.getLogger("dispatcher.async_dispatcher")

_WALL_LOOK_NS: Final = 1_000_000_000
"""While events wait for the wall clock, which may be set, the time between two looks at it."""
_NEVER_MS: Final = 1 << 40
"""The period of a timer that is cancelled when it fires."""
_SET_BACK_NS: Final = 1_000_000_000
"""A step back of the wall clock that moves the next time of a period."""
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
        # Held while the firing of a key is written to the log; before the other one. Replaced in a fork.
        self._writing = threading.RLock()
        self._order = itertools.count()
        self._count = 0  # those whose status is WAITING; written under the lock, any thread reads
        # All partitions of a MultiDispatcher share one, which replaces this one before the start.
        self.keys = Keys((self.read_keys,))
        self._ended_early: set[int] = set()  # accepted seqs of an earlier run that do not come back; before the start
        self._ahead_ns: float = -math.inf  # the wall clock, ahead of the monotonic one; the timers' thread
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

    def after(self, delay_s: float, event: Any, key: str = "") -> Scheduled:
        """
        Raises:
            TypeError: `key` is no str.
            ValueError: `delay_s` is negative or more than a century.
            EventRefusedError: the dispatcher stops, or the journal has failed.
            EventNotDeclaredError, JournalError: the journal cannot keep the event.
        """
        delay_ns = duration_ns("seconds", delay_s)
        next_ns, due_ns = self._now_ns(False) + delay_ns, self._now_ns(True) + delay_ns
        return self._once(event, key, wall=False, next_ns=next_ns, due_ns=due_ns)

    def at(self, unix_s: float, event: Any, key: str = "") -> Scheduled:
        """Raises as `after`."""
        due_ns = unix_ns(unix_s)
        return self._once(event, key, wall=True, next_ns=due_ns, due_ns=due_ns)

    def _once(self, event: Any, key: str, *, wall: bool, next_ns: int, due_ns: int) -> Scheduled:
        one = Scheduled(self, event, wall=wall, next_ns=next_ns, key=key, context=self._context_of(event))
        with self._in_place_of(self.keys.get(key)) as older:
            return self._add(one, Marks(due_ns=due_ns, timer=key), older)

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
                another `every` has the `key`. TypeError: neither an event nor a callable. Otherwise as `after`.
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
        present = self.keys.get(key)
        if present is not None and present.period_ns and not present.is_done():
            raise InvalidValueError(f"{self._name}: post_every(key={key!r}) is in use; cancel that first")
        with self._in_place_of(present) as older:
            self._set_first(one, first_ns, older)
            return self._add(one, Marks(due_ns=one.next_ns, key=key), older)

    def cancel(self, one: Scheduled) -> bool:
        """Raises JournalError: it is cancelled, and not settled in the log. ForkedProcessError: as a post."""
        self._queue.check_not_forked()
        # The firing of a key may be on its way into the log, with the next one: first let it get there.
        with self._writing if one.key and one.period_ns else nullcontext(), self._guard:
            if one.status is CLAIMED:  # then its newer one does not give it back
                one.status = CANCELLED
            elif one.status is WAITING:
                self._close(one, CANCELLED)
            else:
                return one.status is CANCELLED
            heap = self._heaps[one.wall]
            if len(heap) > 2 * self._count + _SWEEP_FROM:
                heap[:] = [entry for entry in heap if entry[2].status is WAITING]
                heapq.heapify(heap)
            accepted_seq = one.accepted_seq
            self.keys.drop(one)
        self._settle(one, accepted_seq)
        return True

    def cancel_key(self, key: str) -> bool:
        """Cancel what holds the key; returns whether something did, and has not fired.

        Raises:
            TypeError: `key` is no str. Otherwise as `cancel`, and JournalError: the log's lines may still move.
        """
        one = self.keys.get(key)
        while one is not None:
            is_cancelled, other = one.cancel(), self.keys.get(key)
            if other is None or other is one:
                return is_cancelled
            one = other  # it has taken its place meanwhile
        return False

    def scheduled(self, prefix: str) -> dict[str, Scheduled]:
        """What holds the keys with that prefix, soonest first. Raises JournalError: the log's lines may still move."""
        found = [(one.due, key, one) for key, one in self.keys.all(prefix).items()]
        return {key: one for due, key, one in sorted(found, key=lambda each: (each[0] or 0.0, each[1]))}

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
        retrying = self._attempts()
        self._queue.shutdown.late.extend(number for due_ns, number in retrying if due_ns > self._drain_ends_ns)

    def next_attempt_s(self) -> float:
        """In how many seconds the first of the events that are retrying is due."""
        due_ns = min((due_ns for due_ns, _ in self._attempts()), default=0)
        return (due_ns - self._now_ns(False)) / 1e9

    def _attempts(self) -> list[tuple[int, int]]:
        """When the events that are retrying are due, and their numbers."""
        with self._guard:
            return [(due_ns, one.number) for due_ns, _, one in self._heaps[False] if one.number]

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

    def read_keys(self) -> None:
        """Before the start: find what an earlier run has left that has a key."""
        for accepted, marks, _ in self._queue.write_ahead.recovered():
            if marks.has_event and marks.key:
                self.keys.fired_ns[marks.key] = max(self.keys.fired_ns.get(marks.key, 0), marks.fired_ns)
            elif marks.key or (marks.timer and marks.attempt == 1):
                one = Scheduled(
                    self,
                    None,
                    wall=True,
                    next_ns=marks.due_ns,
                    key=marks.key or marks.timer,
                    is_redelivered=marks.has_event,
                    is_left_over=True,
                )
                one.accepted_seq = accepted.seq
                other = self.keys.hold(one)
                # A crash came while the newer of two rhythms took the place of the older one, in another partition.
                if other is not None and other.is_rhythm:
                    other.cancel()

    def has_ended_early(self, accepted_seq: int) -> bool:
        """Whether an event of an earlier run was cancelled or replaced before the start."""
        return accepted_seq in self._ended_early

    def restore(self, event: Any, accepted_seq: int, marks: Marks) -> None:
        """Before the start: schedule an event of an earlier run again."""
        one = self._left_over(marks.timer, accepted_seq)
        if one is None:
            one = Scheduled(self, event, wall=True, next_ns=marks.due_ns, is_redelivered=True)
            one.accepted_seq = accepted_seq
        one.event, one.is_left_over = event, False
        self._push(one, is_new=True)

    def free_key(self, key: str, accepted_seq: int) -> None:
        """Before the start: an event of an earlier run is queued, for its time has come."""
        one = self._left_over(key, accepted_seq)
        if one is not None:
            with self._guard:
                self._close(one, FIRED)

    def _left_over(self, key: str, accepted_seq: int) -> Scheduled | None:
        """What holds the key for that line of this log; None: nothing does."""
        holder = self.keys.get(key)
        is_that = holder is not None and holder.is_of(self) and holder.accepted_seq == accepted_seq
        return holder if is_that else None

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
        if self._is_started:
            self._keep_rhythms()
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
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self.keys.after_fork()
        self._heaps = {False: [], True: []}
        self._count, self._timer, self._is_started = 0, None, False
        self._overdue.clear()

    def _context_of(self, event: Any) -> Context | None:
        delivery = self._queue.in_context(event, None)
        return delivery.context if delivery is not None else None

    # -- adding --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _in_place_of(self, present: Scheduled | None) -> Iterator[Scheduled | None]:
        """The one to replace, which cannot fire again, unless the block raises; None: there is nothing to replace."""
        older = present if present is not None and present.claim() else None
        try:
            yield older
        except BaseException:
            if older is not None:
                older.give_back()
            raise

    def claim(self, one: Scheduled) -> bool:
        """Keep it from firing, for a newer one of its key; False: it is done, or another one has claimed it."""
        with self._guard:
            if one.status is not WAITING:
                return False
            self._count -= not one.is_left_over
            one.status = CLAIMED
            return True

    def give_back(self, one: Scheduled) -> None:
        """The newer one could not be scheduled."""
        with self._guard:
            if one.status is not CLAIMED:
                return
            one.status = WAITING
        if not one.is_left_over:
            self._push(one, is_new=True)
            self._arm()

    def replaced(self, one: Scheduled, by: Scheduled) -> None:
        """It holds its key no longer.

        Raises:
            JournalError: it is in the log of another partition, or came at the same moment, and cannot be settled.
        """
        with self._guard:
            if one.status is WAITING:
                self._close(one, CANCELLED)
            elif one.status is CLAIMED:
                one.status = CANCELLED
        if one is by or not by.is_of(self) or one.accepted_seq not in (by.accepted_seq, by.replaces):
            self._settle(one, one.accepted_seq)
        elif one.accepted_seq == by.replaces:
            if one.is_left_over:
                self._ended_early.add(one.accepted_seq)
            self._queue.write_ahead.settle(one.accepted_seq)  # at any time: the line of the newer one names it

    def _settle(self, one: Scheduled, accepted_seq: int) -> None:
        if one.is_left_over:
            self._ended_early.add(accepted_seq)
        self._queue.write_ahead.settle_now(accepted_seq)

    def _add(self, one: Scheduled, marks: Marks, older: Scheduled | None) -> Scheduled:
        """`marks` are of its line, if it needs one; `older` has its key, and is claimed."""
        queue = self._queue
        if queue.refuses():
            raise EventRefusedError(self._name, queue.reason())
        if queue.write_ahead.is_on and (one.key or not one.period_ns) and not one.accepted_seq:
            if older is not None and older.is_of(self):
                one.replaces = older.accepted_seq
            self._log(one, marks._replace(replaces=one.replaces))
            if not one.accepted_seq:
                queue.state.reject("journal")
                raise EventRefusedError(self._name, "journal")
        self._push(one, is_new=True)
        if one.key:
            for loser in dict.fromkeys((older, self.keys.hold(one))):
                if loser is not None:
                    loser.replaced(one)
            if one.is_done():  # it has fired before it held its key
                self.keys.drop(one)
        self._arm()
        return one

    def _log(self, one: Scheduled, marks: Marks) -> None:
        """Write its line."""
        if marks.key:
            one.accepted_seq = self._queue.write_ahead.accept_tick(marks)
        else:
            one.accepted_seq = self._queue.write_ahead.accept(one.event, marks)

    def _set_first(self, one: Scheduled, first_ns: int, older: Scheduled | None) -> None:
        """When an event with a period fires first: with a key, when an earlier run would have fired it next."""
        now_ns = self._now_ns(one.wall)
        if older is None or not older.is_rhythm:
            one.next_ns = now_ns + first_ns
            return
        one.next_ns = older.next_ns
        if self.keys.fired_ns.get(one.key, 0) >= older.next_ns:  # a crash came between the event and the next time
            one.next_ns += one.period_ns
        one.next_ns = min(one.next_ns, now_ns + one.period_ns)  # the clock of the earlier run may have been ahead
        if older.is_of(self) and one.next_ns == older.next_ns:
            one.accepted_seq = older.accepted_seq  # its line says so

    def _keep_rhythms(self) -> None:
        """At the end of a run: write the rhythms that this run did not ask for once more. Their lines would otherwise
        keep all segments from their own on."""
        for key, one in self.keys.all().items():
            if not (one.is_left_over and one.is_of(self)):
                continue
            with self._guard:
                self._close(one, LEFT)
            if one.is_rhythm:
                self._log_next(one)
                message = "%s: post_every(key=%r) was not called in this run; its rhythm stays, until cancel(%r)"
                tell(log, logging.INFO, message, self._name, key, key, extra={"dispatcher": self._name})

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
        self._count -= not one.is_left_over
        self.keys.drop(one)

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
            self._follow_wall_clock()
            while self._fire_until(self._now_ns(False), self._now_ns(True)):
                pass
        finally:
            self._arm()

    def _follow_wall_clock(self) -> None:
        """After a step back of the wall clock, let no key with a period wait for more than that."""
        ahead_ns, before_ns = self._now_ns(True) - self._now_ns(False), self._ahead_ns
        self._ahead_ns = ahead_ns
        if ahead_ns >= before_ns - _SET_BACK_NS:
            return
        now_ns = self._now_ns(True)
        with self._guard:
            heap = self._heaps[True]
            late = [one for _, _, one in heap if one.period_ns and one.next_ns > now_ns + one.period_ns]
            heap[:] = [entry for entry in heap if entry[2] not in late]
            heapq.heapify(heap)
        for one in late:
            with self._writing:
                if one.status is WAITING:
                    one.next_ns = now_ns + one.period_ns
                    self._log_next(one)
                    self._push(one, is_new=False)

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
            self._post(_Firing(one.event, one.accepted_seq, self._delivery_of(one), one.number))
            return
        due_ns, write_ahead = one.next_ns, self._queue.write_ahead
        late = max(0, (self._now_ns(one.wall) - due_ns) // one.period_ns)
        with self._guard:
            one.next_ns += (late + 1) * one.period_ns
        recovered = self.keys.firings.get(one.key)
        is_queued = one.is_queued or (recovered is not None and recovered.is_queued)
        self.skipped += late + is_queued
        logs = bool(one.key) and write_ahead.is_on
        event, accepted_seq = None, 0
        try:
            try:
                if not is_queued:
                    event = one.event if one.make is None else one.make()
            finally:
                if logs:
                    accepted_seq = self._log_firing(one, event, due_ns)
        finally:
            is_over = one.status is CANCELLED  # by the factory, or while it ran
            if one.status is WAITING:
                self._push(one, is_new=False)
        if event is None or (not accepted_seq if logs else is_over):
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

    def _delivery_of(self, one: Scheduled) -> Delivery | None:
        """What an event brings along that fires once."""
        if one.number or (one.context is None and not one.accepted_seq):
            return None
        order = self._queue.write_ahead.next_order() if one.accepted_seq else 0
        return Delivery(context=one.context, is_redelivered=one.is_redelivered, order=order)

    def _log_firing(self, one: Scheduled, event: Any, due_ns: int) -> int:
        """Write the event of a key's firing to the log, then the time of the next one. Returns the accepted seq.

        0: the journal has ended, or the key was cancelled meanwhile, and the event is not posted.
        """
        with self._writing:  # a cancel waits for this, and then finds the line of the next time
            if one.status is not WAITING:
                return 0
            try:
                if event is None:
                    return 0
                return self._queue.write_ahead.accept(event, Marks(key=one.key, fired_ns=due_ns))
            finally:
                self._log_next(one)

    def _log_next(self, one: Scheduled) -> None:
        """Replace the line that has the time of a key's next firing."""
        marks = Marks(due_ns=one.next_ns, key=one.key, replaces=one.accepted_seq)
        accepted_seq = self._queue.write_ahead.accept_tick(marks)
        if not accepted_seq:  # the disk has failed, and the journal has ended
            return
        with self._guard:
            replaced, one.accepted_seq = one.accepted_seq, accepted_seq
            is_cancelled = one.status is CANCELLED  # by a `__del__` that has run on this thread
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
