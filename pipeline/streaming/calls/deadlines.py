"""Timeouts of calls: one queue of deadlines and one timer, however many calls there are.

All records of an operator have the same timeout, so their deadlines are in order of arrival. Mailbox thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from dispatcher.mailbox import ProcessingTimeService, TimerFuture


class _Late(Protocol):
    deadline_ms: int
    is_done: bool


T = TypeVar("T", bound=_Late)


class CallDeadlines(Generic[T]):
    """The records that are not done, and their deadlines.

    `timers` fires on the mailbox thread, and `on_late` gets all records that are late by then. A `timeout_ms` of 0 or
    less disables timeouts; unfinished records are tracked even so.
    """

    __slots__ = ("_now", "_on_late", "_sweep_at", "_timeout_ms", "_timer", "_timers", "_waiting")

    def __init__(self, timers: ProcessingTimeService, timeout_ms: int, on_late: Callable[[list[T]], None]) -> None:
        self._timers = timers
        self._timeout_ms = timeout_ms
        self._on_late = on_late
        self._now = timers.current_processing_time
        self._waiting: deque[T] = deque()  # by deadline; may include finished records
        self._timer: TimerFuture | None = None  # for the first of _waiting, or for an earlier one that is gone
        self._sweep_at = 256

    def add(self, record: T) -> None:
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

    def __iter__(self) -> Iterator[T]:
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
        late: list[T] = []
        while waiting and (waiting[0].is_done or waiting[0].deadline_ms <= now_ms):
            record = waiting.popleft()
            if not record.is_done:
                late.append(record)
        if waiting:
            self._arm(waiting[0].deadline_ms)
        if late:
            self._on_late(late)
