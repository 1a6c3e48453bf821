"""The time service with a thread of its own. What all services promise is in test_timer_contract.py."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest

from dispatcher import DispatcherError
from dispatcher.mailbox import SystemProcessingTimeService

from ...kit import in_threads, until, until_released
from ...kit.interrupting import INTERRUPTED_THREADS, Interrupt, at_each_place
from .conftest import TIMEOUT_S
from .timer_services import FAR_MS, BusyTime, Hold, SteppedTime, fail


class TimeOut:
    """A callback that can be seen to be kept."""

    def __call__(self, due_ms: int) -> None: ...


@pytest.fixture
def stepped() -> Iterator[SteppedTime]:
    service = SteppedTime()
    yield service
    assert service.shutdown(TIMEOUT_S)


def refuses_tasks(system: SystemProcessingTimeService) -> bool:
    with pytest.raises(DispatcherError, match="shut down"):
        system.register_timer(1, fail)
    return True


# -- when it fires ---------------------------------------------------------------------------------------------------


def test_a_timer_fires_once_its_time_has_passed_and_gets_that_time(system: SystemProcessingTimeService) -> None:
    calls: list[tuple[int, int]] = []
    due_ms = system.current_processing_time() + 3

    system.register_timer(due_ms, lambda ms: calls.append((ms, system.current_processing_time()))).result(TIMEOUT_S)

    [(told_ms, fired_at_ms)] = calls
    assert told_ms == due_ms < fired_at_ms


def test_a_periodic_task_is_due_at_its_time_and_a_timer_1_ms_later(stepped: SteppedTime, fired: list[int]) -> None:
    stepped.register_timer(1010, lambda ms: fired.append(-ms))
    stepped.schedule_at_fixed_rate(fired.append, 10, 500)

    stepped.set_time(1010)
    stepped.settle()
    at_their_time = list(fired)
    stepped.set_time(1011)
    stepped.settle()

    assert (at_their_time, fired) == ([1010], [1010, -1010])


def test_timers_of_one_time_fire_in_the_order_of_registration_on_a_busy_machine() -> None:
    """The clocks seemed 7 ms nearer to each other than they are, if another thread ran between two looks at them."""
    service = BusyTime()
    names: list[str] = []

    service.pauses_ms = [7, 7]
    for name in "ab":
        service.register_timer(5000, lambda _, name=name: names.append(name))  # type: ignore[misc]
    service.pauses_ms = [7]
    last = service.register_timer(5000, lambda _: names.append("c"))
    service.set_time(6000)
    last.result(TIMEOUT_S)
    assert service.shutdown(TIMEOUT_S)

    assert names == ["a", "b", "c"]


def test_a_timer_at_the_end_of_all_time_does_not_disturb_the_others(stepped: SteppedTime, fired: list[int]) -> None:
    """A wait that long raises OverflowError, which ended the thread."""
    stepped.register_timer(2**63 - 1, fired.append)
    stepped.settle()

    stepped.register_timer(5, fired.append).result(TIMEOUT_S)

    assert fired == [5]


def test_on_the_timer_thread_too_a_fixed_delay_starts_with_the_end_of_a_run(stepped: SteppedTime) -> None:
    runs: list[int] = []

    def run(scheduled_ms: int) -> None:
        runs.append(scheduled_ms)
        if len(runs) == 1:
            stepped.set_time(1017)

    stepped.schedule_with_fixed_delay(run, 10, 5)
    for now_ms in (1010, 1021, 1022):
        stepped.set_time(now_ms)
        stepped.settle()

    assert runs == [1010, 1022]


@pytest.mark.parametrize("step_ms", [-3_600_000, -1, 1, 3_600_000])
def test_setting_the_clock_changes_no_period_and_no_delay(stepped: SteppedTime, step_ms: int) -> None:
    """Set back by an hour, no task ran for an hour; set forward, one at a fixed rate ran 3,600 times at once."""
    at_rate: list[int] = []
    with_delay: list[int] = []
    timer: list[int] = []
    stepped.schedule_at_fixed_rate(at_rate.append, 1000, 1000)
    stepped.schedule_with_fixed_delay(with_delay.append, 1000, 1000)
    stepped.register_timer(1500, timer.append)

    stepped.set_clock(1000 + step_ms)
    timers_by_then = []
    for ms in (500, 1, 499, 1000, 1000):
        stepped.set_time(stepped.now_ms + ms)
        stepped.settle()
        timers_by_then.append(len(timer))

    assert at_rate == [2000, 3000, 4000]
    assert with_delay == [2000, 3000 + step_ms, 4000 + step_ms]
    assert (timers_by_then, timer) == ([0, 1, 1, 1, 1], [1500])


# -- what it keeps ---------------------------------------------------------------------------------------------------


def test_cancelling_a_timer_releases_the_objects_of_its_callback_at_once(system: SystemProcessingTimeService) -> None:
    """Nearly all time-outs are cancelled long before: each was kept, with what its callback holds, until it was due."""
    callback = TimeOut()
    kept = weakref.ref(callback)
    future = system.register_timer(system.current_processing_time() + FAR_MS, callback)
    del callback

    assert kept() is not None
    assert future.cancel()

    assert kept() is None


def test_a_callback_that_has_run_releases_its_objects(system: SystemProcessingTimeService) -> None:
    """The thread kept its last callback until the next timer was due, and so did the future."""
    ended = threading.Event()
    callback = TimeOut()
    weakref.finalize(callback, ended.set)

    future = system.register_timer(1, callback)
    del callback

    until_released(ended.is_set, "the end of the callback")
    assert future.result(TIMEOUT_S) is None


def test_cancelled_timers_take_up_no_more_room_than_those_that_wait_which_survive_their_clearing(
    system: SystemProcessingTimeService, fired: list[int]
) -> None:
    hold = Hold(system)
    far_ms = system.current_processing_time() + FAR_MS
    waiting = [system.register_timer(ms, fired.append) for ms in range(300, 0, -1)]

    for _ in range(2000):
        system.register_timer(far_ms, fired.append).cancel()
    room = len(system._tasks._heap)
    hold.let_go.set()
    assert wait(waiting, TIMEOUT_S).not_done == set()

    assert room <= 2 * len(waiting) + 65
    assert fired == list(range(1, 301))


# -- errors ----------------------------------------------------------------------------------------------------------


def test_without_on_error_a_callback_s_error_is_logged(
    system: SystemProcessingTimeService, fired: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    system.register_timer(1, fail)
    system.register_timer(2, fired.append).result(TIMEOUT_S)

    assert "a timer's callback failed" in caplog.text
    assert "LookupError: timer of 1 ms" in caplog.text


@pytest.mark.parametrize("failure", [DispatcherError("nobody to report to"), SystemExit("nobody to report to")])
def test_an_on_error_that_fails_does_not_end_the_thread(
    failure: BaseException, fired: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Timers stopped firing, e.g. after an error was reported to a closed mailbox."""

    def report(error: BaseException) -> None:
        raise failure

    service = SystemProcessingTimeService("timers", report)

    service.register_timer(1, fail)
    service.register_timer(2, fired.append).result(TIMEOUT_S)
    assert service.shutdown(TIMEOUT_S)

    assert fired == [2]
    assert "nobody to report to" in caplog.text
    assert "LookupError: timer of 1 ms" in caplog.text


def test_a_thread_that_cannot_be_started_leaves_the_service_as_it_was(
    system: SystemProcessingTimeService, fired: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All later timers were taken, and waited for a thread that was not there."""

    def fail_to_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail_to_start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            system.register_timer(1, fired.append)
    system.register_timer(2, fired.append).result(TIMEOUT_S)

    assert fired == [2]


# -- cancelling: which thread owns the task --------------------------------------------------------------------------


class Pausing:
    """The queue's `run`, which stops between the taking of a task and its run."""

    def __init__(self, service: SystemProcessingTimeService, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = threading.Event()
        self.let_go = threading.Event()
        self._run = service._tasks.run
        monkeypatch.setattr(service._tasks, "run", self)

    def __call__(self, *arguments: Any) -> None:
        self.taken.set()
        assert self.let_go.wait(TIMEOUT_S)
        self._run(*arguments)


@pytest.mark.parametrize("is_periodic", [False, True])
def test_of_what_is_about_to_run_only_a_periodic_task_can_be_cancelled(
    system: SystemProcessingTimeService, fired: list[int], monkeypatch: pytest.MonkeyPatch, is_periodic: bool
) -> None:
    """Shown with the thread held between the two: a caller that got True would still see the callback run."""
    pausing = Pausing(system, monkeypatch)
    future = (
        system.schedule_at_fixed_rate(fired.append, 0, 1) if is_periodic else system.register_timer(1, fired.append)
    )
    assert pausing.taken.wait(TIMEOUT_S)

    cancelled = future.cancel()
    pausing.let_go.set()
    system.register_timer(2, lambda _: None).result(TIMEOUT_S)

    assert cancelled == future.cancelled() == is_periodic
    assert fired == ([] if is_periodic else [1])


@pytest.mark.parametrize("end", [lambda system, future: future.cancel(), lambda system, future: system.quiesce()])
def test_a_periodic_task_that_runs_when_it_is_cancelled_or_its_service_ends_is_cancelled_with_that_run(
    system: SystemProcessingTimeService, end: Callable[[SystemProcessingTimeService, Future[None]], Any]
) -> None:
    entered, let_go = threading.Event(), threading.Event()
    runs: list[int] = []

    def run(scheduled_ms: int) -> None:
        runs.append(scheduled_ms)
        entered.set()
        assert let_go.wait(TIMEOUT_S)

    future = system.schedule_at_fixed_rate(run, 0, 1)
    assert entered.wait(TIMEOUT_S)
    end(system, future)
    let_go.set()

    assert future in wait([future], TIMEOUT_S).done
    assert system.quiesce().result(TIMEOUT_S) is None
    assert (len(runs), future.cancelled()) == (1, True)


def test_a_timer_that_is_cancelled_while_it_fires_is_either_cancelled_or_fired(
    system: SystemProcessingTimeService, caplog: pytest.LogCaptureFixture
) -> None:
    fired: set[int] = set()
    hold = Hold(system)
    futures = [system.register_timer(number, fired.add) for number in range(1, 500)]
    answers: list[list[bool]] = []

    def cancel_all() -> None:
        answers.append([future.cancel() for future in reversed(futures)])

    in_threads(cancel_all, cancel_all, hold.let_go.set)

    assert wait(futures, TIMEOUT_S).not_done == set()
    cancelled = {number for number, future in enumerate(futures, 1) if future.cancelled()}
    assert fired.isdisjoint(cancelled)
    assert len(fired) + len(cancelled) == len(futures)
    assert answers == [[future.cancelled() for future in reversed(futures)]] * 2
    assert caplog.text == ""


# -- its end ---------------------------------------------------------------------------------------------------------


def test_to_quiesce_waits_for_the_running_callback_but_lets_no_other_begin(
    system: SystemProcessingTimeService, fired: list[int]
) -> None:
    hold = Hold(system)
    system.register_timer(1, fired.append)

    terminated = system.quiesce()
    while_it_ran = (terminated.done(), terminated.cancel())
    hold.let_go.set()

    assert terminated.result(TIMEOUT_S) is None
    assert while_it_ran == (False, False)
    assert hold.future.done()
    assert fired == []


@pytest.mark.parametrize("is_quiesced", [False, True])
@pytest.mark.parametrize("shutdown", ["shutdown", "shutdown_uninterruptible"])
def test_shutdown_says_whether_the_running_callback_has_ended_and_no_other_begins(
    system: SystemProcessingTimeService, fired: list[int], shutdown: str, is_quiesced: bool
) -> None:
    hold = Hold(system)
    system.register_timer(1, fired.append)
    if is_quiesced:
        system.quiesce()

    in_time = getattr(system, shutdown)(0)
    hold.let_go.set()

    assert (in_time, getattr(system, shutdown)(TIMEOUT_S)) == (False, True)
    assert hold.future.done()
    assert fired == []
    assert refuses_tasks(system)


class InterruptedJoin:
    """A thread's `join` that is interrupted the first times, at a moment when the service's callback still runs."""

    def __init__(self, system: SystemProcessingTimeService, interrupts: int) -> None:
        self.hold = Hold(system)
        assert system._thread is not None
        self._join = system._thread.join
        self.interrupts = interrupts
        system._thread.join = self  # type: ignore[method-assign]

    def __call__(self, timeout: float | None = None) -> None:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        self.hold.let_go.set()
        self._join(timeout)


@pytest.mark.parametrize(
    ("shutdown", "timeout_s", "interrupts", "left", "is_over"),
    [
        pytest.param("shutdown", TIMEOUT_S, 1, 0, False, id="an interrupt ends a shutdown, which holds"),
        pytest.param("shutdown_uninterruptible", TIMEOUT_S, 3, 0, True, id="an uninterruptible one waits to the end"),
        pytest.param("shutdown_uninterruptible", 0, 1000, 999, False, id="and ends with its deadline"),
    ],
)
def test_interrupts_of_a_shutdown(
    system: SystemProcessingTimeService, shutdown: str, timeout_s: float, interrupts: int, left: int, is_over: bool
) -> None:
    join = InterruptedJoin(system, interrupts)

    with pytest.raises(KeyboardInterrupt):
        getattr(system, shutdown)(timeout_s)
    seen = (join.interrupts, system.is_terminated())
    join.interrupts = 0
    join.hold.let_go.set()

    assert seen == (left, is_over)
    assert refuses_tasks(system)


def test_an_interrupt_before_anything_was_done_does_not_lose_the_shutdown(
    system: SystemProcessingTimeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = system.register_timer(system.current_processing_time() + FAR_MS, fail)
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
    assert refuses_tasks(system)


# -- many threads ----------------------------------------------------------------------------------------------------


def test_each_timer_that_many_threads_register_fires_once_on_one_thread() -> None:
    system = SystemProcessingTimeService()
    fired: list[int] = []
    threads: set[int] = set()

    def register(first: int) -> None:
        system.register_timer(1, lambda _: threads.add(threading.get_ident()))
        for ms in range(first, first + 300):
            system.register_timer(ms, fired.append)

    in_threads(*(lambda number=number: register(number * 300) for number in range(4)))
    system.register_timer(system.current_processing_time() - 1, lambda _: None).result(TIMEOUT_S)

    assert system.shutdown(TIMEOUT_S)
    assert sorted(fired) == list(range(1200))
    assert len(threads) == 1


def test_tasks_that_are_registered_while_the_service_quiesces_all_come_to_an_end_or_never_run() -> None:
    """Nothing fires once the future of quiesce is done, and no task waits for a thread that has ended."""
    system = SystemProcessingTimeService()
    fired: list[int] = []
    by_then: list[int] = []
    registered: list[Future[None]] = []

    def register() -> None:
        for number in range(200):
            registered.append(system.register_timer(number, fired.append))

    def quiesce() -> None:
        system.quiesce().result(TIMEOUT_S)
        by_then.append(len(fired))

    in_threads(register, register, quiesce)

    assert by_then == [len(fired)]
    assert sum(future.done() and not future.cancelled() for future in registered) == len(fired)
    assert system._tasks.size() == 0


# -- a signal handler that raises ------------------------------------------------------------------------------------


def test_other_timers_fire_on_time_wherever_a_registration_is_interrupted(system: SystemProcessingTimeService) -> None:
    """An exception just before the notification left the thread asleep, and all later timers waited with it."""

    def fire_one() -> None:
        system.register_timer(0, lambda _: None).result(TIMEOUT_S)
        until(lambda: system._tasks.asleep_until_ms > 0, "the thread sleeps")

    assert at_each_place(lambda: system.register_timer(0, lambda _: None), before=fire_one) > 5
    fire_one()


@pytest.mark.parametrize("interrupted", INTERRUPTED_THREADS)
def test_the_next_timer_starts_the_thread_if_its_start_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, interrupted: type[threading.Thread]
) -> None:
    """No timer fired any more, and `shutdown` raised."""
    service = SystemProcessingTimeService("interrupted")
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", interrupted)
        with pytest.raises(Interrupt):
            service.register_timer(0, fail)

    service.register_timer(0, lambda _: None).result(TIMEOUT_S)

    until(lambda: [each.name for each in threading.enumerate()].count("interrupted") == 1, "one thread")
    assert service.shutdown(TIMEOUT_S)
    assert service.is_terminated()
