"""The interfaces of processing time, after Flink's ProcessingTimeService and TimerService: a clock with timers.

Times are Unix milliseconds, or whatever a clock that is not a real one counts from; delays and periods are
milliseconds, too. A callback gets the time for which it was scheduled, not the one at which it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

TimerCallback = Callable[[int], Any]
"""Flink's ProcessingTimeCallback: called with the scheduled time, in ms. What it returns is ignored."""

TimerFuture = Future[None]
"""Of a timer or a periodic task; `cancel` from any thread. A cancelled one is done for `concurrent.futures.wait`, too.

It runs its done callbacks on the thread that completes or cancels it."""


class ProcessingTimeService(Protocol):
    """What users of timers see. Any thread may call; nothing blocks."""

    def current_processing_time(self) -> int:
        """Now, in ms."""

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> TimerFuture:
        """Call `callback(timestamp_ms)` at that time, or as soon as possible if it has passed.

        The future completes with the callback; cancelling it before keeps the callback from being called. Of a service
        that is quiesced, it never completes.

        Raises:
            DispatcherError: the service is shut down.
        """

    def schedule_at_fixed_rate(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        """Call `callback` at now + `initial_delay_ms`, and from there on for each `period_ms`.

        The callback gets exactly these times. Runs that are late are made up for one after the other, never at once.
        The future completes never: cancelling it ends the task, also from the callback itself.

        Raises:
            ValueError: `period_ms` is less than 1. DispatcherError: the service is shut down.
        """

    def schedule_with_fixed_delay(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        """As `schedule_at_fixed_rate`, but the next run is scheduled for the end of a run + `period_ms`."""


class TimerService(ProcessingTimeService, Protocol):
    """What the owner of a service sees: ALIVE -> QUIESCED -> SHUTDOWN, never back. Any thread may call.

    No callback begins once a service is not ALIVE; the futures of what was pending then, or periodic, are cancelled.
    """

    def quiesce(self) -> Future[None]:
        """Drop all tasks, and take new ones without ever running them. Does not wait for a callback that runs.

        The future completes when that callback has ended and no other can begin. All calls give the same future; it
        cannot be cancelled. Waiting for it in a callback waits for ever.
        """

    def shutdown(self, timeout: float | None = 1.0) -> bool:
        """Drop all tasks, and refuse new ones; says whether a callback that ran has ended within `timeout` seconds."""

    def shutdown_uninterruptible(self, timeout: float) -> bool:
        """As `shutdown`; a KeyboardInterrupt meanwhile does not end the wait, but is raised after it."""

    def is_terminated(self) -> bool:
        """No callback runs, and none will."""
