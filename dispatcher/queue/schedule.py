"""Posting later: events that are posted at a time, or again and again.

    any thread --post_after, post_at, post_every--> two heaps --handler thread: post--> event queue

One heap is in the order of the monotonic clock, for delays and periods, and one in the order of the wall clock, for
`post_at`. The handler thread's sleep ends when the first of both is due (see Alarm).

In write-ahead mode the event of `post_after` and `post_at` is in the log with its time, so the next start schedules it
again. `post_every` with a key has a line of its own there, which holds its event, its rule and the time of its next
firing, and is replaced with each one. So the next start goes on with it. Only what a factory makes has to be asked for
again. The firing's event is in the log before that line, and names its time: so a crash between the two does not fire
it twice. What a cancel or a newer schedule of a key ends is settled in the log before the call returns.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context, copy_context
from typing import Any, Final

from dispatcher.errors import EventRefusedError, JournalError
from dispatcher.journal.format.marks import NO_EVENT, Marks, is_without_event
from dispatcher.mailbox.parking import NEVER
from dispatcher.queue.alarm import Alarm
from dispatcher.queue.due import duration_ns, is_event_not_factory, unix_ns
from dispatcher.queue.entry import NEW, Delivery, Entry
from dispatcher.queue.inbox import Inbox
from dispatcher.queue.keys import Keys
from dispatcher.queue.overdue import Overdue
from dispatcher.queue.rules import Cron, Firing, FiringRule, stored_rule
from dispatcher.queue.scheduled import CANCELLED, CLAIMED, FIRED, LEFT, WAITING, Scheduled
from dispatcher.util.figures import counted
from dispatcher.util.foreign import tell, text_of
from dispatcher.util.heaps import in_order

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

_WALL_LOOK_NS: Final = 1_000_000_000
"""While events wait for the wall clock, which may be set, the time between two looks at it."""
_SET_BACK_NS: Final = 1_000_000_000
"""A step back of the wall clock that moves the next time of a period."""
_SWEEP_FROM: Final = 64
"""The number of cancelled entries in a heap that is not worth a sweep."""


class Schedule:
    """The events of one dispatcher that are posted later. Any thread, unless a method says otherwise."""

    def __init__(self, inbox: Inbox, alarm: Alarm, overdue: Overdue) -> None:
        self._name = inbox.name  # never changes, like all fields that do not say otherwise
        self._inbox = inbox
        self._alarm = alarm
        self._overdue = overdue
        self._has_ended = False  # guarded by the inbox's lock
        # By due time of the monotonic (False) and of the wall clock (True): those that wait, and some that were
        # cancelled; guarded by that lock.
        self._heaps: dict[bool, list[tuple[int, int, Scheduled]]] = {False: [], True: []}
        # Held while the firing of a key is written to the log; before the other one. Replaced in a fork.
        self._writing = threading.RLock()
        self._order = itertools.count()
        self._count = 0  # those whose status is WAITING; written under the inbox's lock, any thread reads
        # All partitions of a MultiDispatcher share one, which replaces this one before the start.
        self.keys: Keys = Keys((self.read_keys,))
        self._ended_early: set[int] = set()  # accepted seqs of an earlier run that do not come back; before the start
        self._ahead_ns: float = -math.inf  # the wall clock, ahead of the monotonic one; the thread that fires
        self._is_started = False  # the thread that starts the dispatcher sets it
        # Whether a start goes on with the rhythms of earlier runs; set before the start.
        self.resumes = True
        self.fired: int = 0  # the thread that fires writes, any reads
        # Firings left out: the last one's event still waited, or the time was missed; the thread that fires writes,
        # any reads.
        self.skipped: int = 0
        self.left: int = 0  # events that the end has left unposted; the thread that ends it writes, any reads

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
        next_ns, due_ns = self._alarm.now_ns(False) + delay_ns, self._alarm.now_ns(True) + delay_ns
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
        rule: FiringRule,
        event: Any,
        *,
        first_s: float | None = None,
        key: str = "",
        place: Callable[[Any], Schedule] | None = None,
    ) -> Scheduled:
        """`place(event)` is the schedule whose queue an event of a factory goes to; None: this one.

        Raises:
            ValueError: `first_s` is negative, or the rule has no time to come. TypeError: `event` is neither an event
                nor a callable. Otherwise as `after`.
        """
        first_ns = None if first_s is None else duration_ns("first", first_s)
        is_event, present, line = is_event_not_factory(event), self.keys.get(key), b""
        ahead = self._inbox.write_ahead
        if key and (ahead.keeps(event) if is_event else ahead.is_on):
            line = ahead.encode(event) if is_event else NO_EVENT
        one = Scheduled(
            self,
            event,
            wall=bool(line) or isinstance(rule, Cron),
            next_ns=0,
            repeats=rule,
            makes=not is_event,
            key=key,
            line=line,
            place=place,
            context=self._context_of(event) if is_event else None,
        )
        with self._in_place_of(present) as older:
            self._set_first(one, rule, first_ns, older)
            return self._add(one, self._marks_of(one), older)

    def cancel(self, one: Scheduled) -> bool:
        """Raises JournalError: it is cancelled, and not settled in the log. ForkedProcessError: as a post."""
        self._inbox.check_not_forked()
        # The firing of a key may be on its way into the log, with the next one: first let it get there.
        with self._writing if one.key and one.is_rhythm else nullcontext(), self._inbox.lock:
            if one.status is CLAIMED:  # then its newer one does not give it back
                one.status = CANCELLED
            elif one.status is WAITING:
                self._close(one, CANCELLED)
            else:
                return one.status is CANCELLED
            heap = self._heaps[one.wall]
            if len(heap) > 2 * self._count + _SWEEP_FROM:
                heap[:] = [entry for entry in heap if _is_current(entry)]
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
        return self._unix_s(one, one.next_ns)

    def unix_last_s(self, one: Scheduled) -> float | None:
        return self._unix_s(one, one.last_ns) if one.last_ns else None

    def _unix_s(self, one: Scheduled, time_ns: int) -> float:
        return (time_ns if one.wall else self._alarm.now_ns(True) + time_ns - self._alarm.now_ns(False)) / 1e9

    def unix_now_ns(self) -> int:
        return self._alarm.now_ns(True)

    def size(self) -> int:
        """How many wait for their time, or for room in the queue."""
        return self._count + self._overdue.unaccepted()

    def first(self, limit: int, prefix: str = "") -> list[Scheduled]:
        """Those that wait for their time and whose keys begin with `prefix`, soonest first. Before the start, and where
        this run has not called `post_every` again, also what earlier runs have left."""
        with self._inbox.lock:
            heaps = [heap.copy() for heap in self._heaps.values()]
        found = [one for one in self.keys.left_over() if one.schedule is self and one.key.startswith(prefix)]
        for heap in heaps:
            some = sorted(each for each in heap if each[2].key.startswith(prefix)) if prefix else heap
            found += (each[2] for each in itertools.islice(filter(_is_current, in_order(some)), limit))
        return heapq.nsmallest(limit, found, key=lambda one: self.unix_due_s(one) or 0.0)

    def read_keys(self) -> None:
        """Before the start: find what an earlier run has left that has a key."""
        for accepted, marks, _ in self._inbox.write_ahead.recovered():
            if marks.has_event and marks.key:
                self.keys.fired_ns[marks.key] = max(self.keys.fired_ns.get(marks.key, 0), marks.fired_ns)
            elif marks.key or (marks.timer and marks.attempt == 1):
                one = Scheduled(
                    self,
                    None,
                    wall=True,
                    next_ns=marks.due_ns,
                    repeats=stored_rule(marks, self._name),
                    key=marks.key or marks.timer,
                    line=b"" if marks.has_event else accepted.line,
                    context=self._inbox.write_ahead.context_of(marks),
                    is_redelivered=marks.has_event,
                    is_left_over=True,
                )
                one.accepted_seq, one.last_ns = accepted.seq, marks.last_ns
                other = self.keys.hold(one)
                # A crash came while the newer of two rhythms took the place of the older one, in another partition.
                if other is not None and other.is_rhythm:
                    other.cancel()

    def resume(self) -> None:
        """At the start: go on with the rhythms of earlier runs whose events are in the log."""
        for key, one in self.keys.all().items() if self.resumes else ():
            rule = one.repeats
            if rule is None or not (one.is_left_over and one.schedule is self) or is_without_event(one.line):
                continue
            try:
                event = self._inbox.write_ahead.decode(one.line)
            except JournalError as error:  # it is not declared, as in a release that has no use for it
                message = "%s: post_every(key=%r) does not go on; it stays in the journal, until cancel(%r)"
                tell(log, logging.ERROR, message, self._name, key, key, error=error, extra={"dispatcher": self._name})
                continue
            with self._inbox.lock:
                if one.status is not WAITING:  # another thread has replaced it
                    continue
                one.next_ns, one.last_ns = self._go_on(one, rule)
                one.event, one.is_left_over, one.is_redelivered = event, False, True
            self._push(one, is_new=True)

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
        one.context = self._inbox.write_ahead.context_of(marks)
        self._push(one, is_new=True)

    def free_key(self, key: str, accepted_seq: int) -> None:
        """Before the start: an event of an earlier run is queued, for its time has come."""
        one = self._left_over(key, accepted_seq)
        if one is not None:
            with self._inbox.lock:
                self._close(one, FIRED)

    def _left_over(self, key: str, accepted_seq: int) -> Scheduled | None:
        """What holds the key for that line of this log; None: nothing does."""
        holder = self.keys.get(key)
        is_that = holder is not None and holder.schedule is self and holder.accepted_seq == accepted_seq
        return holder if is_that else None

    def start(self) -> None:
        """From now on, events are posted. The thread that starts the dispatcher."""
        self._is_started = True

    def end(self) -> None:
        """Fire no more, and report what is left; in a write-ahead log it stays. Repeating it is harmless."""
        with self._inbox.lock:
            left = [entry[2] for heap in self._heaps.values() for entry in heap if _is_current(entry)]
            for one in left:
                self._close(one, LEFT)
            self._heaps = {False: [], True: []}
            self._has_ended = True
        if self._is_started:
            self._keep_rhythms(left)
        ends: list[Scheduled | Entry] = [one for one in left if not one.is_rhythm]
        ends += [entry for entry in self._overdue.take_all() if entry.state == NEW]
        self.left += len(ends)
        kept = [each.event for each in ends if each.accepted_seq]
        lost = [each.event for each in ends if not each.accepted_seq]
        self._tell_left(logging.INFO, kept, "the journal has {them}, and the next start schedules {them} again")
        self._tell_left(logging.WARNING, lost, "it is lost" if len(lost) == 1 else "they are lost")

    def _tell_left(self, level: int, events: list[Any], where: str) -> None:
        if events:
            some = ", ".join(map(text_of, events[:3])) + (", ..." if len(events) > 3 else "")
            them = "it" if len(events) == 1 else "them"
            fields = {"dispatcher": self._name, "count": len(events)}
            message, left = "%s: stop left %s; %s: %s", counted(len(events), "scheduled event")
            tell(log, level, message, self._name, left, where.format(them=them), some, extra=fields)

    def after_fork(self) -> None:
        """In a child process: what is scheduled is posted in the parent."""
        self._writing = threading.RLock()
        self.keys.after_fork()
        self._heaps = {False: [], True: []}
        self._count, self._is_started = 0, False
        self._overdue.take_all()

    def _context_of(self, event: Any) -> Context | None:
        return copy_context() if self._inbox.keeps_context(event) else None

    # -- adding --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _in_place_of(self, present: Scheduled | None) -> Iterator[Scheduled | None]:
        """The one to replace, which cannot fire again, unless the block raises; None: there is nothing to replace."""
        older = present if present is not None and present.schedule.claim(present) else None
        try:
            yield older
        except BaseException:
            if older is not None:
                older.schedule.give_back(older)
            raise

    def claim(self, one: Scheduled) -> bool:
        """Keep it from firing, for a newer one of its key; False: it is done, or another one has claimed it."""
        # As in a cancel.
        with self._writing if one.key and one.is_rhythm else nullcontext(), self._inbox.lock:
            if one.status is not WAITING:
                return False
            self._count -= not one.is_left_over
            one.status = CLAIMED
            return True

    def give_back(self, one: Scheduled) -> None:
        """The newer one could not be scheduled."""
        with self._inbox.lock:
            if one.status is not CLAIMED:
                return
            one.status = WAITING
        if not one.is_left_over:
            self._push(one, is_new=True)
            self._alarm.arm()

    def replaced(self, one: Scheduled, by: Scheduled) -> None:
        """It holds its key no longer.

        Raises:
            JournalError: it is in the log of another partition, or came at the same moment, and cannot be settled.
        """
        with self._inbox.lock:
            if one.status is WAITING:
                self._close(one, CANCELLED)
            elif one.status is CLAIMED:
                one.status = CANCELLED
        if one is by or by.schedule is not self or one.accepted_seq != by.replaces:
            self._settle(one, one.accepted_seq)
        else:
            if one.is_left_over:
                self._ended_early.add(one.accepted_seq)
            self._inbox.write_ahead.settle(one.accepted_seq)  # at any time: the line of the newer one names it

    def _settle(self, one: Scheduled, accepted_seq: int) -> None:
        if one.is_left_over:
            self._ended_early.add(accepted_seq)
        self._inbox.write_ahead.settle_now(accepted_seq)

    def _add(self, one: Scheduled, marks: Marks, older: Scheduled | None) -> Scheduled:
        """`marks` are of its line, if it needs one; `older` has its key, and is claimed."""
        inbox = self._inbox
        reason = inbox.closed_to()
        if reason:
            inbox.reject(reason)
            raise EventRefusedError(self._name, reason)
        if one.is_logged or (not one.is_rhythm and inbox.write_ahead.keeps(one.event)):
            if older is not None and older.schedule is self:
                one.replaces = older.accepted_seq
            ahead, marks = inbox.write_ahead, marks._replace(replaces=one.replaces)
            line = one.line or ahead.encode(one.event)
            one.accepted_seq = ahead.accept_line(line, ahead.marked(one.context, marks))
            if not one.accepted_seq:
                inbox.reject("journal")
                raise EventRefusedError(self._name, "journal")
        self._push(one, is_new=True)
        if one.key:
            for loser in filter(None, dict.fromkeys((older, self.keys.hold(one)))):
                loser.schedule.replaced(loser, one)
            if one.is_done():  # it has fired before it held its key
                self.keys.drop(one)
        self._alarm.arm()
        return one

    def _marks_of(self, one: Scheduled) -> Marks:
        """Of the line that a rhythm has in the log."""
        rule = one.repeats.arguments() if one.repeats is not None else None
        marks = Marks(due_ns=one.next_ns, key=one.key, rule=rule, last_ns=one.last_ns)
        return self._inbox.write_ahead.marked(one.context, marks)

    def _set_first(self, one: Scheduled, rule: FiringRule, first_ns: int | None, older: Scheduled | None) -> None:
        """When an event with a rule fires first: if the older one of its key has the same, when that would have."""
        if older is None or older.wall is not one.wall or not older.has_rhythm_of(rule):
            one.next_ns = rule.first(self._alarm.now_ns(one.wall), first_ns)
            return
        one.next_ns, one.last_ns = self._go_on(older, rule)

    def _go_on(self, one: Scheduled, rule: FiringRule) -> tuple[int, int]:
        """When what an earlier run has left, or an older one with the same rhythm, is due next, and was last posted."""
        next_ns, last_ns, fired_ns = one.next_ns, one.last_ns, self.keys.fired_ns.get(one.key, 0)
        if fired_ns >= next_ns:  # a crash came between the event and the next time
            next_ns, last_ns = rule.following(fired_ns), fired_ns
        return rule.going_on(next_ns, self._alarm.now_ns(one.wall), last_ns), last_ns

    def _keep_rhythms(self, left: list[Scheduled]) -> None:
        """At the end of a run: write what an earlier run has left, and has not fired, once more. Its lines would
        otherwise keep all segments from their own on."""
        kept = [one for one in left if one.is_rhythm and one.is_redelivered]
        for key, one in self.keys.all().items():
            if not (one.is_left_over and one.schedule is self):
                continue
            with self._inbox.lock:
                self._close(one, LEFT)
            if one.is_rhythm:
                kept.append(one)
                message = "%s: post_every(key=%r) was not called in this run; its rhythm stays, until cancel(%r)"
                tell(log, logging.INFO, message, self._name, key, key, extra={"dispatcher": self._name})
        if kept:
            lines = [(one.line, self._marks_of(one)._replace(replaces=one.accepted_seq)) for one in kept]
            for one in kept[: len(self._inbox.write_ahead.accept_lines(lines))]:
                self._inbox.write_ahead.settle(one.accepted_seq)

    def _push(self, one: Scheduled, *, is_new: bool) -> None:
        most_ns = one.repeats.jitter_ns if one.repeats is not None else 0
        with self._inbox.lock:
            self._count += is_new
            if not self._has_ended:
                one.order, one.delay_ns = next(self._order), int(random.random() * most_ns)
                heapq.heappush(self._heaps[one.wall], (one.next_ns + one.delay_ns, one.order, one))
            elif one.status is WAITING:  # it was fired, or added, meanwhile
                self._close(one, LEFT)

    def _close(self, one: Scheduled, status: str) -> None:
        """Under the lock: end its wait for its time."""
        one.status = status
        self._count -= not one.is_left_over
        self.keys.drop(one)

    # -- firing: the handler thread, or the time service's -------------------------------------------------------------

    def delay_ns(self) -> float:
        """The time until the first is due, or until the wall clock, which may be set, is to be read again."""
        by_wall_ns = self._first_delay_ns(True)
        if self._alarm.is_real() and by_wall_ns < NEVER:
            by_wall_ns = min(by_wall_ns, _WALL_LOOK_NS)
        return min(self._first_delay_ns(False), by_wall_ns)

    def _first_delay_ns(self, wall: bool) -> float:
        heap = self._heaps[wall]
        while heap and not _is_current(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] - self._alarm.now_ns(wall) if heap else NEVER

    def fire(self) -> bool:
        """Post the first that is due; False if none is."""
        self._follow_wall_clock()
        one = self._take_due(self._alarm.now_ns(False), self._alarm.now_ns(True))
        if one is None:
            return False
        try:
            self._fire(one)
        except Exception as error:  # of a factory, or of the journal
            message, fields = "%s: %s could not be posted", {"dispatcher": self._name}
            tell(log, logging.ERROR, message, self._name, text_of(one), error=error, extra=fields)
        return True

    def _follow_wall_clock(self) -> None:
        """After a step back of the wall clock, let no rhythm wait for longer than to its next time."""
        ahead_ns, before_ns = self._alarm.now_ns(True) - self._alarm.now_ns(False), self._ahead_ns
        self._ahead_ns = ahead_ns
        if ahead_ns >= before_ns - _SET_BACK_NS:
            return
        now_ns = self._alarm.now_ns(True)
        with self._inbox.lock:
            repeated = [(one, one.repeats) for *_, one in filter(_is_current, self._heaps[True]) if one.repeats]
        for one, rule in repeated:
            with self._writing:
                next_ns = rule.going_on(one.next_ns, now_ns, one.last_ns)
                if one.status is not WAITING or next_ns >= one.next_ns:
                    continue
                one.next_ns = next_ns
                self._push(one, is_new=False)
                if one.is_logged:
                    self._log_next(one)

    def _take_due(self, steady_ns: int, unix_ns: int) -> Scheduled | None:
        with self._inbox.lock:
            for wall, now_ns in ((False, steady_ns), (True, unix_ns)):
                heap = self._heaps[wall]
                while heap and (heap[0][0] <= now_ns or not _is_current(heap[0])):
                    entry = heapq.heappop(heap)
                    if _is_current(entry):
                        if entry[2].repeats is None:
                            self._close(entry[2], FIRED)
                        return entry[2]
        return None

    def _fire(self, one: Scheduled) -> None:
        rule = one.repeats
        if rule is None:
            self.fired += 1
            self._overdue.post(self._entry_of(one))
            return
        firing = rule.firing(one.next_ns, self._alarm.now_ns(one.wall), one.delay_ns)
        is_dropped = rule.misfire == "all" or (rule.misfire == "once" and firing.at_ns is None)
        if firing.skipped and is_dropped:
            message, fields = "%s: %s: %d missed times are not posted", {"dispatcher": self._name}
            tell(log, logging.WARNING, message, self._name, text_of(one), firing.skipped, extra=fields)
        recovered = self.keys.firings.get(one.key)
        is_queued = one.is_queued or (recovered is not None and recovered.is_queued)
        is_left_out = is_queued and firing.at_ns is not None and rule.misfire != "all"
        self.skipped += firing.skipped + is_left_out
        event, is_posted, accepted_seq = None, False, 0
        try:
            if firing.at_ns is not None and not is_left_out:
                event = one.event() if one.makes else one.event
        finally:
            is_posted, accepted_seq = self._move_on(one, event, firing)
        if not is_posted:
            return
        self.fired += 1
        target = self if one.place is None else one.place(event)
        one.is_queued = True
        context = one.context.copy() if one.context is not None else None
        delivery = Delivery(scheduled=one, context=context)
        target._overdue.post(Entry(target._inbox, event, delivery=delivery, accepted_seq=accepted_seq))

    def _entry_of(self, one: Scheduled) -> Entry:
        """The entry of an event that fires once."""
        delivery = None
        if one.context is not None or one.accepted_seq:
            order = self._inbox.write_ahead.next_order() if one.accepted_seq else 0
            delivery = Delivery(context=one.context, is_redelivered=one.is_redelivered, order=order)
        return Entry(self._inbox, one.event, delivery=delivery, accepted_seq=one.accepted_seq)

    def _move_on(self, one: Scheduled, event: Any, firing: Firing) -> tuple[bool, int]:
        """Wait for the next time. Returns whether the event is to be posted, and its accepted seq.

        With a key, first write the event to the log, and then the next time. The event is not posted if the journal has
        ended, or the schedule was cancelled or replaced meanwhile. The accepted seq is 0 if its class is not logged.
        """
        logs, accepted_seq, ahead = one.is_logged, 0, self._inbox.write_ahead
        keeps = logs and event is not None and ahead.keeps(event)
        writing = self._writing if logs else nullcontext()
        with writing:  # a cancel waits for this, and then finds the line of the next time
            with self._inbox.lock:
                if one.status is not WAITING:
                    return False, 0
                one.next_ns = firing.next_ns
                if event is not None and firing.at_ns is not None:
                    one.last_ns = firing.at_ns
            try:
                if keeps:
                    marks = Marks(key=one.key, fired_ns=one.last_ns)
                    accepted_seq = ahead.accept(event, ahead.marked(one.context, marks))
            finally:
                if logs:
                    self._log_next(one)
                if one.status is WAITING:
                    self._push(one, is_new=False)
        return event is not None and (accepted_seq != 0 or not keeps), accepted_seq

    def _log_next(self, one: Scheduled) -> None:
        """Replace the line of a rhythm, which has the time of its next firing."""
        marks = self._marks_of(one)._replace(replaces=one.accepted_seq)
        accepted_seq = self._inbox.write_ahead.accept_line(one.line, marks)
        if not accepted_seq:  # the disk has failed, and the journal has ended
            return
        with self._inbox.lock:
            replaced, one.accepted_seq = one.accepted_seq, accepted_seq
            one.is_redelivered = False  # the line is of this run
            is_cancelled = one.status is CANCELLED  # by a `__del__` that has run on this thread
        self._inbox.write_ahead.settle(replaced)
        if is_cancelled:
            self._inbox.write_ahead.settle(accepted_seq)


def _is_current(entry: tuple[int, int, Scheduled]) -> bool:
    """Whether the entry of a heap is the one by which that fires. Under the lock, or a look."""
    return entry[2].status is WAITING and entry[2].order == entry[1]
