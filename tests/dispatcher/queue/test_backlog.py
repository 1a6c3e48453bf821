"""How long the oldest event has waited, and how long the queue has been full."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig
from dispatcher.testing import ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered
from ...kit.dispatchers import hold

Make = Callable[..., AsyncDispatcher]

SECOND_NS = 1_000_000_000


class Course:
    """A dispatcher whose handler is held in its first event, and a backlog that is checked by hand."""

    def __init__(self, make: Make, gate: Gate, *, stamped: bool = False, **options: object) -> None:
        self.now_ns = 100 * SECOND_NS
        config = DispatcherConfig(measure_times="all" if stamped else "none", **options)
        self.dispatcher = make(config, handler=gate, time_service=ManualClock())
        self.left = 1  # the event that the handler holds
        self.backlog = self.dispatcher.view._dispatching.backlog
        self.backlog._left, self.backlog._clock_ns = lambda: self.left, lambda: self.now_ns  # type: ignore[method-assign]
        self.post()
        assert gate.entered.wait(TIMEOUT_S)

    def post(self, events: int = 1) -> None:
        for _ in range(events):
            self.dispatcher.post(Numbered())

    def drop(self) -> None:
        self.dispatcher.core.queue.entries.popleft()
        self.left += 1

    def check_at(self, second: float) -> None:
        self.at(second)
        self.backlog.check()

    def at(self, second: float) -> None:
        self.now_ns = int((100 + second) * SECOND_NS)


def test_an_event_has_waited_since_the_first_check_that_saw_it(make: Make, gate: Gate) -> None:
    course = Course(make, gate)
    waits = [course.dispatcher.view.oldest_wait_s()]

    course.check_at(0)
    course.post(3)
    course.at(0.5)
    waits.append(course.dispatcher.view.oldest_wait_s())  # at least that
    for second in (1, 2, 3):
        course.check_at(second)
        course.post(10)
    course.at(3.5)
    waits.append(course.dispatcher.view.oldest_wait_s())

    assert waits == [None, 0.0, 2.5]


def test_the_next_event_has_waited_since_its_own_check(make: Make, gate: Gate) -> None:
    course = Course(make, gate)
    course.post(5)
    course.check_at(1)
    course.post(1)
    course.check_at(2)

    for _ in range(5):  # five events leave the front of the queue
        course.drop()
    course.at(10)

    assert course.dispatcher.view.oldest_wait_s() == 8.0
    course.drop()
    assert course.dispatcher.view.oldest_wait_s() is None


def test_a_wait_of_days_is_known_although_few_checks_are_kept(make: Make, gate: Gate) -> None:
    course = Course(make, gate)
    for second in range(5_000):
        course.post()
        course.check_at(second)

    course.at(200_000)

    assert course.dispatcher.view.oldest_wait_s() == 200_000


def test_the_time_that_a_post_noted_is_exact(make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [100 * SECOND_NS]
    monkeypatch.setattr("dispatcher.queue.inbox.perf_counter_ns", lambda: now_ns[0])
    course = Course(make, gate, stamped=True)

    now_ns[0] += SECOND_NS // 4
    course.post()
    now_ns[0] += SECOND_NS
    course.post()
    course.check_at(3)
    course.at(7)

    assert course.dispatcher.view.oldest_wait_s() == 6.75


def test_a_full_queue_is_full_since_the_first_check_that_saw_it(make: Make, gate: Gate) -> None:
    course = Course(make, gate, queue_capacity=2, queue_full_policy="reject")
    course.check_at(0)
    seen = [course.dispatcher.view.full_since_s()]

    course.post(3)
    seen.append(course.dispatcher.view.full_since_s())  # at least that
    course.check_at(1)
    course.check_at(2)
    course.at(2.5)
    seen.append(course.dispatcher.view.full_since_s())
    gate.opened.set()
    assert course.dispatcher.await_drained(TIMEOUT_S)
    seen.append(course.dispatcher.view.full_since_s())
    course.check_at(3)

    assert seen == [None, 0.0, 1.5, None]


def test_a_queue_without_a_bound_is_never_full(make: Make, gate: Gate) -> None:
    course = Course(make, gate)
    course.post(1_000)
    course.check_at(1)

    assert course.dispatcher.view.full_since_s() is None


def test_the_monitor_checks_the_backlog_of_a_dispatcher_whose_handler_hangs(make: Make, gate: Gate) -> None:
    clock = ManualClock()
    dispatcher = make(DispatcherConfig(queue_capacity=1, measure_times="none"), handler=gate, time_service=clock)
    hold(dispatcher, gate)
    dispatcher.post(Numbered())
    before = dispatcher.view.full_since_s()

    clock.advance(1000)
    full_s, wait_s = dispatcher.view.full_since_s(), dispatcher.view.oldest_wait_s()

    assert before == 0.0
    assert full_s is not None
    assert full_s > 0
    assert wait_s is not None
    assert wait_s > 0
