"""Processing-time timers, after Flink's ProcessingTimeService: real, manual, and delivered as mail.

Times are milliseconds. A timer's callback gets the time it was registered for.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import Any, Protocol

from dispatcher.errors import DispatcherError, RejectedExecutionError
from dispatcher.mailbox.executor import MailboxExecutor

log = logging.getLogger(__name__)

TimerCallback = Callable[[int], Any]
TimerFuture = Future[None]

_Timer = tuple[int, int, TimerCallback, TimerFuture]  # time, order of registration, callback, future


class ProcessingTimeService(Protocol):
    """A clock with timers."""

    def current_processing_time(self) -> int:
        """Now, in ms."""

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        """Call `callback(timestamp_ms)` at that time, or as soon as possible if it has passed.

        The future completes with the callback; cancelling it before keeps the callback from being called.
        """


class ManualClock:
    """Time that stands still until somebody advances it. Any thread may call; callbacks run in `advance`'s caller.

    Timers of the same time fire in the order of their registration, so a run is repeatable.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms  # written by whoever advances: one thread
        self._lock = threading.Lock()  # leaf lock
        self._timers: list[_Timer] = []  # a heap; guarded by _lock
        self._order = itertools.count()

    def current_processing_time(self) -> int:
        return self._now_ms

    def current_time_ns(self) -> int:
        """Now, in ns: the clock of a journal of a run in this time."""
        return self._now_ms * 1_000_000

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        future: TimerFuture = Future()
        with self._lock:
            heapq.heappush(self._timers, (timestamp_ms, next(self._order), callback, future))
        return future

    def advance(self, ms: int) -> None:
        """Move time on by `ms`, firing each timer on the way at its own time, those that callbacks add included."""
        if ms < 0:
            raise ValueError(f"time goes forward only: cannot advance by {ms} ms")
        target_ms = self._now_ms + ms
        while (timer := self._pop_due(target_ms)) is not None:
            self._fire(timer)
        self._now_ms = max(self._now_ms, target_ms)  # a callback may have advanced further

    def advance_to_next_timer(self) -> bool:
        """Jump to the next timer's time and fire all timers of that time; False if there is none."""
        timer = self._pop_due(None)
        if timer is None:
            return False
        self._fire(timer)
        while (timer := self._pop_due(self._now_ms)) is not None:
            self._fire(timer)
        return True

    def pending_timers(self) -> int:
        """How many timers wait; a cancelled one counts until its time comes."""
        with self._lock:
            return len(self._timers)

    def _pop_due(self, until_ms: int | None) -> _Timer | None:
        with self._lock:
            while self._timers and (until_ms is None or self._timers[0][0] <= until_ms):
                timer = heapq.heappop(self._timers)
                if not timer[3].cancelled():
                    return timer
        return None

    def _fire(self, timer: _Timer) -> None:
        timestamp_ms, _, callback, future = timer
        self._now_ms = max(self._now_ms, timestamp_ms)
        if not future.set_running_or_notify_cancel():
            return
        try:
            callback(timestamp_ms)
        except BaseException as error:
            future.set_exception(error)
            raise
        future.set_result(None)


_LONGEST_WAIT_S = 60.0
"""Then the timer thread looks at the clock again: it may have been set, and no wait may be as long as a timer."""
_SWEEP_FROM = 1024


class _Status(Enum):
    ALIVE = "ALIVE"
    QUIESCED = "QUIESCED"
    SHUTDOWN = "SHUTDOWN"


class SystemProcessingTimeService:
    """Real time (Unix ms), with one daemon thread that fires the timers. Any thread may call.

    A timer for T fires once T has passed entirely, so after T + 1 ms: as a watermark T, it still admits records of T.
    What a callback raises goes to `on_error`, or to the log, and the next timer fires.
    """

    def __init__(self, name: str = "timers", on_error: Callable[[BaseException], None] | None = None) -> None:
        self._name = name
        self._on_error = on_error
        self._wake = threading.Condition(threading.Lock())  # leaf lock: callbacks run outside it
        self._timers: list[_Timer] = []  # a heap; guarded by _wake
        self._status = _Status.ALIVE  # guarded by _wake; ALIVE -> QUIESCED -> SHUTDOWN
        self._thread: threading.Thread | None = None  # guarded by _wake; started with the first timer
        self._sweep_at = _SWEEP_FROM  # guarded by _wake
        self._order = itertools.count()

    def current_processing_time(self) -> int:
        return time.time_ns() // 1_000_000

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        """As the protocol says. Once quiesced, the future returned never completes.

        Raises:
            DispatcherError: the service is shut down.
        """
        future: TimerFuture = Future()
        with self._wake:
            if self._status is _Status.SHUTDOWN:
                raise DispatcherError(f"{self._name}: the timer service is shut down; register timers before")
            if self._status is _Status.QUIESCED:
                return future
            if len(self._timers) >= self._sweep_at:
                self._drop_cancelled()
            heapq.heappush(self._timers, (timestamp_ms, next(self._order), callback, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._wake.notify()
        return future

    def quiesce(self) -> None:
        """Fire no timer from now on and take none; a callback that runs is not interrupted."""
        self._end(_Status.QUIESCED)

    def shutdown(self, timeout: float | None = 1.0) -> bool:
        """Drop all timers and wait up to `timeout` seconds for a running callback; says whether the thread ended."""
        thread = self._end(_Status.SHUTDOWN)
        if thread is None:
            return True
        if thread is not threading.current_thread():
            thread.join(timeout)
        return not thread.is_alive()

    def _drop_cancelled(self) -> None:
        """Under _wake: most timers are time-outs, and cancelled long before their time; do not keep them until then."""
        self._timers = [timer for timer in self._timers if not timer[3].cancelled()]
        heapq.heapify(self._timers)
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._timers))

    def _end(self, status: _Status) -> threading.Thread | None:
        with self._wake:
            if self._status is not _Status.SHUTDOWN:
                self._status = status
            self._timers.clear()
            self._wake.notify_all()
            return self._thread

    def _run(self) -> None:
        while (timer := self._wait_for_timer()) is not None:
            timestamp_ms, _, callback, future = timer
            if not future.set_running_or_notify_cancel():
                continue
            try:
                callback(timestamp_ms)
            except BaseException as error:
                future.set_exception(error)
                self._report(error)
            else:
                future.set_result(None)

    def _wait_for_timer(self) -> _Timer | None:
        with self._wake:
            while self._status is _Status.ALIVE:
                if not self._timers:
                    self._wake.wait()
                    continue
                timestamp_ms = self._timers[0][0]
                now_ms = self.current_processing_time()
                if timestamp_ms < now_ms:
                    return heapq.heappop(self._timers)
                self._wake.wait(min((timestamp_ms - now_ms + 1) / 1000, _LONGEST_WAIT_S))
            return None

    def _report(self, error: BaseException) -> None:
        if self._on_error is not None:
            try:
                self._on_error(error)
                return
            except Exception:  # e.g. the mailbox it reports to is closed; the other timers still fire
                log.exception("%s: on_error failed", self._name)
        log.error("%s: a timer's callback failed", self._name, exc_info=error)


class MailboxTimeService:
    """Another service's time, with the callbacks run as mail: on the mailbox thread, between its other work.

    A timer that fires after the mailbox has closed is dropped.
    """

    def __init__(self, service: ProcessingTimeService, executor: MailboxExecutor) -> None:
        self._service = service
        self._execute = executor.execute

    def current_processing_time(self) -> int:
        return self._service.current_processing_time()

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        """The future completes when the mail is sent; cancelling it later than that has no effect."""

        def send(due_ms: int) -> None:
            try:
                self._execute(lambda: callback(due_ms), "timer of %s ms", due_ms)
            except RejectedExecutionError:
                log.debug("timer of %s ms dropped: the mailbox is closed", due_ms)

        return self._service.register_timer(timestamp_ms, send)
