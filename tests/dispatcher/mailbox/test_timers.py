"""Rules C6 of the reference: timers in real time. The other rules are in test_timers_*.py and test_manual_clock.py."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import CancelledError

import pytest

from dispatcher import DispatcherError
from dispatcher.mailbox import MailboxProcessor, SystemProcessingTimeService
from dispatcher.mailbox.time_service import TimerFuture

from ...kit import until_released
from .conftest import TIMEOUT_S, AnnouncingCondition
from .timer_services import FAR_MS, BusyTime, Hold, Reporter, SteppedTime, fail


class TimeOut:
    """A callback that can be seen to be kept."""

    def __call__(self, due_ms: int) -> None: ...


@pytest.fixture
def service(system: SystemProcessingTimeService) -> SystemProcessingTimeService:
    return system


def test_a_timer_fires_once_its_time_has_passed_and_gets_that_time(service: SystemProcessingTimeService) -> None:
    calls: list[tuple[int, int]] = []
    due_ms = service.current_processing_time() + 3

    future = service.register_timer(due_ms, lambda ms: calls.append((ms, service.current_processing_time())))
    future.result(TIMEOUT_S)

    [(told_ms, fired_at_ms)] = calls
    assert told_ms == due_ms
    assert fired_at_ms > due_ms


def test_a_timer_does_not_fire_as_long_as_it_is_still_its_time(fired: list[int]) -> None:
    service = SteppedTime()

    due_now = service.register_timer(1000, fired.append)
    service.register_timer(999, fired.append).result(TIMEOUT_S)
    before = list(fired)
    service.set_time(1001)
    due_now.result(TIMEOUT_S)
    assert service.shutdown(TIMEOUT_S)

    assert before == [999]
    assert fired == [999, 1000]


def test_timers_fire_in_the_order_of_their_times_and_of_their_registration(
    service: SystemProcessingTimeService,
) -> None:
    names: list[str] = []
    hold = Hold(service)
    registered = [(3, "c"), (1, "a"), (3, "d"), (2, "b")]

    futures = [service.register_timer(ms, lambda _, name=name: names.append(name)) for ms, name in registered]  # type: ignore[misc]
    hold.let_go.set()
    for future in futures:
        future.result(TIMEOUT_S)

    assert names == ["a", "b", "c", "d"]


def test_timers_of_one_time_fire_in_the_order_of_registration_on_a_busy_machine() -> None:
    """The clocks seemed 7 ms nearer to each other than they are, if another thread ran between two looks at them."""
    service = BusyTime()
    names: list[str] = []

    service.pauses_ms = [7, 7]
    futures = [service.register_timer(5000, lambda _, name=name: names.append(name)) for name in "ab"]  # type: ignore[misc]
    service.pauses_ms = [7]
    futures.append(service.register_timer(5000, lambda _: names.append("c")))
    service.set_time(6000)
    for future in futures:
        future.result(TIMEOUT_S)
    assert service.shutdown(TIMEOUT_S)

    assert names == ["a", "b", "c"]


def test_a_timer_of_the_past_does_not_wait_for_one_of_the_future(
    service: SystemProcessingTimeService, fired: list[int]
) -> None:
    service.register_timer(service.current_processing_time() + FAR_MS, fired.append)

    service.register_timer(5, fired.append).result(TIMEOUT_S)

    assert fired == [5]


def test_a_timer_at_the_end_of_all_time_does_not_disturb_the_others(
    service: SystemProcessingTimeService, fired: list[int]
) -> None:
    """A wait that long raises OverflowError, which ended the thread."""
    service._tasks.changed = wake = AnnouncingCondition(service._tasks.lock)
    service.register_timer(2**63 - 1, fired.append)
    assert wake.waiting.wait(TIMEOUT_S)

    service.register_timer(5, fired.append).result(TIMEOUT_S)

    assert fired == [5]


def test_a_cancelled_timer_does_not_fire(service: SystemProcessingTimeService, fired: list[int]) -> None:
    hold = Hold(service)
    cancelled = service.register_timer(1, fired.append)
    other = service.register_timer(2, fired.append)

    assert cancelled.cancel()
    hold.let_go.set()
    other.result(TIMEOUT_S)

    assert fired == [2]
    with pytest.raises(CancelledError):
        cancelled.result(0)


def test_cancelling_a_timer_releases_the_objects_of_its_callback_at_once(service: SystemProcessingTimeService) -> None:
    """Nearly all time-outs are cancelled long before: each was kept, with what its callback holds, until it was due."""
    callback = TimeOut()
    kept = weakref.ref(callback)
    future = service.register_timer(service.current_processing_time() + FAR_MS, callback)
    del callback

    assert kept() is not None
    assert future.cancel()

    assert kept() is None


def test_a_callback_that_has_run_releases_its_objects(service: SystemProcessingTimeService) -> None:
    """The thread kept its last callback until the next timer was due, and so did the future."""
    ended = threading.Event()
    callback = TimeOut()
    weakref.finalize(callback, ended.set)

    future = service.register_timer(1, callback)
    del callback

    until_released(ended.is_set, "the end of the callback")
    assert future.result(TIMEOUT_S) is None


def test_cancelled_timers_take_up_no_more_room_than_those_that_wait(service: SystemProcessingTimeService) -> None:
    due_ms = service.current_processing_time() + FAR_MS
    waiting = [service.register_timer(due_ms, lambda _: None) for _ in range(100)]

    for _ in range(5000):
        service.register_timer(due_ms, lambda _: None).cancel()

    assert len(service._tasks._heap) <= 2 * len(waiting) + 65


def test_timers_that_wait_survive_the_clearing_of_cancelled_ones(
    service: SystemProcessingTimeService, fired: list[int]
) -> None:
    hold = Hold(service)
    waiting = [service.register_timer(ms, fired.append) for ms in range(3000, 0, -1)]

    for _ in range(5000):
        service.register_timer(service.current_processing_time() + FAR_MS, fired.append).cancel()
    hold.let_go.set()
    for future in waiting:
        future.result(TIMEOUT_S)

    assert fired == list(range(1, 3001))


def test_a_callback_may_register_timers(service: SystemProcessingTimeService, fired: list[int]) -> None:
    registered: list[TimerFuture] = []
    first = service.register_timer(1, lambda _: registered.append(service.register_timer(2, fired.append)))

    first.result(TIMEOUT_S)
    registered[0].result(TIMEOUT_S)

    assert fired == [2]


def test_a_callback_s_error_is_reported_and_the_next_timer_fires(fired: list[int]) -> None:
    reporter = Reporter()
    service = SystemProcessingTimeService("timers", reporter)
    hold = Hold(service)

    failing = service.register_timer(1, fail)
    after = service.register_timer(2, fired.append)
    hold.let_go.set()
    after.result(TIMEOUT_S)
    assert service.shutdown(TIMEOUT_S)

    assert reporter.errors == [failing.exception(0)]
    assert fired == [2]


def test_without_on_error_a_callback_s_error_is_logged(
    service: SystemProcessingTimeService, fired: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    service.register_timer(1, fail)
    service.register_timer(2, fired.append).result(TIMEOUT_S)

    assert "a timer's callback failed" in caplog.text
    assert "LookupError: timer of 1 ms" in caplog.text


@pytest.mark.parametrize("failure", [DispatcherError("nobody to report to"), SystemExit("nobody to report to")])
def test_an_on_error_that_fails_does_not_end_the_thread(
    failure: BaseException, fired: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Timers stopped firing, e.g. after an error was reported to a closed mailbox."""
    service = SystemProcessingTimeService("timers", Reporter(failure))

    service.register_timer(1, fail)
    service.register_timer(2, fired.append).result(TIMEOUT_S)
    assert service.shutdown(TIMEOUT_S)

    assert fired == [2]
    assert "nobody to report to" in caplog.text
    assert "LookupError: timer of 1 ms" in caplog.text


def test_each_timer_that_many_threads_register_fires_once(service: SystemProcessingTimeService) -> None:
    threads, timers = 4, 300
    start = threading.Barrier(threads)
    fired: list[int] = []

    def register(first: int) -> None:
        start.wait(TIMEOUT_S)
        for ms in range(first, first + timers):
            service.register_timer(ms, fired.append)

    registering = [threading.Thread(target=register, args=(each * timers,)) for each in range(threads)]
    for thread in registering:
        thread.start()
    for thread in registering:
        thread.join(TIMEOUT_S)
    service.register_timer(service.current_processing_time() - 1, lambda _: None).result(TIMEOUT_S)

    assert sorted(fired) == list(range(threads * timers))


def test_an_error_reported_to_a_mailbox_is_raised_by_its_loop(processor: MailboxProcessor) -> None:
    service = SystemProcessingTimeService("timers", on_error=processor.report_throwable)
    service.register_timer(1, fail)

    with pytest.raises(LookupError, match="timer of 1 ms"):
        processor.run_mailbox_loop()

    assert service.shutdown(TIMEOUT_S)


def test_a_thread_that_cannot_be_started_leaves_the_service_as_it_was(
    service: SystemProcessingTimeService, fired: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All later timers were taken, and waited for a thread that was not there."""

    def fail_to_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail_to_start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            service.register_timer(1, fired.append)
    service.register_timer(2, fired.append).result(TIMEOUT_S)

    assert fired == [2]
