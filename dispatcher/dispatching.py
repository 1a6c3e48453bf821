"""The default action of a dispatcher: take a batch of events from the queue and hand each to its handler.

Everything here is the handler thread's, and read by others (invariant 1).

Times: an event is timed singly if all have to be, if handlers are slow, so that it costs little, or if its post noted
the time. Of other events the whole batch is timed, with two looks at the clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat, starmap
from operator import length_hint
from time import perf_counter_ns, time_ns
from types import FrameType
from typing import Any, Final

from dispatcher.config import DispatcherConfig
from dispatcher.journal.format.texts import describe, encode_payload
from dispatcher.journal.writer import JournalWriter
from dispatcher.mailbox.processor import MailboxController
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.monitor import SIZE_STEP
from dispatcher.queue.event_queue import STOPPED, EventQueue, InQueue, QueuedEvent, Times
from dispatcher.routes import Route, RoutingTable
from dispatcher.stats import Histogram

_NOTHING: Final = object()
"""No event's type."""
_FLOOD: Final = 64
"""Events in a batch from which on it can be the sign of a flood."""
_QUICK_NS: Final = 10_000
"""Handlers that are quicker than this in a flood are not timed singly any more."""
_SLOW_NS: Final = 20_000
"""Handlers that take longer than this are."""
_STAMP_EVERY_NS: Final = 1_000_000
"""Not more than one post in this time notes when it was, unless all have to."""


class BatchDispatching:
    """Called with each turn of the mailbox loop. `on_empty` is called instead if nothing is queued.

    `on_error(event, error, route)` decides what follows when a handler raised, which is counted by then.
    """

    def __init__(
        self,
        name: str,
        queue: EventQueue,
        mailbox: TaskMailbox,
        routes: RoutingTable,
        config: DispatcherConfig,
        *,
        times: Times,
        journal: JournalWriter | None,
        clock_ns: Callable[[], int] | None,
        on_empty: Callable[[MailboxController], bool],
        on_error: Callable[[Any, BaseException, Route], None],
        on_size: Callable[[int, int | None], None],
    ) -> None:
        self._name = name
        self._queue = queue
        self._entries, self._popleft = queue.entries, queue.entries.popleft
        self._flags, self._give_back = queue.flags, queue.room.permits.append
        self._room, self._room_flags = queue.room, queue.room.flags
        self._parked = mailbox._parked
        self._park, self._unpark = mailbox._parking.acquire, mailbox._parking.release
        self._bounded = queue.capacity is not None
        self._mailbox = mailbox
        self._routes = routes
        self._types = routes.routes
        self.journal = journal
        self._clock_ns = clock_ns
        self._unix_offset_ns = time_ns() - perf_counter_ns()  # real time that never runs backwards
        self._on_empty = on_empty
        self._on_error = on_error
        self._on_size = on_size
        capacity = config.queue_capacity
        # A bounded queue is looked at more often, so that a warning of a full one does not come late.
        self._batch_size = min(config.batch_size, max(1, capacity // 2)) if capacity else config.batch_size
        self.measures = times != "none"
        self._samples = times == "sampled"
        # How the next batch is timed. Where each post notes its time, each event is timed singly in any case.
        self._singly = times != "all"
        routes.add_internal(InQueue.ENTRY, self._dispatch_one)

        # A batch is counted in `taken` before its first event leaves the queue and in `done` after its last handler has
        # returned, so at no moment is an event in neither (invariant 3).
        self.taken = 0
        self.done = 0
        self.since_ns = 0  # when the current handler started, of perf_counter_ns; in a flood, the batch; 0: none runs
        # Time in the waits that were noted, and when one began that was not, or 0; replaced as one, so that nobody who
        # reads them sees a wait twice. It is noted after the batch that ends it, which began at _waits_until_ns.
        self._waits: tuple[int, int] = (0, 0)
        self._waits_until_ns = 0
        self.queue_time = Histogram()
        self.handling_time = Histogram()
        self._timed = 0  # events of this batch that were timed singly
        self._timed_ns = 0  # their time in the handlers
        self._pace_ns = _QUICK_NS  # of an event in the last quick batch
        self._stamped_ns = 0
        self.redelivered_upto = 0  # accepted seqs up to this one were redelivered; set before the start
        self.in_hand_seq = 0  # accepted seq of the event that is being handled; 0: not in a write-ahead log

    def __call__(self, controller: MailboxController) -> None:
        """Dispatch what is queued, up to the batch size, or until there is mail; if nothing is, wait for it first.

        The hot path: no call for each event but the handler's, no lock, no clock; one count. It is one function because
        each call between the wait and the handler is felt in the time to wake up.
        """
        entries, flags, mailbox, popleft = self._entries, self._flags, self._mailbox, self._popleft
        types, bounded, room, give_back = self._types, self._bounded, self._room_flags, self._give_back
        event: Any = None
        # A run of events of one type looks its route up once, and keeps the handler that was found until the batch
        # ends: who changes registrations sends a mail, too.
        known: Any = _NOTHING
        before = missing = 0
        parked = self._parked
        # Popped by starmap: no call from Python for each event, and a handler that raises does not end it.
        turns = repeat((), 1)
        batch: Iterator[Any] = starmap(popleft, turns)
        # Once STOPPED they are taken elsewhere, under the queue's lock.
        count = len(entries) if flags.phase < STOPPED else 0
        waited = not count
        if waited and not self._on_empty(controller):
            # An idle action may have posted: another turn of the loop would cost as much as some of these events.
            count = len(entries) if flags.phase < STOPPED else 0
            if not count or mailbox._new_mail:
                return
            waited = False
        if waited:
            flags.woken_ns = 0
            self._waits = (self._waits[0], perf_counter_ns())
            parked.append(self._unpark)
            flags.alert = True
            # Only now look again: who appended before saw no alert; who appends from here on wakes us.
            if entries or mailbox._new_mail or self._queue.is_ending():
                mailbox.unpark()
            self._park()
            if parked:  # a wake-up that was not meant for this wait
                parked.clear()
            if flags.alert:
                self._queue.calm()
            count = len(entries)
            if not count or mailbox._new_mail or flags.phase >= STOPPED:
                self._note_wait(perf_counter_ns())
                return
        if count > 1:
            if count > self._batch_size:
                if count >= SIZE_STEP:
                    self._on_size(count, self._queue.remaining())
                count = self._batch_size
            turns = repeat((), count)
            batch = starmap(popleft, turns)
        self.taken += 1
        started_ns = self.since_ns = self._waits_until_ns = perf_counter_ns()
        try:
            if self.journal is not None:
                missing = self._dispatch_journaled(batch, self.journal)
                batch = iter(())
            elif count > 1 and self._singly:
                missing = self._dispatch_singly(batch)
                batch = iter(())
            while True:
                try:
                    for event in batch:
                        if bounded:
                            if room.closer:
                                self._room.give_back()
                            else:
                                give_back(None)
                                if room.closer:  # set since, by somebody who may not have seen this one
                                    self._room.tell()
                        event_type = event.type
                        if event_type is not known:
                            found = types.get(event_type._name_)
                            if found is None or found.event_type is not event_type:
                                found = self._routes.find(event_type)
                            route, handle, known = found, found.handle, event_type
                        handle(event)
                        event = None  # before it is counted: who reads both must not see it twice
                        route.handled += 1
                        if mailbox._new_mail:  # a hint, read without a lock: mail does not wait for the whole batch
                            break
                    else:
                        # A handler may have posted what comes next, one event at a time: a turn for each would cost
                        # more than the event.
                        more = len(entries)
                        if more and not self._singly and before + count < self._batch_size and flags.phase < STOPPED:
                            before += count
                            count = min(more, self._batch_size - before)
                            turns = repeat((), count)
                            batch = starmap(popleft, turns)
                            continue
                    break
                except BaseException as error:
                    if event is None and type(error) is IndexError:  # somebody else has emptied the queue
                        missing = 1
                        break
                    if type(event) is QueuedEvent:  # not of a handler: that is dealt with where the entry is dispatched
                        raise
                    failed, event = event, None
                    self._fail(failed, error)
                    if mailbox._new_mail:
                        break
        finally:
            self.since_ns = 0
            self.done += 1
        if waited:
            self._note_wait(started_ns)
        self._note_times(before + count - length_hint(turns) - missing, started_ns)

    def dispatch_last(self) -> None:
        """After STOPPED: what came in before that was visible, and what the handlers post to finish."""
        self.taken += 1
        while (entry := self._queue.take_last()) is not None:
            self.since_ns = perf_counter_ns()
            try:
                self._dispatch_one(entry)
            finally:
                self.since_ns = 0
        self.done += 1

    def idle_ns(self) -> int:
        """Time spent waiting so far. Any thread."""
        waited_ns, since_ns = self._waits
        if not since_ns:
            return waited_ns
        until_ns = self._waits_until_ns
        return waited_ns + (until_ns if until_ns > since_ns else perf_counter_ns()) - since_ns

    def _note_wait(self, until_ns: int) -> None:
        waited_ns, since_ns = self._waits
        self._waits = (waited_ns + until_ns - since_ns, 0)

    def in_hand(self, frame: FrameType | None) -> Any:
        """The event that is being handled, given the handler thread's innermost frame; None if there is none."""
        while frame is not None:
            if frame.f_code in _HOLDING:
                return frame.f_locals.get("in_hand")
            if frame.f_code is BatchDispatching.__call__.__code__:
                event = frame.f_locals.get("event")
                return None if type(event) is QueuedEvent else event  # that one is in the hands of _dispatch_one
            frame = frame.f_back
        return None

    def _dispatch_singly(self, entries: Iterable[Any]) -> int:
        """Dispatch and time each event, or until there is mail; returns 1 if somebody else has emptied the queue."""
        mailbox = self._mailbox
        try:
            for entry in entries:
                if self._bounded:
                    self._room.give_back()
                self._dispatch_one(entry)
                if mailbox._new_mail:
                    break
        except IndexError:  # what handlers raise does not come here
            return 1
        return 0

    def _dispatch_journaled(self, entries: Iterable[Any], journal: JournalWriter) -> int:
        """As `_dispatch_singly`, with a row of the journal for each event.

        The hot path of a journaled dispatcher: one function, for each call in it would cost as much as the row does.
        """
        mailbox, types, queue, room = self._mailbox, self._types, self._queue, self._room if self._bounded else None
        clock_ns, offset_ns = self._clock_ns, self._unix_offset_ns
        rows = journal.rows
        queue_counts, handling_counts = self.queue_time.counts, self.handling_time.counts
        queue_total = handling_total = timed = 0
        flush_due_ns = journal.flush_due_ns
        seq = journal.seq
        in_hand: Any = None
        try:
            for entry in entries:
                if room is not None:
                    room.give_back()
                in_hand, enqueued_ns, accepted_seq = entry, 0, 0
                if type(entry) is QueuedEvent:
                    if entry.key is not None:
                        queue.close(entry)
                    in_hand, enqueued_ns, accepted_seq = entry.event, entry.enqueued_ns, entry.accepted_seq
                event = in_hand
                started_ns = self.since_ns = perf_counter_ns()
                at = clock_ns() if clock_ns is not None else started_ns + offset_ns
                seq += 1
                journal.seq, journal.at = seq, at
                if accepted_seq:
                    self.in_hand_seq = accepted_seq
                error = None
                try:
                    event_type = event.type
                    route = types.get(event_type._name_)
                    if route is None or route.event_type is not event_type:
                        route = self._routes.find(event_type)
                    route.handle(event)
                    in_hand = None  # before it is counted: who reads both must not see it twice
                    route.handled += 1
                    kind = route.journal_kind
                    if kind < 0:
                        kind = route.journal_kind = journal.kind(self._name, route.event_class, route.name, "handled")
                except BaseException as raised:
                    in_hand = None
                    kind, error = self._fail_journaled(event, raised, journal)
                finished_ns = perf_counter_ns()
                handling_ns = finished_ns - started_ns
                queue_ns = started_ns - enqueued_ns if enqueued_ns and enqueued_ns < started_ns else 0
                handling_counts[handling_ns.bit_length()] += 1
                queue_counts[queue_ns.bit_length()] += 1
                timed, handling_total, queue_total = timed + 1, handling_total + handling_ns, queue_total + queue_ns
                try:
                    entity, payload = getattr(event, "entity", None), getattr(event, "payload", None)
                    if entity is not None and type(entity) is not str:
                        entity = str(entity)
                    if payload is not None:
                        payload = encode_payload(payload)
                except Exception as unreadable:  # of a property, or a __str__: the event still counts
                    entity, payload = None, encode_payload({"unreadable": describe(unreadable)})
                redelivered = 0 < accepted_seq <= self.redelivered_upto
                # An EventRow, as a plain tuple.
                rows.append((kind, entity, at, queue_ns, handling_ns, error, payload, accepted_seq, redelivered))
                if finished_ns >= flush_due_ns:
                    journal.flush()
                    flush_due_ns = journal.flush_due_ns
                if mailbox._new_mail:
                    break
        except IndexError:  # somebody else has emptied the queue; what handlers raise does not come here
            if in_hand is not None:
                raise
            return 1
        finally:
            in_hand = None
            self.in_hand_seq = 0
            self._timed += timed
            self._timed_ns += handling_total
            self.handling_time.total_ns += handling_total
            self.queue_time.total_ns += queue_total
        if len(rows) >= journal.config.buffer_rows:
            journal.flush()
        return 0

    def _fail_journaled(self, event: Any, raised: BaseException, journal: JournalWriter) -> tuple[int, str]:
        """Count an event whose handler raised; returns its kind for the journal, and what is to be said of it."""
        outcome, error = self._fail(event, raised)
        event_type = getattr(event, "type", None)
        name = getattr(event_type, "_name_", None) or str(event_type)
        kind = journal.kind(self._name, event_type.__class__.__name__, name, outcome)
        return kind, describe(error)

    def _dispatch_one(self, entry: Any) -> None:
        """Dispatch and time one event."""
        if self.journal is not None:
            self._dispatch_journaled((entry,), self.journal)
            return
        event, enqueued_ns = entry, 0
        if type(entry) is QueuedEvent:
            if entry.key is not None:
                self._queue.close(entry)
            event, enqueued_ns = entry.event, entry.enqueued_ns
        started_ns = self.since_ns = perf_counter_ns()
        in_hand = event
        try:
            event_type = event.type
            route = self._types.get(event_type._name_)
            if route is None or route.event_type is not event_type:
                route = self._routes.find(event_type)
            route.handle(event)
            in_hand = None  # before it is counted: who reads both must not see it twice
            route.handled += 1
        except BaseException as raised:
            in_hand = None  # noqa: F841 - read from this frame by who looks at the thread
            self._fail(event, raised)
        finished_ns = self.since_ns = perf_counter_ns()
        handling_ns = finished_ns - started_ns
        self._timed += 1
        self._timed_ns += handling_ns
        if not self.measures:
            return
        if enqueued_ns:
            self.queue_time.observe(max(0, started_ns - enqueued_ns))
        self.handling_time.observe(handling_ns)

    def _fail(self, event: Any, error: BaseException) -> tuple[str, BaseException]:
        """Count an event whose handler raised, or that has none (invariant 6); returns the journal's account of it."""
        route = self._routes.find(getattr(event, "type", None))
        if not route.registered:
            error = self._routes.unregistered(getattr(event, "type", None))
        route.failed += 1
        self._on_error(event, error, route)
        return "failed" if route.registered else "unregistered", error

    def _note_times(self, events: int, started_ns: int) -> None:
        """After a batch: time the events that were not timed singly, and choose how the next ones are."""
        finished_ns = perf_counter_ns()
        woken_ns = self._flags.woken_ns
        if woken_ns and self._samples:
            self._flags.woken_ns = 0
            self.queue_time.observe(started_ns - woken_ns)
        bare = events - self._timed
        if bare > 0:
            bare_ns = max(0, finished_ns - started_ns - self._timed_ns)
            mean_ns = bare_ns // bare
            if mean_ns <= _QUICK_NS:
                self._pace_ns = mean_ns
            # What the usual pace does not explain is put on one event: count and sum are exact, the rest is likely.
            pace_ns = min(mean_ns, self._pace_ns)
            if self.measures:
                self.handling_time.observe(pace_ns, bare - 1)
                self.handling_time.observe(bare_ns - pace_ns * (bare - 1))
            self._singly = mean_ns > _SLOW_NS
        elif events >= _FLOOD and self._timed_ns < _QUICK_NS * events:
            self._singly = False
        self._timed = self._timed_ns = 0
        if finished_ns - self._stamped_ns >= _STAMP_EVERY_NS:
            self._stamped_ns = finished_ns
            self._queue.stamp_again()


_HOLDING: Final = (BatchDispatching._dispatch_one.__code__, BatchDispatching._dispatch_journaled.__code__)
"""What has the event in its hands in a local variable `in_hand`."""


def frame_of(thread_ident: int | None) -> FrameType | None:
    """The innermost frame of a thread; None if it has ended or not started."""
    return sys._current_frames().get(thread_ident or 0)
