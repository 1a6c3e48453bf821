"""When records are late: their timeouts and their deadlines. The engine's thread only.

A record's timeout begins when its first call is sent, as Flink's does, and is put off while that call waits in the host
for a slot or a thread. A record that shares a call has a timeout from when that call is sent, or from its own intake if
that is later. A deadline begins at the intake. All records of an operator have the same timeout and deadline, so each
kind comes due in the order in which it began: one queue and one timer serve any number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter
from time import perf_counter_ns
from typing import Any, Literal, TypeAlias

from pipeline.streaming.calls.call_path import HostSlots
from pipeline.streaming.calls.record_call import RecordCall
from pipeline.streaming.calls.sharing import SharedCalls
from pipeline.streaming.calls.thread import CallTimer, CallTimers
from pipeline.streaming.options import AsyncOptions

Bound: TypeAlias = Literal["timeout", "deadline"]


class CallDeadlines:
    """The records that are not done, and when they are due: each `after_ms` after it was added.

    `timers` fires on the engine's thread, and `on_late` gets all records that are due by then. With an `after_ms` of 0,
    none is ever due; unfinished records are tracked even so. `field`: where a record keeps its time.
    """

    __slots__ = ("_after_ms", "_due_of", "_field", "_now", "_on_late", "_sweep_at", "_timer", "_timers", "_waiting")

    def __init__(
        self,
        timers: CallTimers,
        after_ms: int,
        on_late: Callable[[list[RecordCall]], None],
        field: str,
    ) -> None:
        self._timers = timers
        self._after_ms = after_ms
        self._on_late = on_late
        self._field = field
        self._due_of: Callable[[RecordCall], int] = attrgetter(field)
        self._now = timers.current_processing_time
        self._waiting: deque[RecordCall] = deque()  # the first due first; may include finished records
        self._timer: CallTimer | None = None  # for the first of _waiting, or for an earlier one that is gone
        self._sweep_at = 256

    def add(self, records: Collection[RecordCall]) -> None:
        """Add records, which are due at the same time."""
        waiting = self._waiting
        while waiting and waiting[0].is_done:
            waiting.popleft()  # left until the next sweep, it would burden the garbage collector
        waiting.extend(records)
        if self._after_ms > 0 and records:
            due_ms, field = self._now() + self._after_ms, self._field
            for record in records:
                setattr(record, field, due_ms)
            if self._timer is None:
                self._arm(due_ms)
        if len(waiting) >= self._sweep_at:
            # A sweep waits until the queue has doubled, so it costs O(1) per record.
            self._waiting = deque(self)
            self._sweep_at = max(256, 2 * len(self._waiting))

    def __iter__(self) -> Iterator[RecordCall]:
        """The unfinished records, the first due first."""
        return (record for record in self._waiting if not record.is_done)

    def clear(self) -> None:
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due_ms: int) -> None:
        self._timer = self._timers.register_timer(due_ms, self._fire)

    def _fire(self, due_ms: int) -> None:
        self._timer = None
        now_ms = max(due_ms, self._now())
        waiting, due_of = self._waiting, self._due_of
        late: list[RecordCall] = []
        while waiting and (waiting[0].is_done or due_of(waiting[0]) <= now_ms):
            record = waiting.popleft()
            if not record.is_done:
                late.append(record)
        if waiting:
            self._arm(due_of(waiting[0]))
        if late:
            self._on_late(late)


class Lateness:
    """Follows the timeouts and deadlines of an operator's records.

    `has_outcome`: whether the answer that ends a record has arrived. `end_late` gets the records that missed a bound.
    """

    def __init__(
        self,
        timers: CallTimers,
        options: AsyncOptions,
        slots: HostSlots,
        shared: SharedCalls[RecordCall, Any],
        has_outcome: Callable[[RecordCall], bool],
        end_late: Callable[[list[RecordCall], Bound], None],
    ) -> None:
        self._timers = timers
        self._timeout_ms = options.timeout_ms
        self._slots = slots
        self._shared = shared
        self._has_outcome = has_outcome
        self._end_late = end_late
        self._timeouts = CallDeadlines(timers, options.timeout_ms, self._timed_out, "timeout_at_ms")
        self._deadlines = CallDeadlines(timers, options.deadline_ms or 0, self._past_deadline, "deadline_at_ms")
        self.take_in: Callable[[Collection[RecordCall]], None] = self._deadlines.add
        """Begin the deadlines of records that were taken in."""
        self.begin: Callable[[Collection[RecordCall]], None] = self._timeouts.add
        """Begin the timeouts of records whose first calls are sent now, and have no followers."""
        self._extended: dict[RecordCall, None] = {}  # put off, until then; may include finished records

    def unfinished(self) -> list[RecordCall]:
        """The records that were sent and are not done."""
        return [*self._timeouts, *(record for record in self._extended if not record.is_done)]

    def clear(self) -> None:
        self._timeouts.clear()
        self._deadlines.clear()
        self._extended.clear()

    def join(self, call: RecordCall, leader: RecordCall) -> None:
        """The record shares the call of `leader`."""
        call.follows = True
        if leader.timeout_at_ms and not leader.is_held:
            self._begin_shared(call)

    def sent(self, calls: Sequence[RecordCall]) -> None:
        """Note that attempts go to the host."""
        alone = [call for call in calls if not (call.timeout_at_ms or call.leads or call.is_held)]
        self._timeouts.add(alone)
        if len(alone) < len(calls):
            for call in calls:
                if call.leads or call.is_held:
                    self._sent(call)

    def _sent(self, call: RecordCall) -> None:
        sharing = self._shared.followers(call.key) if call.leads and call.is_first else ()
        if not call.timeout_at_ms:
            self._timeouts.add((call,))
        elif call.is_held:
            begun_ms = self._timers.current_processing_time() + self._timeout_ms
            for record in (call, *sharing):
                record.resent_ms = begun_ms - record.timeout_at_ms if record.timeout_at_ms else 0
        call.is_held = False
        for record in sharing:
            if not record.timeout_at_ms:
                self._begin_shared(record)

    def missed(self, call: RecordCall) -> Bound | None:
        """Which bound a record, whose first call was sent, has missed by now."""
        now_ms = self._timers.current_processing_time()
        if call.deadline_at_ms and call.deadline_at_ms <= now_ms:
            return "deadline"
        return "timeout" if self._timeout_ms > 0 and call.due_ms() <= now_ms else None

    def _begin_shared(self, call: RecordCall) -> None:
        call.sent_ns = perf_counter_ns()
        self._timeouts.add((call,))

    def _timed_out(self, calls: list[RecordCall]) -> None:
        """End the records whose timeout is over, unless it is put off or their answer waits to be fetched."""
        self._end_late([call for call in calls if not self._has_outcome(call) and not self._put_off(call)], "timeout")

    def _past_deadline(self, calls: list[RecordCall]) -> None:
        self._end_late([call for call in calls if not self._has_outcome(call)], "deadline")

    def _put_off(self, call: RecordCall) -> bool:
        """Whether a record has time left, because its first call was not sent, or has waited in the host."""
        now_ms = self._timers.current_processing_time()
        made = self._shared.leader(call.key) if call.follows else call
        if made.is_first and made.is_held:
            call.timeout_at_ms = call.resent_ms = 0  # begins again when it is sent
            return True
        if made.is_first and not made.has_started():
            # A call waiting in the host may outlast `most_turns` timeouts, one for each round of calls ahead of it.
            # Rounds are counted, not timed: after this thread was stopped for 10 s, the calls ahead are late too, but
            # not ended yet.
            call.turns += 1
            if call.turns > self._slots.most_turns:
                return False
            call.later_ms = now_ms + self._timeout_ms - call.timeout_at_ms - call.resent_ms
        elif made.is_first:
            call.later_ms = call.waited_in_host_ms() if made is call and self._slots.may_wait else 0
        if call.due_ms() <= now_ms:
            return False
        self._extended[call] = None
        self._timers.register_timer(call.due_ms(), lambda _: self._end_extension(call))
        return True

    def _end_extension(self, call: RecordCall) -> None:
        self._extended.pop(call, None)
        if not call.is_done:
            self._timed_out([call])
