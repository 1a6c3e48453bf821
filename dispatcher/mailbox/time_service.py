"""The interface of processing time, after Flink's ProcessingTimeService: a clock with timers.

Times are milliseconds, since the Unix epoch or since the start of a simulated clock; so are delays and periods. A
callback gets the time for which it was scheduled, not the time at which it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

TimerCallback = Callable[[int], Any]
"""Flink's ProcessingTimeCallback: called with the scheduled time, in ms. What it returns is ignored."""

TimerFuture = Future[None]
"""The future of a timer or a periodic task. Any thread may cancel it; it is then done for `concurrent.futures.wait`.

Its done callbacks run on the thread that completes or cancels it."""


class ProcessingTimeService(Protocol):
    """The interface for users of timers. Any thread can use it, and nothing blocks."""

    def current_processing_time(self) -> int:
        """Return the current time in ms."""

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        """Call `callback(timestamp_ms)` at that time, or as soon as possible if it has passed.

        The future completes with the callback. If you cancel it before, the callback isn't called. If the service is
        quiesced, it never completes.

        Raises:
            DispatcherError: the service is shut down.
        """

    def schedule_at_fixed_rate(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        """Call `callback` at now + `initial_delay_ms`, and then every `period_ms`.

        The callback gets exactly these times. Late runs are made up for one after another, never concurrently. The
        future never completes. To end the task, cancel it, even in the callback.

        Raises:
            ValueError: `period_ms` is less than 1.
            DispatcherError: the service is shut down.
        """

    def schedule_with_fixed_delay(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        """Schedule as `schedule_at_fixed_rate` does, but `period_ms` after the end of the last run."""
