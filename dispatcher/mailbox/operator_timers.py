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
from dispatcher.util.functions import require_methods

log: logging.Logger = logging.getLogger(__name__)


class MailboxTimeService:
    """Another service's time and timers, until quiesced. Callbacks run as mail: on the mailbox thread, between its
    other work. Any thread can use it.

    If a callback raises, the mailbox's loop fails. A timer that fires after the mailbox has closed is dropped.

    For the other service, a run of a callback ends when its mail is sent. At that moment a future completes and can no
    longer be cancelled, and a fixed delay starts. Mail sent before `quiesce` still runs after it. To wait for that mail
    as well, send another mail of the same priority.
    """

    def __init__(self, service: ProcessingTimeService, executor: MailboxExecutor) -> None:
        require_methods(service, "service", "a ProcessingTimeService", "current_processing_time", "register_timer")
        require_methods(executor, "executor", "a MailboxExecutor", "execute")
        self._service = service
        # Bound directly, because it is called often.
        self.current_processing_time: Callable[[], int] = service.current_processing_time
        self._execute = executor.execute
        self._lock = threading.Lock()  # leaf lock: mail is sent outside it
        self._quiesced = False  # written under _lock, once; read without it where a stale value does no harm
        self._sending = 0  # mails that are being sent; guarded by _lock; does not grow once _quiesced
        self._over = SharedFuture()  # thread-safe; completed by quiesce or after the last mail

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        """Register a timer as in ProcessingTimeService."""
        if self._quiesced:
            return NeverCompletingFuture()
        return self._service.register_timer(timestamp_ms, self._by_mail(callback))

    def schedule_at_fixed_rate(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        """Schedule a task as in ProcessingTimeService."""
        if self._quiesced:
            return NeverCompletingFuture()
        return self._service.schedule_at_fixed_rate(self._by_mail(callback), initial_delay_ms, period_ms)

    def schedule_with_fixed_delay(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        """Schedule a task as in ProcessingTimeService."""
        if self._quiesced:
            return NeverCompletingFuture()
        return self._service.schedule_with_fixed_delay(self._by_mail(callback), initial_delay_ms, period_ms)

    def quiesce(self) -> Future[None]:
        """Send no mail from now on, without waiting. New timers are accepted and never run.

        The future completes when the mail being sent now is sent. All calls return the same future, which can't be
        cancelled. The other service keeps the pending timers until it fires them, without effect. Unless you cancel it,
        a periodic task fires like this for as long as that service lives.
        """
        with self._lock:
            self._quiesced = True
            over = self._sending == 0
        if over:
            self._over.complete()
        return self._over

    def _by_mail(self, callback: TimerCallback) -> TimerCallback:
        def send(due_ms: int) -> None:
            with self._lock:
                # Check and count under one lock: a quiesce() in between would not wait for this mail.
                if self._quiesced:
                    return
                self._sending += 1
            try:
                self._execute(lambda: callback(due_ms), "timer of %s ms", due_ms)
            except RejectedExecutionError:
                log.debug("timer of %s ms dropped: the mailbox is closed", due_ms)
            finally:
                with self._lock:
                    self._sending -= 1
                    over = self._quiesced and self._sending == 0
                if over:
                    self._over.complete()

        return send
