"""Periodic tasks, in both services: which times their callbacks get, and what ends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dispatcher.mailbox import ManualClock, SystemProcessingTimeService

from .conftest import TIMEOUT_S
from .timer_services import Reporter, SteppedTime


class Runs:
    """A periodic callback that records the times it gets, and says when it has got the last."""

    def __init__(self, last_ms: int = 0) -> None:
        self.times: list[int] = []
        self.last_ms = last_ms
        self.ended = threading.Event()

    def __call__(self, scheduled_ms: int) -> None:
        self.times.append(scheduled_ms)
        if scheduled_ms >= self.last_ms:
            self.ended.set()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


@pytest.fixture
def stepped() -> Iterator[SteppedTime]:
    service = SteppedTime()
    yield service
    assert service.shutdown(TIMEOUT_S)


# -- in time that stands still ---------------------------------------------------------------------------------------


def test_a_task_at_a_fixed_rate_runs_for_each_period(clock: ManualClock) -> None:
    runs = Runs()
    future = clock.schedule_at_fixed_rate(runs, 10, 5)

    clock.advance(22)

    assert runs.times == [1010, 1015, 1020]
    assert not future.done()


def test_at_a_fixed_rate_the_length_of_a_run_does_not_count(clock: ManualClock) -> None:
    runs: list[tuple[int, int]] = []

    def run(scheduled_ms: int) -> None:
        runs.append((scheduled_ms, clock.current_processing_time()))
        if len(runs) == 1:
            clock.advance(12)

    clock.schedule_at_fixed_rate(run, 10, 5)
    clock.advance(15)

    assert runs == [(1010, 1010), (1015, 1022), (1020, 1022)]


def test_with_a_fixed_delay_the_next_run_is_a_period_after_the_end_of_a_run(clock: ManualClock) -> None:
    runs: list[tuple[int, int]] = []

    def run(scheduled_ms: int) -> None:
        runs.append((scheduled_ms, clock.current_processing_time()))
        clock.advance(7)

    clock.schedule_with_fixed_delay(run, 10, 5)
    clock.advance(24)

    assert runs == [(1010, 1010), (1022, 1022)]
    assert clock.pending_timers == 1


@pytest.mark.parametrize("period_ms", [0, -5])
@pytest.mark.parametrize("service", [ManualClock, SystemProcessingTimeService])
def test_a_period_of_less_than_1_ms_is_refused(service: type, period_ms: int) -> None:
    timers = service()

    for schedule in (timers.schedule_at_fixed_rate, timers.schedule_with_fixed_delay):
        with pytest.raises(ValueError, match=f"period_ms must be 1 or more, got {period_ms}"):
            schedule(Runs(), 0, period_ms)


# -- on the thread of the real service -------------------------------------------------------------------------------


def test_the_timer_thread_makes_up_for_late_runs_at_a_fixed_rate(stepped: SteppedTime) -> None:
    runs = Runs(last_ms=1020)
    stepped.schedule_at_fixed_rate(runs, 10, 5)

    stepped.set_time(1022)
    assert runs.ended.wait(TIMEOUT_S)
    stepped.shutdown(TIMEOUT_S)

    assert runs.times == [1010, 1015, 1020]


def test_a_periodic_task_is_due_at_its_time_and_a_timer_1_ms_later(stepped: SteppedTime) -> None:
    runs = Runs()
    timer = stepped.register_timer(1010, runs)
    stepped.schedule_at_fixed_rate(runs, 10, 5)

    stepped.set_time(1010)
    assert runs.ended.wait(TIMEOUT_S)
    periodic_only = list(runs.times)
    stepped.set_time(1011)
    timer.result(TIMEOUT_S)

    assert periodic_only == [1010]
    assert runs.times == [1010, 1010]


def test_on_the_timer_thread_too_a_fixed_delay_starts_with_the_end_of_a_run(stepped: SteppedTime) -> None:
    runs: list[int] = []
    second = threading.Event()

    def run(scheduled_ms: int) -> None:
        runs.append(scheduled_ms)
        if len(runs) == 1:
            stepped.set_time(1017)
        else:
            second.set()

    stepped.schedule_with_fixed_delay(run, 10, 5)
    stepped.set_time(1010)
    stepped.register_timer(1016, lambda _: stepped.set_time(1022))
    assert second.wait(TIMEOUT_S)

    assert runs == [1010, 1022]


def test_an_initial_delay_that_has_passed_already_is_no_delay(stepped: SteppedTime) -> None:
    runs = Runs(last_ms=1000)

    stepped.schedule_at_fixed_rate(runs, -10, 5)
    assert runs.ended.wait(TIMEOUT_S)

    assert runs.times == [990, 995, 1000]


def test_a_periodic_task_s_errors_are_each_reported_and_the_task_carries_on() -> None:
    reporter, runs = Reporter(), Runs(last_ms=1015)
    service = SteppedTime(reporter)

    def run(scheduled_ms: int) -> None:
        runs(scheduled_ms)
        raise LookupError(scheduled_ms)

    future = service.schedule_at_fixed_rate(run, 10, 5)
    service.set_time(1015)
    assert runs.ended.wait(TIMEOUT_S)
    done_meanwhile = future.done()
    assert service.shutdown(TIMEOUT_S)

    assert [error.args for error in reporter.errors] == [(1010,), (1015,)]
    assert not done_meanwhile


def test_in_real_time_a_task_runs_again_and_again_for_times_one_period_apart() -> None:
    service = SystemProcessingTimeService()
    before_ms = service.current_processing_time()
    runs = Runs(last_ms=before_ms + 10)

    service.schedule_at_fixed_rate(runs, 2, 3)
    assert runs.ended.wait(TIMEOUT_S)
    assert service.shutdown(TIMEOUT_S)

    first_ms = runs.times[0]
    assert first_ms >= before_ms + 2
    assert runs.times == [first_ms + 3 * each for each in range(len(runs.times))]


# -- a system clock that is set --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_ms", [-3_600_000, -1, 1, 3_600_000])
def test_setting_the_clock_changes_no_period(stepped: SteppedTime, step_ms: int) -> None:
    """Set back by an hour, no task ran for an hour; set forward, one at a fixed rate ran 3,600 times at once."""
    at_rate, with_delay, ran = [], [], threading.Semaphore(0)
    stepped.schedule_at_fixed_rate(lambda ms: (at_rate.append(ms), ran.release()), 1000, 1000)
    stepped.schedule_with_fixed_delay(lambda ms: (with_delay.append(ms), ran.release()), 1000, 1000)

    stepped.set_clock(1000 + step_ms)
    for _ in range(3):
        stepped.set_time(stepped.now_ms + 1000)
        assert ran.acquire(timeout=TIMEOUT_S)
        assert ran.acquire(timeout=TIMEOUT_S)
    timer = stepped.register_timer(stepped.now_ms + 500, Runs())
    stepped.set_time(stepped.now_ms + 501)
    timer.result(TIMEOUT_S)

    assert at_rate == [2000, 3000, 4000]
    assert with_delay == [2000, 3000 + step_ms, 4000 + step_ms]


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_timer_runs_after_its_delay_if_the_clock_is_set_meanwhile(stepped: SteppedTime, step_ms: int) -> None:
    runs: list[int] = []
    timeout = stepped.register_timer(1500, runs.append)

    stepped.set_clock(1000 + step_ms)
    stepped.set_time(stepped.now_ms + 500)
    stepped.register_timer(stepped.now_ms - 1, Runs()).result(TIMEOUT_S)
    too_early = list(runs)
    stepped.set_time(stepped.now_ms + 1)
    timeout.result(TIMEOUT_S)

    assert too_early == []
    assert runs == [1500]
