"""ALIVE, QUIESCED, SHUTDOWN: the same rules for both services, and the thread of the real one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import pytest

from dispatcher import DispatcherError
from dispatcher.mailbox import ManualClock, SystemProcessingTimeService
from dispatcher.mailbox.time_service import TimerFuture

from .conftest import TIMEOUT_S, on_another_thread
from .timer_services import Hold, Register, Service, at_fixed_rate, each_kind, once, with_fixed_delay


@pytest.fixture(params=[ManualClock, SystemProcessingTimeService])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    service: Service = request.param()
    yield service
    assert service.shutdown(TIMEOUT_S)


# -- both services ---------------------------------------------------------------------------------------------------


@each_kind
def test_a_quiesced_service_takes_tasks_that_never_complete(service: Service, register: Register) -> None:
    service.quiesce()

    future = register(service, lambda _: None)
    service.shutdown(TIMEOUT_S)

    assert not future.done()


@each_kind
def test_a_service_that_is_shut_down_refuses_tasks(service: Service, register: Register) -> None:
    service.shutdown(TIMEOUT_S)

    with pytest.raises(DispatcherError, match="the timer service is shut down"):
        register(service, lambda _: None)


@pytest.mark.parametrize("end", ["quiesce", "shutdown"])
def test_the_end_of_a_service_cancels_what_waits(service: Service, end: str) -> None:
    futures = [register(service, lambda _: None) for register in (once, at_fixed_rate, with_fixed_delay) * 30]

    getattr(service, end)()

    assert wait(futures, timeout=0).not_done == set()
    assert all(future.cancelled() for future in futures)


def test_a_service_without_tasks_is_quiesced_at_once(service: Service) -> None:
    before = service.is_terminated()

    terminated = service.quiesce()

    assert not before
    assert terminated.result(0) is None
    assert service.is_terminated()


def test_all_calls_of_quiesce_return_the_same_future(service: Service) -> None:
    first, second = service.quiesce(), service.quiesce()

    assert first is second


def test_a_service_without_tasks_is_shut_down_at_once(service: Service) -> None:
    assert service.shutdown(0)
    assert service.shutdown_uninterruptible(0)
    assert service.is_terminated()


# -- the thread of the real service ----------------------------------------------------------------------------------


def test_to_quiesce_waits_for_the_running_callback_but_lets_no_other_begin(
    system: SystemProcessingTimeService, fired: list[int]
) -> None:
    hold = Hold(system)
    system.register_timer(1, fired.append)

    terminated = system.quiesce()
    while_it_ran = terminated.done()
    hold.let_go.set()
    terminated.result(TIMEOUT_S)

    assert not while_it_ran
    assert hold.future.done()
    assert fired == []


def test_the_future_of_quiesce_cannot_be_cancelled(system: SystemProcessingTimeService) -> None:
    hold = Hold(system)
    terminated = system.quiesce()

    cancelled = terminated.cancel()
    hold.let_go.set()

    assert not cancelled
    assert terminated.result(TIMEOUT_S) is None


def test_a_thread_that_waits_for_a_timer_ends_when_quiesced(system: SystemProcessingTimeService) -> None:
    once(system, lambda _: None)

    system.quiesce().result(TIMEOUT_S)

    assert system.shutdown(TIMEOUT_S)


def test_a_thread_that_waits_for_any_task_ends_when_quiesced(system: SystemProcessingTimeService) -> None:
    system.register_timer(1, lambda _: None).result(TIMEOUT_S)

    assert system.quiesce().result(TIMEOUT_S) is None


def test_a_callback_may_quiesce_its_service(system: SystemProcessingTimeService) -> None:
    during: list[bool] = []

    system.register_timer(1, lambda _: during.append(system.quiesce().done())).result(TIMEOUT_S)

    assert during == [False]
    assert system.quiesce().result(TIMEOUT_S) is None


def test_a_periodic_task_that_runs_when_its_service_ends_is_cancelled_with_its_run(
    system: SystemProcessingTimeService, fired: list[int]
) -> None:
    entered, let_go = threading.Event(), threading.Event()

    def run(scheduled_ms: int) -> None:
        fired.append(scheduled_ms)
        entered.set()
        assert let_go.wait(TIMEOUT_S)

    future = system.schedule_at_fixed_rate(run, 0, 1)
    assert entered.wait(TIMEOUT_S)
    terminated = system.quiesce()
    let_go.set()
    terminated.result(TIMEOUT_S)

    assert len(fired) == 1
    assert future.cancelled()
    assert future in wait([future], timeout=0).done


def test_shutdown_drops_all_tasks_and_waits_for_a_running_callback(
    system: SystemProcessingTimeService, fired: list[int]
) -> None:
    hold = Hold(system)
    system.register_timer(1, fired.append)

    in_time = system.shutdown(0)
    hold.let_go.set()

    assert not in_time
    assert system.shutdown(TIMEOUT_S)
    assert hold.future.done()
    assert fired == []


def test_a_callback_may_shut_its_service_down(system: SystemProcessingTimeService) -> None:
    ended: list[bool] = []

    system.register_timer(1, lambda _: ended.append(system.shutdown(TIMEOUT_S))).result(TIMEOUT_S)

    assert ended == [False]
    assert system.shutdown(TIMEOUT_S)


def test_a_service_that_is_quiesced_can_be_shut_down(system: SystemProcessingTimeService) -> None:
    hold = Hold(system)
    system.quiesce()

    in_time = system.shutdown(0)
    hold.let_go.set()

    assert not in_time
    assert system.shutdown(TIMEOUT_S)
    with pytest.raises(DispatcherError, match="shut down"):
        once(system, lambda _: None)


# -- KeyboardInterrupt, raised where the main thread would get it ----------------------------------------------------


class InterruptedJoin:
    """A thread's `join` that is interrupted the first times, at a moment when the service's callback still runs."""

    def __init__(self, system: SystemProcessingTimeService, hold: Hold, interrupts: int) -> None:
        assert system._thread is not None
        self._hold = hold
        self._join = system._thread.join
        self.interrupts = interrupts
        system._thread.join = self  # type: ignore[method-assign]

    def __call__(self, timeout: float | None = None) -> None:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        self._hold.let_go.set()
        self._join(timeout)


def test_an_interrupted_shutdown_shuts_down(system: SystemProcessingTimeService) -> None:
    hold = Hold(system)
    InterruptedJoin(system, hold, interrupts=1)

    with pytest.raises(KeyboardInterrupt):
        system.shutdown(TIMEOUT_S)
    still_running = not system.is_terminated()
    hold.let_go.set()

    assert still_running
    with pytest.raises(DispatcherError, match="shut down"):
        once(system, lambda _: None)


def test_an_uninterruptible_shutdown_waits_to_the_end_and_then_raises_the_interrupt(
    system: SystemProcessingTimeService,
) -> None:
    hold = Hold(system)
    join = InterruptedJoin(system, hold, interrupts=3)

    with pytest.raises(KeyboardInterrupt):
        system.shutdown_uninterruptible(TIMEOUT_S)

    assert join.interrupts == 0
    assert system.is_terminated()


def test_an_uninterruptible_shutdown_ends_with_its_deadline(system: SystemProcessingTimeService) -> None:
    hold = Hold(system)
    join = InterruptedJoin(system, hold, interrupts=1000)

    with pytest.raises(KeyboardInterrupt):
        system.shutdown_uninterruptible(0)
    interrupts_left, join.interrupts = join.interrupts, 0
    hold.let_go.set()

    assert interrupts_left == 999


def test_an_interrupt_before_anything_was_done_does_not_lose_the_shutdown(
    system: SystemProcessingTimeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = once(system, lambda _: None)
    end = system._tasks.end
    interrupts = [KeyboardInterrupt()]

    def interrupted_end(*args: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        end(*args)

    monkeypatch.setattr(system._tasks, "end", interrupted_end)
    with pytest.raises(KeyboardInterrupt):
        system.shutdown_uninterruptible(0)

    assert pending.cancelled()
    with pytest.raises(DispatcherError, match="shut down"):
        once(system, lambda _: None)


def test_an_uninterruptible_shutdown_without_an_interrupt_says_how_it_went(
    system: SystemProcessingTimeService,
) -> None:
    hold = Hold(system)

    in_time = system.shutdown_uninterruptible(0)
    hold.let_go.set()

    assert not in_time
    assert system.shutdown_uninterruptible(TIMEOUT_S)


# -- many threads ----------------------------------------------------------------------------------------------------


def test_tasks_that_are_registered_while_the_service_quiesces_all_come_to_an_end_or_never_run() -> None:
    """Nothing fires once the future of quiesce is done, and no task waits for a thread that has ended."""
    system = SystemProcessingTimeService()
    fired: list[int] = []
    start = threading.Barrier(3)
    registered: list[TimerFuture] = []

    def register() -> None:
        start.wait(TIMEOUT_S)
        for number in range(200):
            registered.append(system.register_timer(number, fired.append))

    registering = [threading.Thread(target=register) for _ in range(2)]
    for thread in registering:
        thread.start()
    start.wait(TIMEOUT_S)
    terminated = system.quiesce()
    terminated.result(TIMEOUT_S)
    fired_by_then = len(fired)
    for thread in registering:
        thread.join(TIMEOUT_S)

    assert len(fired) == fired_by_then
    assert sum(future.done() and not future.cancelled() for future in registered) == fired_by_then
    assert system._tasks.size() == 0


def test_only_one_thread_is_started_however_many_register_first() -> None:
    threads: set[int] = set()
    system = SystemProcessingTimeService()
    start = threading.Barrier(4)

    def register() -> TimerFuture:
        start.wait(TIMEOUT_S)
        return system.register_timer(1, lambda _: threads.add(threading.get_ident()))

    registering = [threading.Thread(target=register) for _ in range(4)]
    for thread in registering:
        thread.start()
    for thread in registering:
        thread.join(TIMEOUT_S)
    system.register_timer(2, lambda _: None).result(TIMEOUT_S)
    assert on_another_thread(lambda: system.shutdown(TIMEOUT_S))

    assert len(threads) == 1
