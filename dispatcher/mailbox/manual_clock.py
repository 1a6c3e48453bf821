"""Manually advanced time for tests and simulations, after Flink's TestProcessingTimeService."""

from __future__ import annotations

from dispatcher.errors import InvalidValueError
from dispatcher.mailbox.time_service import TimerCallback, TimerFuture
from dispatcher.mailbox.timer_queue import ServiceStatus, TimerService, TimerTask


class ManualClock(TimerService):
    """A TimerService whose time stands still until you advance it.

    Any thread can use it, but only one at a time can advance, and callbacks run on that thread. Timers for the same
    time fire in the order you registered them. Each run of a periodic task counts as registered when the run before it
    ended, so simulations are reproducible. A timer for T fires at T, not 1 ms later as in real time. Time can also
    advance once the clock is quiesced, but no timer fires.
    """

    def __init__(self, start_ms: int = 0) -> None:
        super().__init__("ManualClock")
        self._now_ms = start_ms  # written by the thread that advances; read by any
        self._running = 0  # callbacks that run, nested if they advance; guarded by _tasks.lock

    def current_processing_time(self) -> int:
        return self._now_ms

    def current_time_ns(self) -> int:
        """Return the current time in ns, as the clock for a journal."""
        return self._now_ms * 1_000_000

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        """Register a timer as in the protocol. One in the past fires with the next advance."""
        return self._tasks.add(TimerTask(callback, timestamp_ms), timestamp_ms)

    def advance(self, ms: int) -> None:
        """Advance time by `ms`. Each timer on the way fires at its time, including timers that callbacks add.

        A callback can also advance. Time ends at the furthest target, with no timer due by then left. If a callback
        raises, the error goes to its future and to the caller, and time stays at that moment. The next advance resumes
        periodic tasks.

        Raises:
            ValueError: `ms` is negative.
        """
        if ms < 0:
            raise InvalidValueError(f"time goes forward only: cannot advance by {ms} ms")
        target_ms = self._now_ms + ms
        # A callback may advance further than the target; its own next run, if it is periodic, is then still due.
        while self._fire_next(max(self._now_ms, target_ms)):
            pass
        self._now_ms = max(self._now_ms, target_ms)

    def advance_to_next_timer(self) -> bool:
        """Jump to the time of the next timer or periodic task and fire all due then, or return False without one."""
        if not self._fire_next(None):
            return False
        while self._fire_next(self._now_ms):
            pass
        return True

    def next_timer_ms(self) -> int | None:
        """Return when the next timer or periodic task is due, which can be in the past, or None without one."""
        with self._tasks.lock:
            due_ms = self._tasks.next_due_ms()
        return None if due_ms is None else int(due_ms)  # it is one: all times of this clock are

    @property
    def pending_timers(self) -> int:
        """The number of waiting timers and periodic tasks."""
        return self._tasks.size()

    def shutdown(self, timeout: float | None = 1.0) -> bool:
        """Drop all tasks, reject new ones, and return whether no callback is running.

        Never waits, and ignores `timeout`: callbacks run on the thread that advances, which can be the caller's.
        """
        self._end(ServiceStatus.SHUTDOWN)
        return self._terminated.done()

    def shutdown_uninterruptible(self, timeout: float) -> bool:
        """Call `shutdown`, which has no wait to interrupt."""
        return self.shutdown(timeout)

    def _steady_ms(self) -> float:
        return self._now_ms

    def _fire_next(self, until_ms: int | None) -> bool:
        """Fire the next timer due by `until_ms` (None: at any time); returns whether there was one."""
        with self._tasks.lock:
            task = self._tasks.take_due(until_ms)
            if task is None:
                return False
            self._running += 1  # under the same lock: a quiesce() in between would not wait for this callback
        self._now_ms = max(self._now_ms, task.timestamp_ms)
        try:
            self._tasks.run(task, self.current_processing_time)
        finally:
            with self._tasks.lock:
                self._running -= 1
            self._complete_if_over()
        return True

    def _end(self, status: ServiceStatus) -> None:
        self._tasks.end(status)
        self._complete_if_over()

    def _complete_if_over(self) -> None:
        with self._tasks.lock:
            over = self._running == 0 and self._tasks.status is not ServiceStatus.ALIVE
        if over:
            self._terminated.complete()
