"""Time for tests and simulations, after Flink's TestProcessingTimeService: it passes when it is told to."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from dispatcher.mailbox.time_service import TimerCallback, TimerFuture
from dispatcher.mailbox.timer_queue import ServiceStatus, TimerQueue, TimerTask, periodic


class ManualClock:
    """A TimerService whose time stands still until somebody advances it.

    Any thread may call; one thread at a time may advance, and callbacks run in it. Timers of the same time fire in the
    order of their registration, a periodic task's run in that of its previous run's end, so a run is repeatable.
    A timer for T fires at T: here one moment is over before the next begins.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms  # written by whoever advances: one thread; read by any
        self._tasks = TimerQueue("ManualClock")  # has its own lock
        self._running = 0  # callbacks that run, one in another if they advance; guarded by _tasks.lock
        self._terminated: Future[None] = Future()  # thread-safe; completed by quiesce, shutdown, or the last callback
        self._terminated.set_running_or_notify_cancel()  # all callers share it: none may cancel it

    def current_processing_time(self) -> int:
        return self._now_ms

    def current_time_ns(self) -> int:
        """Now, in ns: the clock of a journal of a run in this time."""
        return self._now_ms * 1_000_000

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        """As the protocol says; a timer of the past fires with the next advance."""
        return self._tasks.add(TimerTask(callback, timestamp_ms), timestamp_ms)

    def schedule_at_fixed_rate(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        first_ms = self._now_ms + initial_delay_ms
        return self._tasks.add(periodic(callback, first_ms, period_ms, fixed_delay=False), first_ms)

    def schedule_with_fixed_delay(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        first_ms = self._now_ms + initial_delay_ms
        return self._tasks.add(periodic(callback, first_ms, period_ms, fixed_delay=True), first_ms)

    def advance(self, ms: int) -> None:
        """Move time on by `ms`, firing each timer on the way at its own time, those that callbacks add included.

        A callback may advance, too; time ends up where the one who goes furthest leaves it, and nothing is left due.
        What a callback raises goes to its future and to the caller, and leaves time at that moment; a periodic task
        carries on with the next advance.

        Raises:
            ValueError: `ms` is negative.
        """
        if ms < 0:
            raise ValueError(f"time goes forward only: cannot advance by {ms} ms")
        target_ms = self._now_ms + ms
        # A callback may advance further than that itself; its own next run, if it is periodic, is still to come then.
        while self._fire_next(max(self._now_ms, target_ms)):
            pass
        self._now_ms = max(self._now_ms, target_ms)

    def advance_to_next_timer(self) -> bool:
        """Jump to the next timer's time and fire all timers of that time; False if there is none.

        With a periodic task there always is one.
        """
        if not self._fire_next(None):
            return False
        while self._fire_next(self._now_ms):
            pass
        return True

    def next_timer_ms(self) -> int | None:
        """When the next timer or periodic task is due, which may be in the past; None if there is none."""
        with self._tasks.lock:
            return self._tasks.next_due_ms()

    def pending_timers(self) -> int:
        """How many timers and periodic tasks wait, without cancelled ones."""
        return self._tasks.size()

    def quiesce(self) -> Future[None]:
        """As the protocol says. Time can still be advanced, but nothing fires."""
        self._end(ServiceStatus.QUIESCED)
        return self._terminated

    def shutdown(self, timeout: float | None = 1.0) -> bool:
        """Drop all tasks, and refuse new ones; says whether no callback runs. Never waits, whatever the `timeout`.

        Callbacks run in whoever advances, who may well be the caller.
        """
        self._end(ServiceStatus.SHUTDOWN)
        return self._terminated.done()

    def shutdown_uninterruptible(self, timeout: float) -> bool:
        """As `shutdown`, since there is no wait to interrupt."""
        return self.shutdown(timeout)

    def is_terminated(self) -> bool:
        """Quiesced or shut down, and no callback runs."""
        return self._terminated.done()

    def _fire_next(self, until_ms: int | None) -> bool:
        """Fire the next timer up to that time (None: whenever it is); says whether there was one."""
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
                over = self._running == 0 and self._tasks.status is not ServiceStatus.ALIVE
            if over:
                self._complete()
        return True

    def _end(self, status: ServiceStatus) -> None:
        self._tasks.end(status)
        with self._tasks.lock:
            over = self._running == 0
        if over:
            self._complete()

    def _complete(self) -> None:
        with suppress(InvalidStateError):  # somebody else saw it at the same time
            self._terminated.set_result(None)
