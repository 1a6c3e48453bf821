"""One user's view of a time service, whose callbacks run as mail. Its contract is in test_timer_contract.py."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import wait

import pytest

from dispatcher.mailbox import (
    MailboxExecutor,
    MailboxProcessor,
    MailboxTimeService,
    ManualClock,
    ProcessingTimeService,
    SystemProcessingTimeService,
    TaskMailbox,
)

from .conftest import TIMEOUT_S, on_another_thread
from .timer_services import AtOnce, Hold, fail


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100)


def view_of(service: ProcessingTimeService) -> MailboxTimeService:
    return MailboxTimeService(service, AtOnce())  # type: ignore[arg-type]


@pytest.fixture
def timers(clock: ManualClock) -> MailboxTimeService:
    return view_of(clock)


@pytest.fixture
def mailed(clock: ManualClock, mailbox: TaskMailbox) -> MailboxTimeService:
    return MailboxTimeService(clock, MailboxExecutor(mailbox, 0))


# -- an operator's view ----------------------------------------------------------------------------------------------


def test_once_quiesced_nothing_is_registered_with_the_service(timers: MailboxTimeService, clock: ManualClock) -> None:
    timers.quiesce()

    timers.register_timer(110, fail)
    timers.schedule_at_fixed_rate(fail, 10, 50)
    timers.schedule_with_fixed_delay(fail, 10, 50)

    assert clock.pending_timers == 0


def test_other_users_of_the_service_do_not_notice(
    timers: MailboxTimeService, clock: ManualClock, fired: list[int]
) -> None:
    other = view_of(clock)
    other.register_timer(110, fired.append)

    timers.quiesce()
    clock.advance(10)

    assert fired == [110]
    assert not clock.is_terminated()


def test_the_future_waits_for_all_running_callbacks(timers: MailboxTimeService, clock: ManualClock) -> None:
    done: list[bool] = []
    timers.register_timer(120, lambda _: done.append(timers.quiesce().done()))

    def outer(_: int) -> None:
        clock.advance(10)
        done.append(timers.quiesce().done())

    timers.register_timer(110, outer)
    clock.advance(10)

    assert done == [False, False]
    assert timers.quiesce().done()


def test_the_future_waits_for_a_callback_on_the_timer_thread(system: SystemProcessingTimeService) -> None:
    timers = view_of(system)
    hold = Hold(timers)  # type: ignore[arg-type]

    quiesced = timers.quiesce()
    while_it_ran = quiesced.done()
    hold.let_go.set()

    assert not while_it_ran
    assert quiesced.result(TIMEOUT_S) is None


class PausingLock:
    """A lock that holds the threads of others before they get it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self._lock = threading.Lock()
        self._owner = threading.current_thread()

    def __enter__(self) -> None:
        if threading.current_thread() is not self._owner:
            self.reached.set()
            assert self.let_go.wait(TIMEOUT_S)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_callback_that_is_about_to_begin_does_not_once_it_is_quiesced(
    system: SystemProcessingTimeService, fired: list[int]
) -> None:
    """Flink looks twice, before and after it counts the callback; shown with the timer thread held in between."""
    timers = view_of(system)
    timers._lock = lock = PausingLock()  # type: ignore[assignment]
    future = timers.register_timer(1, fired.append)
    assert lock.reached.wait(TIMEOUT_S)

    quiesced = timers.quiesce()
    at_once = quiesced.done()
    lock.let_go.set()
    future.result(TIMEOUT_S)

    assert at_once
    assert fired == []


def test_no_callback_runs_once_the_future_is_done(system: SystemProcessingTimeService) -> None:
    timers = view_of(system)
    runs: list[str] = []
    some_ran = threading.Event()

    def run(number: int) -> None:
        runs.append("begin")
        if number == 20:
            some_ran.set()
        runs.append("end")

    futures = [timers.register_timer(number, run) for number in range(300)]
    assert some_ran.wait(TIMEOUT_S)
    timers.quiesce().result(TIMEOUT_S)
    by_then = list(runs)
    assert wait(futures, TIMEOUT_S).not_done == set()

    assert runs == by_then
    assert runs.count("begin") == runs.count("end")


# -- timers as mail --------------------------------------------------------------------------------------------------


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


def test_once_quiesced_no_mail_is_sent_but_what_was_sent_still_runs(
    mailed: MailboxTimeService, clock: ManualClock, mailbox: TaskMailbox, fired: list[int]
) -> None:
    mailed.register_timer(110, fired.append)
    mailed.register_timer(120, fired.append)
    clock.advance(10)

    quiesced = mailed.quiesce()
    clock.advance(10)
    mailbox.take(0).run()

    assert quiesced.done()
    assert fired == [110]
    assert mailbox.size() == 0


def test_a_callback_s_error_fails_the_loop_of_its_mailbox(clock: ManualClock, processor: MailboxProcessor) -> None:
    mailed = MailboxTimeService(clock, processor.main_mailbox_executor)
    future = mailed.register_timer(110, fail)
    clock.advance(10)

    with pytest.raises(LookupError, match="timer of 110 ms"):
        processor.run_mailbox_loop()

    assert future.result(0) is None


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
