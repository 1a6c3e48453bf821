from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    Event,
    ServiceState,
    UnregisteredEventTypeError,
)
from dispatcher.testing import DrainDispatcher, ManualClock

from ..kit import TIMEOUT_S, Gate, Numbered, Other, Work, assert_accounts_balance

Make = Callable[..., AsyncDispatcher]


def test_an_exception_is_counted_and_logged_with_the_event_and_the_next_event_is_handled(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_on_odd(event: Numbered) -> None:
        if event.number % 2:
            raise RuntimeError(f"odd {event.number}")

    dispatcher = make(handler=fail_on_odd)

    for number in range(4):
        dispatcher.post(Numbered(number))
    assert dispatcher.await_drained(TIMEOUT_S)

    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (2, 2)
    assert dispatcher.stats().failed_by_type == {("Work", "DO"): 2}
    assert "Numbered Work.DO" in caplog.text
    assert "odd 1" in caplog.text
    assert dispatcher.state is ServiceState.STARTED


def test_an_event_without_handler_fails_and_says_what_to_do(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = make(handler=lambda _: None)

    dispatcher.post(Event(Other.DO))
    dispatcher.post("no event at all")
    assert dispatcher.await_drained(TIMEOUT_S)

    assert dispatcher.stats().failed == 2
    assert "no handler for Other.DO. Call register(Other, handler) before posting." in caplog.text
    assert any(isinstance(r.exc_info[1], UnregisteredEventTypeError) for r in caplog.records if r.exc_info)
    assert_accounts_balance(dispatcher, accepted=2)


def test_on_error_exit_calls_the_exit_action_once_on_another_thread() -> None:
    codes: list[tuple[int, str]] = []
    exited = threading.Event()

    def exit_action(code: int) -> None:
        codes.append((code, threading.current_thread().name))
        exited.set()

    def fail(event: Any) -> None:
        raise RuntimeError("broken")

    dispatcher = AsyncDispatcher(name="central", exit_action=exit_action)
    dispatcher.register(Work, fail, on_error="exit")
    with dispatcher:
        dispatcher.post(Numbered())
        assert exited.wait(TIMEOUT_S)
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert codes == [(-1, "central-exit")]
    assert isinstance(dispatcher.failure_cause, RuntimeError)


def test_the_strictest_policy_of_a_class_holds(make: Make) -> None:
    def fail(event: Any) -> None:
        raise RuntimeError("broken")

    dispatcher = make()
    dispatcher.register(Work, fail, on_error="stop")
    dispatcher.register(Work, lambda _: None)

    dispatcher.post(Numbered())

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


def test_the_mailbox_executor_runs_between_events_on_the_handler_thread(make: Make) -> None:
    threads: list[int] = []
    dispatcher = make(handler=lambda _: threads.append(threading.get_ident()))

    dispatcher.post(Numbered())
    future = dispatcher.mailbox_executor.submit(threading.get_ident, "which thread")

    assert future.result(TIMEOUT_S) == dispatcher._thread.ident
    assert dispatcher.await_drained(TIMEOUT_S)
    assert threads == [dispatcher._thread.ident]
    assert dispatcher.stats().mails_run >= 1


def test_mail_does_not_wait_for_a_long_batch(make: Make, gate: Gate) -> None:
    """A batch of events once kept control mail waiting until its end, however slow the handlers."""
    dispatcher = make(DispatcherConfig(batch_size=1000), handler=gate)
    for number in range(10):
        dispatcher.post(Numbered(number))
    assert gate.entered.wait(TIMEOUT_S)
    seen: list[int] = []

    future = dispatcher.mailbox_executor.submit(lambda: seen.append(len(gate.events)))
    gate.opened.set()

    future.result(TIMEOUT_S)
    assert seen == [1]


def test_an_alias_is_counted_under_its_members_name(make: Make) -> None:
    class Mode(Enum):
        A = 1
        ALIAS = A

    dispatcher = make(handler=lambda _: None)
    dispatcher.register(Mode, lambda _: None)

    dispatcher.post(Event(Mode.ALIAS))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().handled_by_type == {("Mode", "A"): 1}


def test_a_turn_dispatches_what_its_handlers_post_next_up_to_the_batch_size() -> None:
    turns: list[int] = []

    def handle(event: Numbered) -> None:
        turns.append(dispatcher.core.progress.begun)
        if event.number < 9:
            dispatcher.post(Numbered(event.number + 1))

    config = DispatcherConfig(batch_size=4, measure_times="all")
    with DrainDispatcher(config, time_service=ManualClock()) as dispatcher:
        dispatcher.register(Work, handle)
        dispatcher.wait_for_event_thread_to_wait(TIMEOUT_S)
        dispatcher.post(Numbered(0))
        assert dispatcher.await_drained(TIMEOUT_S)

    assert [turns.count(turn) for turn in sorted(set(turns))] == [1, 4, 4, 1]  # the first wakes the thread


def test_mail_comes_between_events_that_handlers_post_one_after_the_other(make: Make) -> None:
    log: list[str] = []

    def handle(event: Numbered) -> None:
        log.append(f"event {event.number}")
        if event.number == 1:
            dispatcher.mailbox_executor.execute(lambda: log.append("mail"))
        if event.number < 3:
            dispatcher.post(Numbered(event.number + 1))

    dispatcher = make(DispatcherConfig(measure_times="all"), handler=handle)

    dispatcher.post(Numbered(0))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert log == ["event 0", "event 1", "mail", "event 2", "event 3"]
