"""Stops whose caller is interrupted, or comes twice, or is a handler."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, ServiceState
from dispatcher.testing import ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance, until
from ...kit.dispatchers import Make, hold

pytestmark = pytest.mark.long


class InterruptedOnce(threading.Event):
    """The wait for the handler thread, into which comes a Ctrl-C."""

    interrupted = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().wait(timeout)


def interrupt(dispatcher: AsyncDispatcher) -> None:
    dispatcher._drain.finished = InterruptedOnce()


def test_an_interrupted_stop_discards_what_is_queued_and_ends_once_the_handler_returns(
    make: Make, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = make(DispatcherConfig(drain_timeout_s=600), handler=gate)
    interrupt(dispatcher)
    for number in range(5):
        dispatcher.event_handler.handle(Numbered(number))
    assert gate.entered.wait(TIMEOUT_S)

    with pytest.raises(KeyboardInterrupt):
        dispatcher.stop()
    dispatcher.stop()  # returns

    assert dispatcher.state is ServiceState.STOPPED
    assert not dispatcher.event_handler.handle(Numbered())
    assert "a handler is still at work on <Numbered Work.DO>" in caplog.text
    assert "after 600 s" not in caplog.text  # it did not wait for the whole timeout
    gate.opened.set()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.is_stopped()
    assert [event.number for event in gate.events] == [0]
    assert_accounts_balance(dispatcher, accepted=5)


def test_a_mail_may_stop_the_dispatcher(make: Make) -> None:
    dispatcher = make(handler=lambda _: None)
    dispatcher.event_handler.handle(Numbered())

    dispatcher.mailbox_executor.submit(dispatcher.stop).result(TIMEOUT_S)

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.failure_cause is None
    assert_accounts_balance(dispatcher, accepted=1)


@pytest.mark.parametrize("drain", [True, False])
def test_handlers_that_post_on_and_on_end_once_a_stop_has_given_up(gate: Gate, drain: bool) -> None:
    """A chain of events, one in hand and none queued when the queue was discarded, went on for ever."""
    goes_on = True

    def handle(event: Numbered) -> None:
        gate.handle(event)
        if goes_on:
            dispatcher.event_handler.handle(Numbered(event.number + 1))

    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.01, drain_events_on_stop=drain))
    dispatcher.register(Work, handle)
    dispatcher.start()
    hold(dispatcher, gate)
    dispatcher.stop()

    gate.opened.set()
    ended = dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    goes_on = False

    assert ended


def test_an_event_whose_post_was_cut_short_is_found_by_the_next_look(make: Make) -> None:
    """A KeyboardInterrupt after the append, before the handler thread was woken, left the event waiting for another."""
    clock = ManualClock()
    got: list[Any] = []
    dispatcher = make(handler=got.append, time_service=clock)
    until(dispatcher._mailbox.parking.is_waiting)
    dispatcher.core.queue.entries.append(Numbered(1))

    clock.advance(1000)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.number for event in got] == [1]
