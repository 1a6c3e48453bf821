"""What the tests of the time services share: their kinds, and the stage of their scenarios."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from dispatcher.mailbox import (
    MailboxExecutor,
    MailboxTimeService,
    ManualClock,
    SystemProcessingTimeService,
    TaskMailbox,
)

from ...kit import until
from .conftest import TIMEOUT_S

FAR_MS = 3_600_000
"""From now: a timer that no test waits for."""


class Hold:
    """Keeps the timer thread in a callback until the test lets it go, so that what is registered fires in one go."""

    def __init__(self, service: SystemProcessingTimeService | MailboxTimeService) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.future = service.register_timer(0, self)
        assert self.entered.wait(TIMEOUT_S)

    def __call__(self, due_ms: int) -> None:
        self.entered.set()
        assert self.let_go.wait(TIMEOUT_S)


class WatchedCondition(threading.Condition):
    """Knows whether a thread waits for it."""

    is_waited_for = False

    def wait(self, timeout: float | None = None) -> bool:
        self.is_waited_for = True
        try:
            return super().wait(timeout)
        finally:
            self.is_waited_for = False


class SteppedTime(SystemProcessingTimeService):
    """The real thread, in a time that passes as the test says, with a system clock that the test may set."""

    def __init__(self, on_error: Callable[[BaseException], None] | None = None, now_ms: int = 1000) -> None:
        super().__init__("stepped", on_error)
        self._tasks.changed = self._changed = WatchedCondition(self._tasks.lock)
        self.now_ms = now_ms
        self.passed_ms = 50

    def current_processing_time(self) -> int:
        return self.now_ms

    def set_time(self, now_ms: int) -> None:
        """Let time pass until `now_ms`."""
        with self._changed:
            self.passed_ms += now_ms - self.now_ms
            self.now_ms = now_ms
            self._changed.notify()

    def set_clock(self, now_ms: int) -> None:
        """Set the system clock, as NTP or an administrator does: no time passes."""
        with self._changed:
            self.now_ms = now_ms
            self._changed.notify()

    def settle(self) -> None:
        """Wait until all that is due has run."""
        until(self._is_at_rest, "all that is due has run")

    def _is_at_rest(self) -> bool:
        with self._changed:
            due_ms = self._tasks.next_due_ms()
            return (due_ms is None or due_ms > self.passed_ms) and (
                self._thread is None or not self._thread.is_alive() or self._changed.is_waited_for
            )

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


def fail(due_ms: int) -> None:
    raise LookupError(f"timer of {due_ms} ms")


class AtOnce:
    """An executor that runs each mail while it is sent."""

    def execute(self, command: Callable[[], Any], *_: Any) -> None:
        command()


START_MS = 1000


class TimerStage:
    """A manual clock, as the stage of scenarios (`tests/kit/scenarios.py`). Times are in ms since its beginning.

        timer NAME MS [DEED...]             register a timer
        rate, delay NAME MS PERIOD DEED...  schedule a task at a fixed rate, or with a fixed delay
        cancel NAME...
        quiesce, shutdown
        +MS                                 time passes ms by ms
        jump MS                             time passes at once

    A callback's deed is `fails`, or a step without spaces: `cancel:a`, `timer:b:12`. The looks: `fired` (name:ms, as
    the callbacks are told), `states` of the futures, what the cancellations returned (`cancelled`), the times whose
    callback has failed (`errors`), and whether the service is quiesced (`over`).
    """

    def __init__(self) -> None:
        self.fired: list[str] = []
        self.cancelled: list[bool] = []
        self.errors: list[int] = []
        self.futures: dict[str, Any] = {}
        self.over: Any = None
        self.service: Any = self.make()

    def make(self) -> Any:
        self.clock = ManualClock(START_MS)
        return self.clock

    def pass_time(self, ms: int) -> None:
        end_ms = self.clock.current_processing_time() + ms
        while (left_ms := end_ms - self.clock.current_processing_time()) > 0 or self.is_due():
            try:
                self.clock.advance(left_ms)
            except LookupError as error:
                self.report(error)

    def is_due(self) -> bool:
        due_ms = self.clock.next_timer_ms()
        return due_ms is not None and due_ms <= self.clock.current_processing_time()

    def report(self, error: BaseException) -> None:
        assert isinstance(error, LookupError)
        self.errors += error.args

    def close(self) -> None: ...

    def play(self, verb: str, *words: str) -> None:
        if verb.startswith("+"):
            for _ in range(int(verb[1:])):
                self.pass_time(1)
            return
        match verb, words:
            case "jump", [ms]:
                self.pass_time(int(ms))
            case "timer", [name, ms, *deeds]:
                callback = self.callback(name, deeds)
                self.futures[name] = self.service.register_timer(START_MS + int(ms), callback)
            case "rate", [name, ms, period_ms, *deeds]:
                callback = self.callback(name, deeds)
                self.futures[name] = self.service.schedule_at_fixed_rate(callback, int(ms), int(period_ms))
            case "delay", [name, ms, period_ms, *deeds]:
                callback = self.callback(name, deeds)
                self.futures[name] = self.service.schedule_with_fixed_delay(callback, int(ms), int(period_ms))
            case "cancel", names:
                self.cancelled += [self.futures[name].cancel() for name in names]
            case "quiesce", _:
                self.over = self.service.quiesce()
            case "shutdown", _:
                self.service.shutdown(TIMEOUT_S)

    def callback(self, name: str, deeds: list[str]) -> Callable[[int], None]:
        def run(due_ms: int) -> None:
            self.fired.append(f"{name}:{due_ms - START_MS}")
            for deed in deeds:
                if deed == "fails":
                    raise LookupError(due_ms - START_MS)
                self.play(*deed.split(":"))

        return run

    def look(self, what: str) -> Iterable[object]:
        match what:
            case "states":
                return map(_state_of, self.futures.values())
            case "over":
                return [self.over.done() if self.over is not None else self.service.is_terminated()]
        return list(getattr(self, what))


class SteppedStage(TimerStage):
    """The service with a thread."""

    def make(self) -> Any:
        self.stepped = SteppedTime(self.report, START_MS)
        return self.stepped

    def pass_time(self, ms: int) -> None:
        self.stepped.set_time(self.stepped.now_ms + ms)
        self.stepped.settle()

    def look(self, what: str) -> Iterable[object]:
        if what == "over" and self.over is not None:
            self.over.result(TIMEOUT_S)  # its thread ends
        return super().look(what)

    def close(self) -> None:
        assert self.stepped.shutdown(TIMEOUT_S)


class ViewStage(TimerStage):
    """One user's view, whose mail runs while it is sent."""

    def make(self) -> Any:
        return MailboxTimeService(super().make(), AtOnce())  # type: ignore[arg-type]


class MailedStage(TimerStage):
    """One user's view, whose mail waits in a mailbox for the end of each step."""

    def make(self) -> Any:
        self.mailbox = TaskMailbox()
        return MailboxTimeService(super().make(), MailboxExecutor(self.mailbox, 0))

    def pass_time(self, ms: int) -> None:
        super().pass_time(ms)
        while (mail := self.mailbox.try_take(0)) is not None:
            try:
                mail.run()
            except LookupError as error:
                self.report(error)


SERVICES = {"manual clock": TimerStage, "thread": SteppedStage}
KINDS = {**SERVICES, "view": ViewStage, "view with a mailbox": MailedStage}


def _state_of(future: Any) -> str:
    if not future.done():
        return "waits"
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    return "done" if error is None else type(error).__name__
