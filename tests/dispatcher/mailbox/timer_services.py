"""What the tests of the time services share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.mailbox import ManualClock, SystemProcessingTimeService
from dispatcher.mailbox.time_service import TimerFuture

from .conftest import TIMEOUT_S

Service = ManualClock | SystemProcessingTimeService
Register = Callable[[Service, Callable[[int], Any]], TimerFuture]

FAR_MS = 3_600_000
"""From now: a timer that no test waits for."""


class Hold:
    """Keeps the timer thread in a callback until the test lets it go, so that what is registered fires in one go."""

    def __init__(self, service: SystemProcessingTimeService) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.future = service.register_timer(0, self)
        assert self.entered.wait(TIMEOUT_S)

    def __call__(self, due_ms: int) -> None:
        self.entered.set()
        assert self.let_go.wait(TIMEOUT_S)


class SteppedTime(SystemProcessingTimeService):
    """The real thread, in a time that passes as the test says, with a system clock that the test may set."""

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        super().__init__("stepped", on_error)
        self.now_ms = 1000
        self.passed_ms = 50

    def current_processing_time(self) -> int:
        return self.now_ms

    def set_time(self, now_ms: int) -> None:
        """Let time pass until `now_ms`."""
        with self._tasks.changed:
            self.passed_ms += now_ms - self.now_ms
            self.now_ms = now_ms
            self._tasks.changed.notify()

    def set_clock(self, now_ms: int) -> None:
        """Set the system clock, as NTP or an administrator does: no time passes."""
        with self._tasks.changed:
            self.now_ms = now_ms
            self._tasks.changed.notify()

    def _unix_ms(self) -> float:
        return self.now_ms

    def _steady_ms(self) -> float:
        return self.passed_ms


class BusyTime(SteppedTime):
    """As on a busy machine: other threads may run between a look at the system clock and one at the steady one."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_ms: list[int] = []
        """After the next looks at the system clock."""

    def _unix_ms(self) -> float:
        now_ms = self.now_ms
        if self.pauses_ms:
            self.set_time(now_ms + self.pauses_ms.pop())
        return now_ms


class Reporter:
    """An `on_error` that fails itself if asked to."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.errors: list[BaseException] = []

    def __call__(self, error: BaseException) -> None:
        self.errors.append(error)
        if self.failure is not None:
            raise self.failure


def fail(due_ms: int) -> None:
    raise LookupError(f"timer of {due_ms} ms")


def once(service: Service, callback: Callable[[int], Any]) -> TimerFuture:
    return service.register_timer(service.current_processing_time() + FAR_MS, callback)


def at_fixed_rate(service: Service, callback: Callable[[int], Any]) -> TimerFuture:
    return service.schedule_at_fixed_rate(callback, FAR_MS, 10)


def with_fixed_delay(service: Service, callback: Callable[[int], Any]) -> TimerFuture:
    return service.schedule_with_fixed_delay(callback, FAR_MS, 10)


each_kind = pytest.mark.parametrize("register", [once, at_fixed_rate, with_fixed_delay])
