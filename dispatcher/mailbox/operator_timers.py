"""A view of a shared time service for one user, after Flink's ProcessingTimeServiceImpl.

An operator, or a daemon, quiesces its view to end its own timers without affecting the timers of others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from dispatcher.errors import RejectedExecutionError
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.time_service import ProcessingTimeService, TimerCallback, TimerFuture
from dispatcher.mailbox.timer_queue import NeverCompletingFuture, SharedFuture

log = logging.getLogger(__name__)

WrapCallback = Callable[[TimerCallback], TimerCallback]


class OperatorTimeService:
    """Another service's time and timers, until quiesced. Any thread can use it.

    `wrap_callback` is called once for each callback, at registration. The other service calls the wrapped callback, so
    futures, errors and the end of a run refer to it.
    """

    def __init__(self, service: ProcessingTimeService, wrap_callback: WrapCallback) -> None:
        self._service = service
        self.current_processing_time = service.current_processing_time  # bound directly, because it is called often
        self._wrap_callback = wrap_callback
        self._lock = threading.Lock()  # leaf lock: callbacks run outside it
        self._quiesced = False  # written under _lock, once; read without it where a stale value does no harm
        self._running = 0  # callbacks that run now; guarded by _lock; does not grow once _quiesced
        self._over = SharedFuture()  # thread-safe; completed by quiesce or by the last callback

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        if self._quiesced:
            return NeverCompletingFuture()
        return self._service.register_timer(timestamp_ms, self._guard(callback))

    def schedule_at_fixed_rate(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        if self._quiesced:
            return NeverCompletingFuture()
        return self._service.schedule_at_fixed_rate(self._guard(callback), initial_delay_ms, period_ms)

    def schedule_with_fixed_delay(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        if self._quiesced:
            return NeverCompletingFuture()
        return self._service.schedule_with_fixed_delay(self._guard(callback), initial_delay_ms, period_ms)

    def quiesce(self) -> Future[None]:
        """Let no callback begin from now on, without waiting. New ones are accepted and never run.

        The future completes when the running callbacks have ended. All calls return the same future, which can't be
        cancelled. The other service keeps the pending timers until it fires them, without effect. Unless you cancel it,
        a periodic task fires like this for as long as that service lives.
        """
        with self._lock:
            self._quiesced = True
            over = self._running == 0
        if over:
            self._over.complete()
        return self._over

    def _guard(self, callback: TimerCallback) -> TimerCallback:
        wrapped = self._wrap_callback(callback)

        def run_unless_quiesced(timestamp_ms: int) -> None:
            with self._lock:
                # Check and count under one lock: a quiesce() in between would not wait for this callback.
                if self._quiesced:
                    return
                self._running += 1
            try:
                wrapped(timestamp_ms)
            finally:
                with self._lock:
                    self._running -= 1
                    over = self._quiesced and self._running == 0
                if over:
                    self._over.complete()

        return run_unless_quiesced


class MailboxTimeService(OperatorTimeService):
    """An OperatorTimeService whose callbacks run as mail: on the mailbox thread, between its other work.

    If a callback raises, the mailbox's loop fails. A timer that fires after the mailbox has closed is dropped.

    For the service, a run of a callback ends when its mail is sent. At that moment a future completes and can no longer
    be cancelled, and a fixed delay starts. Mail sent before `quiesce` still runs after it. To wait for that mail as
    well, send another mail of the same priority.
    """

    def __init__(self, service: ProcessingTimeService, executor: MailboxExecutor) -> None:
        execute = executor.execute

        def by_mail(callback: TimerCallback) -> TimerCallback:
            def send(due_ms: int) -> None:
                try:
                    execute(lambda: callback(due_ms), "timer of %s ms", due_ms)
                except RejectedExecutionError:
                    log.debug("timer of %s ms dropped: the mailbox is closed", due_ms)

            return send

        super().__init__(service, by_mail)
