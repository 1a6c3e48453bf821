"""Rules C6 of the reference, as far as they are implemented. The manual clock is in test_manual_clock.py."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError

import pytest

from dispatcher.errors import DispatcherError
from dispatcher.mailbox import (
    MailboxExecutor,
    MailboxTimeService,
    ManualClock,
    SystemProcessingTimeService,
    TaskMailbox,
)
from dispatcher.mailbox.timers import TimerFuture

from .conftest import TIMEOUT_S, AnnouncingCondition, on_another_thread

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


class Reporter:
    """An `on_error` that fails itself if it is told to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.errors: list[BaseException] = []

    def __call__(self, error: BaseException) -> None:
        self.errors.append(error)
        if self.fails:
            raise DispatcherError("nobody to report to")


class TimeOut:
    """A callback that can be seen to be kept."""

    def __call__(self, due_ms: int) -> None: ...


def fail(due_ms: int) -> None:
    raise LookupError(f"timer of {due_ms} ms")


@pytest.fixture
def service() -> Iterator[SystemProcessingTimeService]:
    service = SystemProcessingTimeService()
    yield service
    assert service.shutdown(TIMEOUT_S)


@pytest.fixture
def fired() -> list[int]:
    return []


# -- real time -------------------------------------------------------------------------------------------------------


def test_a_timer_fires_once_its_time_has_passed_and_is_told_that_time(service: SystemProcessingTimeService) -> None:
    calls: list[tuple[int, int]] = []
    due_ms = service.current_processing_time() + 3

    future = service.register_timer(due_ms, lambda ms: calls.append((ms, service.current_processing_time())))
    future.result(TIMEOUT_S)

    [(told_ms, fired_at_ms)] = calls
    assert told_ms == due_ms
    assert fired_at_ms > due_ms


def test_a_timer_does_not_fire_as_long_as_it_is_still_its_time(fired: list[int]) -> None:
    class StoppedTime(SystemProcessingTimeService):
        now_ms = 1000

        def current_processing_time(self) -> int:
            return self.now_ms

    service = StoppedTime()

    due_now = service.register_timer(1000, fired.append)
    service.register_timer(999, fired.append).result(TIMEOUT_S)
    before = list(fired)
    service.now_ms = 1001
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
    service._wake = wake = AnnouncingCondition(threading.Lock())
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


def test_cancelled_timers_are_not_kept_until_their_time(service: SystemProcessingTimeService) -> None:
    """Nearly all time-outs are cancelled long before: each was kept, with what its callback holds, until it was due."""
    due_ms = service.current_processing_time() + FAR_MS
    kept: list[weakref.ref[TimeOut]] = []

    for _ in range(5000):
        callback = TimeOut()
        kept.append(weakref.ref(callback))
        service.register_timer(due_ms, callback).cancel()
    del callback
    gc.collect()

    assert sum(each() is not None for each in kept) < 2500


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


def test_what_a_callback_raises_is_reported_and_the_next_timer_fires(fired: list[int]) -> None:
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


def test_without_on_error_what_a_callback_raises_is_logged(
    service: SystemProcessingTimeService, fired: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    service.register_timer(1, fail)
    service.register_timer(2, fired.append).result(TIMEOUT_S)

    assert "a timer's callback failed" in caplog.text
    assert "LookupError: timer of 1 ms" in caplog.text


def test_an_on_error_that_fails_does_not_end_the_thread(fired: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """No timer fired any more, e.g. after an error had been reported to a mailbox that was closed."""
    service = SystemProcessingTimeService("timers", Reporter(fails=True))

    service.register_timer(1, fail)
    service.register_timer(2, fired.append).result(TIMEOUT_S)
    assert service.shutdown(TIMEOUT_S)

    assert fired == [2]
    assert "nobody to report to" in caplog.text
    assert "LookupError: timer of 1 ms" in caplog.text


# -- the end of a service --------------------------------------------------------------------------------------------


def test_once_quiesced_timers_are_taken_and_never_complete(
    service: SystemProcessingTimeService, fired: list[int]
) -> None:
    hold = Hold(service)
    before = service.register_timer(1, fired.append)

    service.quiesce()
    after = service.register_timer(2, fired.append)
    hold.let_go.set()
    assert service.shutdown(TIMEOUT_S)

    assert fired == []
    assert hold.future.result(TIMEOUT_S) is None
    assert not before.done()
    assert not after.done()


def test_after_shutdown_registering_raises(service: SystemProcessingTimeService) -> None:
    service.register_timer(1, lambda _: None).result(TIMEOUT_S)

    ended = service.shutdown(TIMEOUT_S)
    service.quiesce()

    assert ended
    with pytest.raises(DispatcherError, match="timers: the timer service is shut down"):
        service.register_timer(1, lambda _: None)


def test_shutdown_drops_all_timers_and_waits_for_a_running_callback(
    service: SystemProcessingTimeService, fired: list[int]
) -> None:
    hold = Hold(service)
    service.register_timer(1, fired.append)

    in_time = service.shutdown(0)
    hold.let_go.set()

    assert not in_time
    assert service.shutdown(TIMEOUT_S)
    assert hold.future.done()
    assert fired == []


def test_a_callback_may_shut_its_service_down(service: SystemProcessingTimeService) -> None:
    ended: list[bool] = []

    service.register_timer(1, lambda _: ended.append(service.shutdown(TIMEOUT_S))).result(TIMEOUT_S)

    assert ended == [False]
    assert service.shutdown(TIMEOUT_S)


def test_a_service_that_never_had_a_timer_has_no_thread_to_end() -> None:
    assert SystemProcessingTimeService().shutdown(0)


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


# -- timers as mail --------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100)


@pytest.fixture
def mailed(clock: ManualClock, mailbox: TaskMailbox) -> MailboxTimeService:
    return MailboxTimeService(clock, MailboxExecutor(mailbox, 0))


def test_a_timer_of_a_mailbox_is_run_as_mail_on_its_thread(
    mailed: MailboxTimeService, clock: ManualClock, mailbox: TaskMailbox
) -> None:
    calls: list[tuple[int, str]] = []
    future = mailed.register_timer(110, lambda ms: calls.append((ms, threading.current_thread().name)))

    on_another_thread(lambda: clock.advance(10))
    before_the_mail = list(calls)
    mail = mailbox.take(0)
    mail.run()

    assert before_the_mail == []
    assert future.done()
    assert mail.description == "timer of 110 ms"
    assert calls == [(110, threading.current_thread().name)]


def test_the_time_of_a_mailbox_is_the_other_services(mailed: MailboxTimeService, clock: ManualClock) -> None:
    clock.advance(23)

    assert mailed.current_processing_time() == 123


def test_a_cancelled_timer_sends_no_mail(mailed: MailboxTimeService, clock: ManualClock, mailbox: TaskMailbox) -> None:
    mailed.register_timer(110, lambda _: None).cancel()

    clock.advance(10)

    assert mailbox.size() == 0


@pytest.mark.parametrize("end", [TaskMailbox.quiesce, TaskMailbox.close])
def test_a_timer_that_fires_after_the_mailbox_has_closed_is_dropped(
    mailed: MailboxTimeService,
    clock: ManualClock,
    mailbox: TaskMailbox,
    fired: list[int],
    end: Callable[[TaskMailbox], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    future = mailed.register_timer(110, fired.append)
    end(mailbox)

    with caplog.at_level(logging.DEBUG):
        clock.advance(10)

    assert future.result(0) is None
    assert fired == []
    assert "timer of 110 ms dropped: the mailbox is closed" in caplog.text


def test_real_time_reaches_a_mailbox(service: SystemProcessingTimeService, mailbox: TaskMailbox) -> None:
    timers = MailboxTimeService(service, MailboxExecutor(mailbox, 0))
    fired: list[int] = []

    timers.register_timer(7, fired.append)
    mailbox.take(0).run()

    assert fired == [7]
