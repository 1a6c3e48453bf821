"""ManualClock against a plain list of tasks: which callbacks run at which time, and what becomes of each future.

What callbacks do is data, so that the clock's and the model's do the same; what both log is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatcher import DispatcherError
from dispatcher.mailbox import ManualClock

from ...kit import tries

START_MS = 100


class Failure(Exception):
    """Of a callback."""


Deed = tuple[str, int]
"""What a callback does, and a number for it."""

quick_deeds = st.one_of(
    st.tuples(st.just("register"), st.integers(-5, 20)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["fail", "quiesce", "shut down"]), st.just(0)),
)
# Only of a timer: a periodic task that advances further than its period is due again without end.
deeds = st.lists(quick_deeds | st.tuples(st.just("advance"), st.integers(0, 20)), max_size=2).map(tuple)


class Real:
    """The clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.futures: list[Future[None]] = []
        self.log: list[tuple[Any, ...]] = []

    def add(self, kind: str, delay_ms: int, period_ms: int, does: tuple[Deed, ...]) -> None:
        number = len(self.futures)

        def run(due_ms: int) -> None:
            self.log.append((number, due_ms, self.clock.current_processing_time()))
            for deed in does:
                self.do(deed)

        if kind == "timer":
            future = self.clock.register_timer(self.clock.current_processing_time() + delay_ms, run)
        elif kind == "rate":
            future = self.clock.schedule_at_fixed_rate(run, delay_ms, period_ms)
        else:
            future = self.clock.schedule_with_fixed_delay(run, delay_ms, period_ms)
        self.futures.append(future)

    def do(self, deed: Deed) -> None:
        match deed:
            case "register", delay_ms:
                self.add("timer", delay_ms, 0, ())
            case "cancel", number:
                if number < len(self.futures):
                    self.log.append(("cancel", number, self.futures[number].cancel()))
            case "quiesce", _:
                self.log.append(("quiesce", self.clock.quiesce().done()))
            case "shut down", _:
                self.log.append(("shut down", self.clock.shutdown()))
            case "advance", ms:
                self.clock.advance(ms)
            case "fail", _:
                raise Failure

    def states(self) -> list[str]:
        return [
            "waits" if not future.done() else "cancelled" if future.cancelled() else kind_of(future.exception(0))
            for future in self.futures
        ]


@dataclass
class Task:
    number: int
    kind: str
    due_ms: int
    period_ms: int
    does: tuple[Deed, ...]
    state: str = "waits"


class Model:
    """The same in plain lists."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.tasks: list[Task] = []
        self.waiting: list[tuple[int, int, Task]] = []  # due ms and order of entry
        self.order = count()
        self.status = "alive"
        self.running: list[Task] = []
        self.log: list[tuple[Any, ...]] = []

    def add(self, kind: str, delay_ms: int, period_ms: int, does: tuple[Deed, ...]) -> None:
        if self.status == "shut down":
            raise DispatcherError("shut down")
        task = Task(len(self.tasks), kind, self.now_ms + delay_ms, period_ms, does)
        self.tasks.append(task)
        if self.status == "alive":
            self.wait(task)

    def wait(self, task: Task) -> None:
        self.waiting.append((task.due_ms, next(self.order), task))

    def do(self, deed: Deed) -> None:
        match deed:
            case "register", delay_ms:
                self.add("timer", delay_ms, 0, ())
            case "cancel", number:
                if number < len(self.tasks):
                    self.log.append(("cancel", number, self.cancel(self.tasks[number])))
            case ("quiesce" | "shut down") as end, _:
                if self.status != "shut down":
                    self.status = "quiesced" if end == "quiesce" else end
                for _, _, task in list(self.waiting):
                    self.cancel(task)
                self.log.append((end, not self.running))
            case "advance", ms:
                self.advance(ms)
            case "fail", _:
                raise Failure

    def cancel(self, task: Task) -> bool:
        is_too_late = task in self.running and task.kind == "timer"
        if is_too_late or task.state not in ("waits", "cancelled"):
            return False
        task.state = "cancelled"
        self.waiting = [entry for entry in self.waiting if entry[2] is not task]
        return True

    def advance(self, ms: int) -> None:
        target_ms = self.now_ms + ms
        while self.fire_next(max(self.now_ms, target_ms)):
            pass
        self.now_ms = max(self.now_ms, target_ms)

    def advance_to_next_timer(self) -> bool:
        if not self.fire_next(None):
            return False
        while self.fire_next(self.now_ms):
            pass
        return True

    def fire_next(self, until_ms: int | None) -> bool:
        entry = min(self.waiting, default=None, key=lambda entry: entry[:2])
        if entry is None or (until_ms is not None and entry[0] > until_ms):
            return False
        self.waiting.remove(entry)
        task = entry[2]
        self.now_ms = max(self.now_ms, task.due_ms)
        self.running.append(task)
        try:
            self.log.append((task.number, task.due_ms, self.now_ms))
            for deed in task.does:
                self.do(deed)
        except Exception as error:
            if task.kind == "timer":
                task.state = kind_of(error)
            raise
        else:
            if task.kind == "timer":
                task.state = kind_of(None)
        finally:
            self.running.remove(task)
            self.repeat(task)
        return True

    def repeat(self, task: Task) -> None:
        if task.kind == "timer" or task.state == "cancelled":
            return
        if self.status != "alive":
            task.state = "cancelled"
            return
        task.due_ms = (task.due_ms if task.kind == "rate" else self.now_ms) + task.period_ms
        self.wait(task)


def kind_of(error: BaseException | None) -> str:
    return type(error).__name__


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Failure, DispatcherError) as error:
        return type(error)


class TimersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real, self.model = Real(), Model()

    @rule(delay_ms=st.integers(-10, 40), does=deeds)
    def register_a_timer(self, delay_ms: int, does: tuple[Deed, ...]) -> None:
        assert outcome(lambda: self.real.add("timer", delay_ms, 0, does)) is outcome(
            lambda: self.model.add("timer", delay_ms, 0, does)
        )

    @rule(
        kind=st.sampled_from(["rate", "delay"]),
        delay_ms=st.integers(-10, 40),
        period_ms=st.integers(1, 15),
        does=st.lists(quick_deeds, max_size=1).map(tuple),
    )
    def schedule_a_task(self, kind: str, delay_ms: int, period_ms: int, does: tuple[Deed, ...]) -> None:
        assert outcome(lambda: self.real.add(kind, delay_ms, period_ms, does)) is outcome(
            lambda: self.model.add(kind, delay_ms, period_ms, does)
        )

    @rule(number=st.integers(0, 15))
    def cancel(self, number: int) -> None:
        self.real.do(("cancel", number))
        self.model.do(("cancel", number))

    @rule(ms=st.integers(0, 50))
    def advance(self, ms: int) -> None:
        assert outcome(lambda: self.real.clock.advance(ms)) is outcome(lambda: self.model.advance(ms))

    @rule()
    def advance_to_next_timer(self) -> None:
        assert outcome(self.real.clock.advance_to_next_timer) is outcome(self.model.advance_to_next_timer)

    @precondition(lambda self: len(self.model.tasks) > 6)
    @rule(end=st.sampled_from(["quiesce", "shut down"]))
    def end(self, end: str) -> None:
        self.real.do((end, 0))
        self.model.do((end, 0))

    @invariant()
    def both_did_the_same(self) -> None:
        clock, model = self.real.clock, self.model
        assert self.real.log == model.log
        assert self.real.states() == [task.state for task in model.tasks]
        assert clock.current_processing_time() == model.now_ms
        assert clock.pending_timers == len(model.waiting)
        assert clock.next_timer_ms() == min((due_ms for due_ms, _, _ in model.waiting), default=None)
        assert clock.is_terminated() is (model.status != "alive")


class TestTimers(TimersMachine.TestCase):
    settings = settings(max_examples=tries(80), stateful_step_count=25, deadline=None)


def test_time_goes_forward_only() -> None:
    clock = ManualClock(100)
    clock.advance(25)

    with pytest.raises(ValueError, match="time goes forward only: cannot advance by -1 ms"):
        clock.advance(-1)

    assert (clock.current_processing_time(), clock.current_time_ns()) == (125, 125_000_000)
