"""Monitoring of a dispatcher: logs the size of its queue, and handlers that take too long.

It never blocks producers or the handler thread: work that takes longer than a log line runs on a thread of its own.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from time import perf_counter_ns
from typing import Any, Final

from dispatcher.config import DispatcherConfig
from dispatcher.dispatching.progress import Progress
from dispatcher.mailbox.system_timers import SystemProcessingTimeService
from dispatcher.mailbox.time_service import ProcessingTimeService
from dispatcher.queue.posting import EventQueue
from dispatcher.util.foreign import kind_of, tell, text_of

log = logging.getLogger("dispatcher.async_dispatcher")

SIZE_STEP: Final = 1000
"""Events between two log lines of the queue's size; also the remaining capacity below which it is low."""
_WARN_EVERY_NS: Final = 30_000_000_000
_SIZE_EVERY_NS: Final = 1_000_000_000
_CHECK_EVERY_MS: Final = 1000


class _RateLimiter:
    """Allows an action at most once in `every_ns`. Any thread; two at the same moment may both be allowed."""

    def __init__(self, every_ns: int, clock_ns: Callable[[], int]) -> None:
        self._every_ns = every_ns
        self._clock_ns = clock_ns
        self._last_ns: int | None = None  # any thread writes

    def is_due(self) -> bool:
        now_ns = self._clock_ns()
        if self._last_ns is not None and now_ns - self._last_ns < self._every_ns:
            return False
        self._last_ns = now_ns
        return True


class QueueSizeLog:
    """Logs a queue's size, low capacity and contents, as YARN's dispatcher does. Any thread may call.

    It takes no lock: two threads at the same moment may log the same line.
    """

    def __init__(
        self,
        name: str,
        config: DispatcherConfig,
        contents: Callable[[], list[tuple[Enum, int]]],
        in_hand: Callable[[], Any],
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._name = name
        self._contents = contents
        self._in_hand = in_hand
        self._threshold = config.print_events_info_threshold
        capacity = config.queue_capacity
        self._low = 0 if capacity is None else min(SIZE_STEP, max(1, capacity // 10))
        self._logged_step = 0  # any thread writes
        self._sizes = _RateLimiter(_SIZE_EVERY_NS, clock_ns)
        self._warnings = _RateLimiter(_WARN_EVERY_NS, clock_ns)
        self._details = _RateLimiter(_WARN_EVERY_NS, clock_ns)

    def __call__(self, size: int, remaining: int | None) -> None:
        """The queue holds `size` events, and `remaining` more would fit."""
        if size >= SIZE_STEP:
            self._log_size(size)
        if remaining is not None and remaining < self._low and self._warnings.is_due():
            message = "%s: Very low remaining capacity in the event-queue: %d"
            tell(log, logging.WARNING, message, self._name, remaining)
        if (
            size >= self._threshold
            and log.isEnabledFor(logging.INFO)  # do not count a long queue for a line that is not logged
            and self._details.is_due()
        ):
            threading.Thread(target=self._print_details, name=f"{self._name}-details", daemon=True).start()

    def _log_size(self, size: int) -> None:
        step = size // SIZE_STEP
        if step == self._logged_step:
            return
        # In a flood the size is sampled rarely, and changes faster than a user can read.
        if size % SIZE_STEP == 0 or self._sizes.is_due():
            self._logged_step = step
            tell(log, logging.INFO, "%s: Size of event-queue is %d", self._name, size)

    def _print_details(self) -> None:
        in_hand = self._in_hand()
        for event_type, count in sorted(self._contents(), key=lambda item: -item[1]):
            message = "%s: Event type: %s, Event record counter: %d"
            tell(log, logging.INFO, message, self._name, kind_of(event_type), count)
        if in_hand is not None:
            tell(log, logging.INFO, "%s: Latest dispatch event: %s", self._name, text_of(in_hand))


class HandlerWatch:
    """Logs a handler that runs longer than `warn_after_s` (None: no limit), once, with its stack.

    `describe` returns where the handler is; `on_long` is called after the log line.
    """

    def __init__(
        self,
        name: str,
        warn_after_s: float | None,
        progress: Progress,
        describe: Callable[[], str],
        on_long: Callable[[], None],
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._name = name
        self._warn_after_ns = math.inf if warn_after_s is None else int(warn_after_s * 1e9)
        self._progress = progress
        self._describe = describe
        self._on_long = on_long
        self._clock_ns = clock_ns
        self._warned_of_ns = 0  # start of the last handler that was logged; the timers' thread only

    def check(self) -> None:
        """Check the handler now. The timers' thread."""
        since_ns = self._progress.since_ns
        if not since_ns or since_ns == self._warned_of_ns:
            return
        running_ns = self._clock_ns() - since_ns
        if running_ns < self._warn_after_ns:
            return
        self._warned_of_ns = since_ns
        message = "%s: a handler has run for %.3g s, %s"
        tell(log, logging.WARNING, message, self._name, running_ns / 1e9, self._describe())
        self._on_long()


def check_every_ms(config: DispatcherConfig) -> int:
    """The interval between two checks: short enough that a warning is not much late."""
    warn_after_s = config.handler_warn_after_s
    return _CHECK_EVERY_MS if warn_after_s is None else max(10, min(_CHECK_EVERY_MS, int(warn_after_s * 250)))


class Monitor:
    """Checks one dispatcher periodically, even when no producer posts and the handler hangs."""

    def __init__(
        self, config: DispatcherConfig, queue: EventQueue, size_log: QueueSizeLog, watch: HandlerWatch
    ) -> None:
        self._every_ms = check_every_ms(config)  # never changes
        self._queue, self._size_log, self._watch = queue, size_log, watch  # never change
        self._timer: Future[None] | None = None  # set by the start, read by the stop

    def start(self, time_service: ProcessingTimeService) -> None:
        self._timer = time_service.schedule_with_fixed_delay(lambda _: self._check(), self._every_ms, self._every_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """On the timers' thread."""
        if self._queue.entries:  # a KeyboardInterrupt may cut a post short before it wakes the handler thread
            self._queue.wake()
        self._size_log(len(self._queue.entries), self._queue.room.remaining())
        self._watch.check()


def describe_stack(thread: threading.Thread, event: Any) -> str:
    """What a thread is doing, as several lines for the log."""
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "(its thread has ended)"
    what = f"at work on {text_of(event)}" if event is not None else "at work on a mail"
    return f"{what}. It is here:\n{stack}"


_shared: SystemProcessingTimeService | None = None
_shared_lock = threading.Lock()


def shared_time_service() -> ProcessingTimeService:
    """The timers that all dispatchers of the process share: one thread, started with the first timer."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = SystemProcessingTimeService("dispatcher-monitor")
        return _shared


def _forget_shared() -> None:
    """In a forked child, which has neither the timers' thread nor the thread that may have held the lock."""
    global _shared, _shared_lock
    _shared = None
    _shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_shared)
