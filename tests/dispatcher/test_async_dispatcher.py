from __future__ import annotations

import asyncio
import threading
from enum import Enum
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    Event,
)
from dispatcher.testing import DrainDispatcher, ManualClock

from ..kit import TIMEOUT_S, Numbered, Work
from ..kit.dispatchers import Make


@pytest.mark.parametrize("is_async", [False, True])
def test_on_error_exit_calls_the_exit_action_once_on_another_thread(
    loop: asyncio.AbstractEventLoop, is_async: bool
) -> None:
    codes: list[tuple[int, str]] = []
    exited = threading.Event()

    def exit_action(code: int) -> None:
        codes.append((code, threading.current_thread().name))
        exited.set()

    def fail(event: Any) -> None:
        raise RuntimeError("broken")

    async def fail_later(event: Any) -> None:
        fail(event)

    dispatcher = AsyncDispatcher(name="central", exit_action=exit_action, loop=loop)
    dispatcher.register(Work, fail_later if is_async else fail, on_error="exit")
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
