"""Sampling how long mail waits in a mailbox, after Flink's MailboxMetricsController."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING

from dispatcher.errors import DispatcherError, MailboxStateError, RejectedExecutionError
from dispatcher.util.histogram import Histogram
from dispatcher.util.threads import NO_THREAD, postpone

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from dispatcher.mailbox.executor import MailboxExecutor
    from dispatcher.mailbox.time_service import ProcessingTimeService


class MailboxMetricsController:
    """Sends a mail each interval, and records how long it waits until it runs.

    There's one measurement at a time, so they're interval + latency apart. Once the controller is set up, its processor
    starts it with the first mail. The mailbox thread writes `latency`.
    """

    def __init__(self, latency: Histogram | None = None, *, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self.latency = latency or Histogram()
        self.interval_ms = 1000
        """Time from the end of a measurement to the start of the next."""
        self._clock_ns = clock_ns
        self._parts: tuple[ProcessingTimeService, MailboxExecutor] | None = None  # set once, before the start
        # The next measurement; written by the mailbox thread, or by the one that starts what was postponed.
        self._timer: Future[None] | None = None
        self.is_waiting_for_start = False  # set up, and not started

    def set_up_latency_measurement(self, time_service: ProcessingTimeService, executor: MailboxExecutor) -> None:
        """Set the timers and the mailbox. Call it once, before the mailbox loop runs.

        Raises:
            MailboxStateError: it's already set up.
        """
        if self._parts is not None:
            raise MailboxStateError("latency measurement is set up already; it is done once")
        self._parts = time_service, executor
        self.is_waiting_for_start = True

    def start_latency_measurement(self) -> None:
        """Register the first timer, one interval from now. Call it once.

        Raises:
            MailboxStateError: it isn't set up, or it's already started.
        """
        if self._parts is None:
            raise MailboxStateError("latency measurement is not set up; call set_up_latency_measurement first")
        if not self.is_waiting_for_start:
            raise MailboxStateError("latency measurement is started already; it is done once")
        self.is_waiting_for_start = False
        self._schedule()

    def stop_latency_measurement(self) -> None:
        """Cancel the timer. Call it once the mailbox thread runs no more mail."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        assert self._parts is not None
        time_service, executor = self._parts
        due_ms = time_service.current_processing_time() + self.interval_ms
        try:
            self._timer = time_service.register_timer(due_ms, lambda _: self._measure(executor))
        except DispatcherError as error:  # the timers are shut down, which must not fail the mailbox
            log.debug("the mailbox latency is no longer measured: %s", error)
        except NO_THREAD as error:
            postpone("the mailbox's latency measurement", self._schedule, error)

    def _measure(self, executor: MailboxExecutor) -> None:
        """On the timers' thread. The mail registers the next timer, so a closed mailbox ends the measurement."""
        sent_ns = self._clock_ns()

        def arrived() -> None:
            self.latency.observe(self._clock_ns() - sent_ns)
            self._schedule()

        with suppress(RejectedExecutionError):
            executor.execute(arrived, "measure the mailbox latency")
