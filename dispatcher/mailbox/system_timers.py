"""Real time, after Flink's SystemProcessingTimeService.

Threading: one daemon thread, started with the first task, runs all callbacks, one after another. It takes tasks from a
queue under that queue's lock and runs them outside it. Life cycle: ALIVE -> QUIESCED -> SHUTDOWN; the thread ends once
the service is not ALIVE and the running callback has returned.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from dispatcher.mailbox.time_service import TimerCallback, TimerFuture
from dispatcher.mailbox.timer_queue import ServiceStatus, SharedFuture, TimerService, TimerTask
from dispatcher.util.foreign import tell
from dispatcher.util.forks import let_go_in_children
from dispatcher.util.functions import require_plain

log: logging.Logger = logging.getLogger(__name__)

_LONGEST_WAIT_S = 3600.0
"""A timer may be further away than the longest timeout that a lock accepts."""
_SKEW_MS = 1.0
"""A smaller change of the difference between the two clocks comes from reading one after the other."""
_MAX_LOOKS = 20
"""Readings of both clocks until one is quick enough. On a busy machine another thread may run between the two."""


class SystemProcessingTimeService(TimerService):
    """A TimerService in Unix ms, with one daemon thread for the callbacks. Any thread can use it.

    A timer for T fires once the millisecond T has passed, at T + 1. Like a watermark T, it still admits records of T. A
    timer in the past fires at once. A periodic task's run for T is due at T.

    As in Flink, the system clock only determines how far away a time is at registration. From then on the monotonic
    clock counts. If you set the system clock, forward or back, each task still runs after its delay or period. The
    times passed to a task at a fixed rate stay one period apart, so they then differ from the system clock's.

    A callback's error goes to `on_error`, on the timer thread. Without `on_error`, or if that raises, it's logged. The
    next task still runs, and a periodic one continues. To raise errors in a mailbox's loop, which they end:

        SystemProcessingTimeService("timers", on_error=processor.report_throwable)

    A callback counts as running once the thread has taken it. So it can begin just after `quiesce` returns, whose
    future waits for it. The thread completes that future as its last act.
    """

    def __init__(self, name: str = "timers", on_error: Callable[[BaseException], None] | None = None) -> None:
        super().__init__(name)
        self._name = name
        if on_error is not None:
            on_error = require_plain(on_error, "on_error", "takes the error of a callback")
        self._on_error = on_error  # called by the timer thread only
        # Guarded by _tasks.lock; set while ALIVE, then never again, but reset in a forked child.
        self._thread: threading.Thread | None = None
        # How far the system clock is ahead of the steady one; any thread replaces it, and any value is recent.
        self._ahead_ms = -math.inf
        let_go_in_children(self)

    def current_processing_time(self) -> int:
        """Return the current time in Unix ms."""
        return time.time_ns() // 1_000_000

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        """Register a timer as in the protocol. The callback runs after T - now + 1 ms, or at once if T < now."""
        return self._add(TimerTask(callback, timestamp_ms), timestamp_ms + 1 - self._look_how_far_ahead())

    def shutdown(self, timeout: float | None = 1.0) -> bool:
        """Drop all tasks, reject new ones, wait up to `timeout` seconds for the thread, and return whether it ended.

        Flink interrupts the thread here. Python can't: a callback runs to its end, and if yours can wait long, give it
        a way to end (an Event, a closed queue). A callback that hangs is left behind. Its thread is a daemon, so it
        doesn't keep the process alive. A KeyboardInterrupt ends the wait, but the service is still shut down. From a
        callback, this returns False without waiting.
        """
        self._end(ServiceStatus.SHUTDOWN)
        thread = self._thread  # without the lock: it no longer changes once the service is not ALIVE
        if thread is None:
            return True
        if thread is not threading.current_thread():
            thread.join(timeout)
        return not thread.is_alive()

    def shutdown_uninterruptible(self, timeout: float) -> bool:
        """Shut down as `shutdown` does, and raise a KeyboardInterrupt only after the wait.

        Flink restores the caller's interrupt flag at that point. `is_terminated` is True if the thread has ended.
        """
        deadline_s = time.monotonic() + timeout
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                ended = self.shutdown(max(0.0, deadline_s - time.monotonic()))
                break
            except KeyboardInterrupt as error:
                interrupt = error
                # Not before it is shut down: the interrupt may have come before that.
                if self._tasks.status is ServiceStatus.SHUTDOWN and time.monotonic() >= deadline_s:
                    break
        if interrupt is not None:
            raise interrupt
        return ended

    def after_fork(self) -> None:
        """Take no timer in a forked child if the service's thread runs in the parent. Any other service works."""
        self._tasks.after_fork(has_thread=self._thread is not None)
        self._thread = None
        self._terminated = SharedFuture()
        if self._tasks.status is not ServiceStatus.ALIVE:
            self._terminated.complete()

    def _unix_ms(self) -> float:
        """The system clock, with fractions."""
        return time.time_ns() / 1e6

    def _steady_ms(self) -> float:
        return time.monotonic() * 1000

    def _look_how_far_ahead(self) -> float:
        """How far the system clock is ahead of the steady one, in ms; too little rather than too much, so that no timer
        is early. It is the same until one of them is set: timers of one time fire in the order of registration."""
        least_ms, most_ms = self._look()
        if least_ms - _SKEW_MS < self._ahead_ms <= most_ms:
            return self._ahead_ms
        looks = 1
        while most_ms - least_ms >= _SKEW_MS and looks < _MAX_LOOKS:
            least_ms, most_ms = min((least_ms, most_ms), self._look(), key=lambda look: look[1] - look[0])
            looks += 1
        self._ahead_ms = least_ms
        return least_ms

    def _look(self) -> tuple[float, float]:
        """The least and the most that the system clock may be ahead of the steady one."""
        before_ms = self._steady_ms()
        unix_ms = self._unix_ms()
        return unix_ms - self._steady_ms(), unix_ms - before_ms

    def _add(self, task: TimerTask, due_ms: float) -> TimerFuture:
        if self._thread is None:  # without the lock: once the thread has been started, this stays so
            self._start_thread()
        return self._tasks.add(task, due_ms)

    def _start_thread(self) -> None:
        with self._tasks.lock:
            if self._thread is not None or self._tasks.status is not ServiceStatus.ALIVE:
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread = thread
            try:
                thread.start()
            except BaseException:  # no thread is left, or a signal handler has raised
                self._thread = None  # the next task tries again, and shutdown does not wait
                raise

    def _end(self, status: ServiceStatus) -> None:
        self._tasks.end(status)
        if self._thread is None:  # without the lock: no longer ALIVE, so none will be started
            self._terminated.complete()

    def _run(self) -> None:
        with self._tasks.lock:
            if self._thread is not threading.current_thread():
                return  # a signal handler interrupted its start after the system had created it
        try:
            while self._run_next():
                pass
        finally:
            self._terminated.complete()

    def _run_next(self) -> bool:
        # A separate function, so that no local variable keeps a callback alive while the thread waits.
        task = self._wait_for_task()
        try:
            if task is not None:
                self._tasks.run(task, self.current_processing_time)
        except BaseException as error:
            self._report(error)
        return task is not None

    def _wait_for_task(self) -> TimerTask | None:
        """The next task, once it is due; None when the service is not ALIVE."""
        with self._tasks.lock:
            while self._tasks.status is ServiceStatus.ALIVE:
                now_ms = self._steady_ms()
                task = self._tasks.take_due(now_ms)
                if task is not None:
                    return task
                due_ms = self._tasks.next_due_ms()
                self._tasks.asleep_until_ms = math.inf if due_ms is None else due_ms
                self._tasks.changed.wait(None if due_ms is None else min((due_ms - now_ms) / 1000, _LONGEST_WAIT_S))
                self._tasks.asleep_until_ms = -math.inf
            return None

    def _report(self, error: BaseException) -> None:
        if self._on_error is not None:
            try:
                self._on_error(error)
                return
            except BaseException as raised:  # e.g. the mailbox it reports to is closed; the other timers still fire
                tell(log, logging.ERROR, "%s: on_error failed", self._name, error=raised)
        tell(log, logging.ERROR, "%s: a timer's callback failed", self._name, error=error)
