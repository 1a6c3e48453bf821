"""Dispatching with a row in the journal for each event.

A row's time is a reading of `perf_counter_ns`, which the dispatcher takes anyway, plus the `offset_ns` of a `RowClock`.
The two clocks of the system run at the same rate, so the offset is constant until the system clock is set, or the
machine was suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final

from dispatcher.dispatching.deliveries import Answers
from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.lanes import Call, EventTaken, Handling
from dispatcher.dispatching.monitor import MAIL_TYPE, SlowRuns, mail_text
from dispatcher.dispatching.times import BatchProgress, EventTimes
from dispatcher.journal.format.event_codec import encode_payload
from dispatcher.journal.format.schema import EventRow, Row
from dispatcher.journal.writer import JournalWriter
from dispatcher.mailbox.mail import Mail
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.queue.alarm import Alarm
from dispatcher.queue.entry import Entry
from dispatcher.queue.inbox import Inbox
from dispatcher.routes import Route, RoutingTable
from dispatcher.util.foreign import class_name, describe, id_text, type_name, type_of

_LOOK_EVERY_NS: Final = 10_000_000
"""Looks at the system clock are this far apart, because a batch may be one event."""
_BACK_NS: Final = 10_000_000
"""A smaller step back is left alone: rows go on at most this far ahead of the system clock."""
_LOOKS: Final = 3


class RowClock:
    """Follows the system clock. One thread at a time: the handler thread, once it runs."""

    def __init__(self) -> None:
        self.offset_ns: int = time.time_ns() - time.perf_counter_ns()
        self.due_ns: int = 0  # of perf_counter_ns: when to follow the system clock again

    def follow(self, now_ns: int) -> bool:
        """Take over a step forward of the system clock; returns whether it was set back.

        `now_ns`: perf_counter_ns. Set back, this clock goes on from where it is, so that no row is earlier than the one
        before, and stays due until `go_back`.
        """
        # In this order, an interruption between the two makes the system clock look late, never early.
        offset_ns = time.time_ns() - time.perf_counter_ns()
        if offset_ns > self.offset_ns:
            self.offset_ns = offset_ns
        if offset_ns >= self.offset_ns - _BACK_NS or self._measure() >= self.offset_ns - _BACK_NS:
            self.due_ns = now_ns + _LOOK_EVERY_NS
            return False
        return True

    def go_back(self) -> None:
        """Take over a step back. Between two segments only: within one, rows never go back."""
        self.offset_ns = self._measure()

    def _measure(self) -> int:
        """The present offset. An interruption makes one of the looks too low, hardly all of them."""
        return max(time.time_ns() - time.perf_counter_ns() for _ in range(_LOOKS))


class JournaledDispatching:
    """Hands events to their handlers and writes their rows. Handler thread.

    `clock_ns` is the clock of the run (Unix ns); None: real time, which `RowClock` keeps in order.
    """

    def __init__(
        self,
        name: str,
        queue: Inbox,
        mailbox: TaskMailbox,
        routes: RoutingTable,
        *,
        progress: BatchProgress,
        times: EventTimes,
        slow: SlowRuns,
        errors: ErrorPolicy,
        answers: Answers,
        journal: JournalWriter,
        clock_ns: Callable[[], int] | None,
        alarm: Alarm,
    ) -> None:
        self._alarm = alarm
        self._name = name
        self._mailbox = mailbox
        self._routes = routes
        self._room = queue.room if queue.room.capacity is not None else None
        self._progress = progress
        self._times = times
        self._slow = slow
        self._errors = errors
        self._answers = answers
        self._journal = journal
        self._clock_ns = clock_ns
        self._row_clock = RowClock()  # used where `clock_ns` is None; handler thread
        # Rows of coroutines that were found to have ended while a handler ran; handler thread.
        self._late: list[tuple[Row, Call]] = []
        self._mail: Mail | None = None  # the last one that made a transition; handler thread
        self._mail_seq = 0  # of its row; handler thread

    def dispatch(self, entries: Iterable[Any]) -> bool:
        """Dispatch and time each event, until there is mail. False: another thread has emptied the queue.

        The hot path, so one function. See test_loop_contract.py."""
        mailbox, routes, find, alarm = self._mailbox, self._routes.by_type, self._routes.find, self._alarm
        progress, times, journal, room = self._progress, self._times, self._journal, self._room
        clock_ns, offset_ns = self._clock_ns, self._follow_clock(progress.since_ns)
        rows, slow_ns, answers = journal.rows, self._slow.limit_ns, self._answers
        queue_counts, handling_counts = times.queue_time.counts, times.handling_time.counts
        queue_total = handling_total = queue_before = handling_before = 0
        last: Route | None = None
        flush_due_ns, seq, is_whole = journal.flush_due_ns, journal.seq, True
        event: Any = None
        entry: Entry | None = None
        journal.event_thread = get_ident()
        try:
            for event in entries:
                if room is not None:
                    room.give_back()
                progress.entry, enqueued_ns, accepted_seq, redelivered = event, 0, 0, False
                if type(event) is tuple:  # a stamped entry: no event is queued bare
                    event, enqueued_ns = event[0], event[1]
                elif type(event) is Entry:
                    enqueued_ns, entry = event.enqueued_ns, event.take()
                    progress.entry, event = entry, None
                    if entry is None:  # it was withdrawn
                        continue
                    event, accepted_seq = entry.event, entry.accepted_seq
                    if entry.ask is None and entry.delivery is None:  # its row is its end
                        entry = None
                started_ns = progress.since_ns = perf_counter_ns()
                at = clock_ns() if clock_ns is not None else started_ns + offset_ns
                seq += 1
                journal.seq, journal.at = seq, at
                error = None
                try:
                    event_type = event.type
                    route = routes.get(id(event_type)) or find(event_type)
                    if entry is None:
                        route.handle(event)
                        route.handled += 1
                    else:
                        redelivered = entry.is_redelivered
                        answers.handle(entry, route)
                    kind = route.journal_kind
                    if kind < 0:
                        kind = self._handled_kind(route)
                except EventTaken:  # its row comes once its coroutine has ended; or it was withdrawn
                    seq -= 1
                    journal.seq, event, entry, progress.entry = seq, None, None, None
                    if mailbox.new_mail:
                        break
                    continue
                except BaseException as raised:
                    kind, error, accepted_seq = self._failed(event, raised, accepted_seq)
                    route = find(type_of(event))
                    if self._errors.is_ending:
                        flush_due_ns = 0
                progress.entry = None
                finished_ns = perf_counter_ns()
                handling_ns = finished_ns - started_ns
                queue_ns = started_ns - enqueued_ns if enqueued_ns and enqueued_ns < started_ns else 0
                handling_counts[handling_ns.bit_length()] += 1
                queue_counts[queue_ns.bit_length()] += 1
                if route is not last:  # the sums of a type are added once for its events in a row
                    if last is not None:
                        last.handling_ns += handling_total - handling_before
                        last.queue_ns += queue_total - queue_before
                    last, handling_before, queue_before = route, handling_total, queue_total
                handling_total, queue_total = handling_total + handling_ns, queue_total + queue_ns
                if handling_ns > slow_ns:
                    self._slow.event_ended(route, event, started_ns, finished_ns)
                try:
                    entity, payload = getattr(event, "entity", None), getattr(event, "payload", None)
                    if entity is not None and type(entity) is not str:
                        entity = id_text(entity)
                    if payload is not None:
                        payload = encode_payload(payload)
                except BaseException as unreadable:  # by a property or a __str__; the event still gets its row
                    entity, payload = None, encode_payload({"unreadable": describe(unreadable)})
                # An EventRow.
                rows.append((kind, entity, at, queue_ns, handling_ns, error, payload, accepted_seq, redelivered))
                event = entry = None  # an error that an ask gets refers to this frame
                if finished_ns >= flush_due_ns:
                    self._flush()
                    flush_due_ns = journal.flush_due_ns
                    offset_ns = self._follow_clock(finished_ns)
                if mailbox.new_mail or finished_ns >= alarm.next_ns:
                    break
        except IndexError:  # another thread has emptied the queue; errors of handlers do not get here
            if event is not None:
                raise
            is_whole = False
        finally:
            journal.event_thread = 0
            if last is not None:
                last.handling_ns += handling_total - handling_before
                last.queue_ns += queue_total - queue_before
        self._end_batch()
        return is_whole

    def _end_batch(self) -> None:
        if self._late:
            self._add_late()
        self._answers.give_waiting()
        if len(self._journal.rows) >= self._journal.config.buffer_rows:
            self._journal.flush()

    def _handled_kind(self, route: Route) -> int:
        """Get the journal's number for the route's handled events, and keep it in the route."""
        kind = self._journal.kind(self._name, route.event_class, route.name, "handled")
        route.journal_kind = kind
        return kind

    def _follow_clock(self, now_ns: int) -> int:
        """Take over a step of the system clock, between two events; returns what to add to perf_counter_ns.

        Called before a batch and with each flush, so that no event that begins 20 ms after a step has the old time.
        After a step back, the next rows are in a new segment.

        Raises:
            JournalError: the disk failed, and the journal's policy is `stop`.
        """
        real = self._row_clock
        if self._clock_ns is None and now_ns >= real.due_ns and real.follow(now_ns):
            self._journal.flush()
            self._journal.roll()
            real.go_back()
        return real.offset_ns

    # -- events of coroutines ----------------------------------------------------------------------------------------

    def now_ns(self, perf_ns: int) -> int:
        """The time on the clock of the run at that time of perf_counter_ns, which is now."""
        if self._clock_ns is not None:
            return self._clock_ns()
        if perf_ns >= self._row_clock.due_ns:
            self._row_clock.follow(perf_ns)
        return perf_ns + self._row_clock.offset_ns

    def add_row(self, call: Call, outcome: str, error: BaseException | None, *, is_nested: bool) -> None:
        """The row of an event whose coroutine has ended. `is_nested`: a handler runs, whose row comes first."""
        route, journal = call.route, self._journal
        kind = journal.kind(self._name, route.event_class, route.name, outcome)
        queue_ns = max(0, call.started_ns - call.enqueued_ns) if call.enqueued_ns else 0
        handling_ns = max(0, call.ended_ns - call.started_ns)
        text = describe(error) if error is not None else None
        entity, payload = _about(call.event)
        row = (kind, entity, call.at, queue_ns, handling_ns, text, payload, call.accepted_seq, call.is_redelivered)
        self._late.append((row, call))
        if not is_nested:
            self._add_late()
        elif self._errors.is_ending:  # not later: the handler that runs may never return
            journal.settle(call.accepted_seq)
            self._flush(amid_event=True)

    def _add_late(self) -> None:
        """Append the rows of ended coroutines. Between events."""
        for row, call in self._late:
            handling = call.handling
            # Transitions first, as with any event: the journal's own thread may write what is there at any moment.
            self._begin_row(row)
            if handling is not None:
                handling.seq = self._journal.seq  # before the transitions are taken: see Handling
                self.add_transitions(handling)
            self._journal.rows.append(row)
        self._late.clear()
        if self._errors.is_ending:
            self._flush()

    def _flush(self, *, amid_event: bool = False) -> None:
        """Write the rows, then end what an `on_error` ends: an event that ends the process must not come again."""
        if not self._errors.is_ending:
            self._journal.flush()
            if not amid_event:
                self._answers.give_waiting()
            return
        try:
            self._journal.flush_to_disk(amid_event=amid_event)
        finally:
            self._errors.end()

    def add_transitions(self, handling: Handling) -> None:
        """Record the transitions that an event in a coroutine has made since the last time, under its seq."""
        journal, made = self._journal, len(handling.transitions)
        for machine, from_state, event_type, to_state, valid, entity, at, data in handling.transitions[:made]:
            kind = journal.transition_kind(machine, from_state, event_type, to_state, valid=valid)
            journal.transitions.append((kind, handling.seq, entity, at, data))
        del handling.transitions[:made]

    # -- between events ------------------------------------------------------------------------------------------------

    def run_nested(self, mail: Mail) -> None:
        """Run a mail to which a handler or a mail yields: it is no part of the event."""
        journal = self._journal
        thread, journal.event_thread = journal.event_thread, 0
        try:
            mail.run()
        finally:
            journal.event_thread = thread

    def between_events(self, mail: Mail | None) -> JournalWriter:
        """What a transition belongs to that this mail makes, or None, the idle action: a row like an event's."""
        journal = self._journal
        if mail is not self._mail or journal.seq != self._mail_seq:
            kind = journal.kind(self._name, *MAIL_TYPE, "handled")
            payload = encode_payload({"mail": mail_text(mail)}) if mail is not None else None
            row = EventRow(kind, started_at=self.now_ns(perf_counter_ns()), payload=payload)
            self._begin_row(row)
            self._journal.rows.append(row)
            self._mail, self._mail_seq = mail, journal.seq
        return journal

    def _begin_row(self, row: Row) -> None:
        self._journal.seq, self._journal.at = self._journal.seq + 1, row[2]

    def flush_if_due(self, *, waits: bool) -> None:
        """Between events, after `add_row`: flush as `dispatch` does. `waits`: no event is handled until more rows come.

        Raises:
            JournalError: the disk failed, and the journal's policy is `stop`.
        """
        journal, now_ns = self._journal, perf_counter_ns()
        self._follow_clock(now_ns)
        if len(journal.rows) >= journal.config.buffer_rows or now_ns >= journal.flush_due_ns:
            journal.flush()
        elif waits:
            journal.idle()
        self._answers.give_waiting()

    def _failed(self, event: Any, raised: BaseException, accepted_seq: int) -> tuple[int, str, int]:
        """Report a failed event; returns its kind for the journal, the text of its error, and the line in the log that
        ends with its row: none, if another attempt follows."""
        outcome, error = self._errors.failed(event, raised, ends_later=True)
        event_type = type_of(event)
        kind = self._journal.kind(self._name, class_name(event_type), type_name(event_type), outcome)
        return kind, describe(error), accepted_seq if outcome != "retried" else 0


def _about(event: Any) -> tuple[str | None, Any]:
    """The event's entity and payload for its row."""
    try:
        entity, payload = getattr(event, "entity", None), getattr(event, "payload", None)
        return (
            id_text(entity) if entity is not None else None,
            encode_payload(payload) if payload is not None else None,
        )
    except BaseException as unreadable:  # by a property or a __str__; the event still gets its row
        return None, encode_payload({"unreadable": describe(unreadable)})
