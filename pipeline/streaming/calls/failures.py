"""Records without an answer: those that are late, and those whose call has failed for good. Mailbox thread only.

All records of an operator have the same timeout, so their deadlines are in order of arrival: one queue of deadlines and
one timer serve any number of calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dispatcher.mailbox import ProcessingTimeService, TimerFuture
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.call_path import RecordCall
from pipeline.streaming.calls.functions import as_results
from pipeline.streaming.errors import AsyncOperatorError, CapturedError
from pipeline.streaming.options import AsyncOptions


class CallDeadlines:
    """The records that are not done, and their deadlines.

    `timers` fires on the mailbox thread, and `on_late` gets all records that are late by then. A `timeout_ms` of 0 or
    less disables timeouts; unfinished records are tracked even so.
    """

    __slots__ = ("_now", "_on_late", "_sweep_at", "_timeout_ms", "_timer", "_timers", "_waiting")

    def __init__(
        self, timers: ProcessingTimeService, timeout_ms: int, on_late: Callable[[list[RecordCall]], None]
    ) -> None:
        self._timers = timers
        self._timeout_ms = timeout_ms
        self._on_late = on_late
        self._now = timers.current_processing_time
        self._waiting: deque[RecordCall] = deque()  # by deadline; may include finished records
        self._timer: TimerFuture | None = None  # for the first of _waiting, or for an earlier one that is gone
        self._sweep_at = 256

    def add(self, record: RecordCall) -> None:
        waiting = self._waiting
        while waiting and waiting[0].is_done:
            waiting.popleft()  # left until the next sweep, it would burden the garbage collector
        waiting.append(record)
        if self._timeout_ms > 0:
            record.deadline_ms = self._now() + self._timeout_ms
            if self._timer is None:
                self._arm(record.deadline_ms)
        if len(waiting) >= self._sweep_at:
            # A sweep waits until the queue has doubled, so it costs O(1) per record.
            self._waiting = deque(self)
            self._sweep_at = max(256, 2 * len(self._waiting))

    def __iter__(self) -> Iterator[RecordCall]:
        """The unfinished records, the earliest deadline first."""
        return (record for record in self._waiting if not record.is_done)

    def clear(self) -> None:
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline_ms: int) -> None:
        self._timer = self._timers.register_timer(deadline_ms, self._fire)

    def _fire(self, due_ms: int) -> None:
        self._timer = None
        now_ms = max(due_ms, self._now())
        waiting = self._waiting
        late: list[RecordCall] = []
        while waiting and (waiting[0].is_done or waiting[0].deadline_ms <= now_ms):
            record = waiting.popleft()
            if not record.is_done:
                late.append(record)
        if waiting:
            self._arm(waiting[0].deadline_ms)
        if late:
            self._on_late(late)


class ErrorPolicy:
    """Applies `on_error` and `dead_letter` of an operator."""

    def __init__(self, operator: str, options: AsyncOptions, metrics: CallMetrics) -> None:
        self._operator = operator
        self._on_error = options.on_error
        self._dead_letter = options.dead_letter
        self._metrics = metrics

    def results_of(self, call: RecordCall, error: BaseException) -> Sequence[Any]:
        """Count the failed record, and return the results to emit for it.

        Raises:
            AsyncOperatorError: `error`, or an error of the user's handler, fails the task.
        """
        if self._on_error == "fail":
            raise AsyncOperatorError(self._operator, call.value, error, call.attempts) from error
        if self._on_error == "drop":
            self._metrics.dropped += 1
            return ()
        self._metrics.captured += 1
        captured = CapturedError.of(call.value, error, call.attempts, call.taken_ns)
        try:
            if callable(self._on_error):
                return as_results(self._on_error(captured))
            if self._dead_letter is None:
                return (captured,)
            self._dead_letter(captured)
        except Exception as raised:
            raise AsyncOperatorError(self._operator, call.value, raised, call.attempts) from raised
        return ()
