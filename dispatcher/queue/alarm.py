"""When the handler thread is to fire what is due: timers, and the next attempts of failed events.

Its own sleep ends then, so this needs no thread. On a clock other than the system's, such as a test's, a timer of the
time service fires instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final, Protocol

from dispatcher.mailbox.parking import NEVER
from dispatcher.mailbox.system_timers import SystemProcessingTimeService
from dispatcher.mailbox.time_service import ProcessingTimeService, TimerFuture
from dispatcher.queue.flags import DRAINING
from dispatcher.queue.inbox import Inbox

_NEVER_MS: Final = 1 << 40
"""The period of a timer that is cancelled when it fires."""


class DueSource(Protocol):
    """What knows times at which something is due. Any thread."""

    def delay_ns(self) -> float:
        """The time until the first of them. NEVER or more means that nothing will be due. Under the inbox's lock."""

    def fire(self) -> bool:
        """Post the first that is due, or return False if none is. The handler thread, or the time service's."""


class Alarm:
    """The alarm of one dispatcher. Any thread, unless a method says otherwise."""

    def __init__(self, inbox: Inbox, time_service: Callable[[], ProcessingTimeService]) -> None:
        self._inbox = inbox  # never changes, like all fields that do not say otherwise
        self._time_service = time_service
        self.sources: list[DueSource] = []  # complete before the start
        # When the handler thread is to fire, by perf_counter_ns; written under the inbox's lock, read without it.
        self.next_ns: int = NEVER
        self._is_on = False  # guarded by the inbox's lock
        self._timer: TimerFuture | None = None  # of the time service; guarded by the inbox's lock
        self._timer_ns: float = NEVER  # when that is due; guarded by the inbox's lock

    def is_real(self) -> bool:
        return isinstance(self._time_service(), SystemProcessingTimeService)

    def now_ns(self, wall: bool) -> int:
        """The monotonic or the wall clock. A manual clock is both."""
        if self.is_real():
            return time.time_ns() if wall else time.monotonic_ns()
        return self._time_service().current_processing_time() * 1_000_000

    def start(self) -> None:
        """From now on, what is due is fired. The thread that starts the dispatcher."""
        with self._inbox.lock:
            self._is_on = True
        self.arm()

    def end(self) -> None:
        """Fire no more. Repeating it is harmless."""
        with self._inbox.lock:
            self._is_on, self.next_ns = False, NEVER
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def after_fork(self) -> None:
        """In a child process: it fires in the parent."""
        self._is_on, self.next_ns, self._timer = False, NEVER, None

    def arm(self) -> None:
        """The first time of a source may have changed."""
        with self._inbox.lock:
            if not self._is_on or self._inbox.phase > DRAINING:
                return
            delay_ns = max(0.0, min(source.delay_ns() for source in self.sources))
            if not self.is_real():
                self._arm_service(delay_ns)
                return
            before_ns, self.next_ns = self.next_ns, min(NEVER, perf_counter_ns() + math.ceil(delay_ns))
            is_sooner = self.next_ns < before_ns
        if is_sooner:
            self._inbox.wake()

    def ring(self) -> None:
        """Have the handler thread fire soon."""
        with self._inbox.lock:
            self.next_ns = 0
        self._inbox.wake()

    def fire(self) -> None:
        """Post what is due. The handler thread, between events, or the time service's."""
        with self._inbox.lock:
            self.next_ns = NEVER
            timer, self._timer, self._timer_ns = self._timer, None, NEVER
        if timer is not None:
            timer.cancel()
        try:
            while self._first_due().fire():
                pass
        finally:
            self.arm()

    def _first_due(self) -> DueSource:
        with self._inbox.lock:
            return min(self.sources, key=lambda source: source.delay_ns())

    def _arm_service(self, delay_ns: float) -> None:
        """Under the inbox's lock, which comes before the time service's."""
        due_ns = self.now_ns(False) + delay_ns
        if due_ns >= self._timer_ns:
            return
        self._timer_ns = NEVER  # before the next steps, which an interrupt may cut short
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._time_service().schedule_with_fixed_delay(
            lambda _: self.fire(), math.ceil(delay_ns / 1e6), _NEVER_MS
        )
        self._timer_ns = due_ns
