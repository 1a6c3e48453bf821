"""Cancelling timers and periodic tasks of both services: which thread owns the task, and what the caller learns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

import pytest

from dispatcher.mailbox import ManualClock, SystemProcessingTimeService
from dispatcher.mailbox.timer_queue import TimerTask

from .conftest import TIMEOUT_S
from .timer_services import Hold, Register, Service, at_fixed_rate, once, with_fixed_delay


@pytest.fixture(params=[ManualClock, SystemProcessingTimeService])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    service: Service = request.param()
    yield service
    assert service.shutdown(TIMEOUT_S)


def is_done_for_waiters(future: Future[None]) -> bool:
    return future in wait([future], timeout=0).done


class PausingRun:
    """A queue's `run` that stops between the taking of a task and its run."""

    def __init__(self, service: SystemProcessingTimeService) -> None:
        self.taken = threading.Event()
        self.let_go = threading.Event()
        self._run = service._tasks.run
        service._tasks.run = self  # type: ignore[method-assign, assignment]

    def __call__(self, task: TimerTask, clock_ms: Callable[[], int]) -> None:
        self.taken.set()
        assert self.let_go.wait(TIMEOUT_S)
        self._run(task, clock_ms)


@pytest.mark.parametrize("register", [once, at_fixed_rate, with_fixed_delay])
def test_cancelling_a_future_ends_every_wait_for_it(service: Service, register: Register) -> None:
    """concurrent.futures.wait waited until the time of a cancelled timer came."""
    future = register(service, lambda _: None)
    before = is_done_for_waiters(future)

    assert future.cancel()

    assert not before
    assert is_done_for_waiters(future)


def test_done_callbacks_of_a_cancelled_timer_run_once(service: Service) -> None:
    notified: list[Future[None]] = []
    future = once(service, lambda _: None)
    future.add_done_callback(notified.append)

    future.cancel()
    future.cancel()

    assert notified == [future]


def test_an_object_that_a_callback_releases_may_cancel_another_timer(service: Service) -> None:
    """It was let go under the service's lock, which the other cancellation then waited for, for ever."""

    class Owner:
        def __init__(self) -> None:
            self.other = once(service, lambda _: None)

        def on_time(self, _: int) -> None: ...

        def __del__(self) -> None:
            self.other.cancel()

    owner = Owner()
    other, future = owner.other, once(service, owner.on_time)
    del owner

    future.cancel()

    assert other.cancelled()


def test_a_timer_that_runs_cannot_be_cancelled(system: SystemProcessingTimeService) -> None:
    hold = Hold(system)

    cancelled = hold.future.cancel()
    hold.let_go.set()

    assert not cancelled
    assert hold.future.result(TIMEOUT_S) is None


def test_a_timer_that_is_about_to_run_cannot_be_cancelled(
    system: SystemProcessingTimeService, fired: list[int]
) -> None:
    """Shown with the thread held between the two: a caller that got True would still see the callback run."""
    pausing = PausingRun(system)
    future = system.register_timer(1, fired.append)
    assert pausing.taken.wait(TIMEOUT_S)

    cancelled = future.cancel()
    pausing.let_go.set()

    assert not cancelled
    assert future.result(TIMEOUT_S) is None
    assert fired == [1]


def test_a_periodic_task_that_is_about_to_run_can_be_cancelled(
    system: SystemProcessingTimeService, fired: list[int]
) -> None:
    pausing = PausingRun(system)
    future = system.schedule_at_fixed_rate(fired.append, 0, 1)
    assert pausing.taken.wait(TIMEOUT_S)

    cancelled = future.cancel()
    pausing.let_go.set()
    system.register_timer(1, lambda _: None).result(TIMEOUT_S)

    assert cancelled
    assert fired == []


def test_cancelling_a_periodic_task_that_runs_ends_it_with_that_run(system: SystemProcessingTimeService) -> None:
    entered, let_go = threading.Event(), threading.Event()
    runs: list[int] = []

    def run(scheduled_ms: int) -> None:
        runs.append(scheduled_ms)
        entered.set()
        assert let_go.wait(TIMEOUT_S)

    future = system.schedule_at_fixed_rate(run, 0, 1)
    assert entered.wait(TIMEOUT_S)
    cancelled = future.cancel()
    let_go.set()
    system.register_timer(runs[0] + 5, lambda _: None).result(TIMEOUT_S)

    assert cancelled
    assert is_done_for_waiters(future)
    assert len(runs) == 1


def test_a_timer_that_is_cancelled_while_it_fires_is_either_cancelled_or_fired(
    system: SystemProcessingTimeService, caplog: pytest.LogCaptureFixture
) -> None:
    fired: set[int] = set()
    hold = Hold(system)
    futures = [system.register_timer(number, fired.add) for number in range(1, 500)]
    start = threading.Barrier(3)
    answers: list[list[bool]] = []

    def cancel_all() -> None:
        start.wait(TIMEOUT_S)
        answers.append([future.cancel() for future in reversed(futures)])

    cancelling = [threading.Thread(target=cancel_all) for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        for thread in cancelling:
            thread.start()
        start.wait(TIMEOUT_S)
        hold.let_go.set()
        for thread in cancelling:
            thread.join(TIMEOUT_S)
        done, not_done = wait(futures, TIMEOUT_S)

    cancelled = {number for number, future in enumerate(futures, 1) if future.cancelled()}
    assert not not_done
    assert fired.isdisjoint(cancelled)
    assert len(fired) + len(cancelled) == len(done) == len(futures)
    assert answers == [[future.cancelled() for future in reversed(futures)]] * 2
    assert caplog.text == ""
