"""Waiting until a dispatcher is drained while others post to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import AsyncDispatcher
from dispatcher.mailbox import ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered, in_threads, until
from ...kit.dispatchers import Make, hold


def test_a_post_in_the_moment_of_the_drain_does_not_end_a_wait(make: Make, gate: Gate) -> None:
    """`await_drained` returned False long before its timeout, and the dispatcher was drained a little later."""
    dispatcher = make(handler=gate)
    hold(dispatcher, gate)
    notify = dispatcher._drain.notify
    late = [Numbered(1)]

    def post_and_notify() -> None:
        if late:
            dispatcher.event_handler.handle(late.pop())
        notify()

    dispatcher._drain.notify = post_and_notify  # type: ignore[method-assign]
    drained = dispatcher.core.when_drained()
    gate.opened.set()

    assert drained.result(TIMEOUT_S)
    assert [event.number for event in gate.events] == [0, 1]


def test_each_of_many_waiting_threads_is_notified(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    hold(dispatcher, gate)
    answers: list[bool] = []

    def release() -> None:
        until(lambda: len(dispatcher._drain.waiters) == 4)
        gate.opened.set()

    in_threads(*[lambda: answers.append(dispatcher.await_drained(TIMEOUT_S))] * 4, release)

    assert answers == [True] * 4


@pytest.mark.parametrize("timeout", [0, 0.0])
def test_a_wait_of_no_time_is_a_look(make: Make, gate: Gate, timeout: float) -> None:
    dispatcher = make(handler=gate)
    before = dispatcher.await_drained(timeout)
    hold(dispatcher, gate)

    held = dispatcher.await_drained(timeout)
    gate.opened.set()

    assert (before, held) == (True, False)


class Watched:
    """A Progress that calls `look` behind each change of `begun`."""

    def __init__(self, progress: Any, look: Callable[[], object]) -> None:
        self.__dict__.update(progress=progress, look=look)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.progress, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.progress, name, value)
        if name == "begun":
            self.look()


def test_a_wait_that_begins_amid_the_last_look_of_an_idle_dispatcher_ends() -> None:
    """The look counted as work in hand, and the handler thread then slept without a word to those who waited."""
    dispatcher = AsyncDispatcher(time_service=ManualClock())  # so no tick wakes the handler thread
    waits: list[Any] = []

    def look() -> None:
        if not waits:
            waits.append(dispatcher.core.when_drained())

    lone = dispatcher._dispatching._lone
    lone._progress = Watched(lone._progress, look)  # type: ignore[assignment]
    with dispatcher:
        until(lambda: waits)

        assert waits[0].result(TIMEOUT_S)
