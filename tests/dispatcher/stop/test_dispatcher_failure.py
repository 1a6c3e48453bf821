"""A handler thread that dies is a failed service, and its events are accounted for."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, ServiceState, register_metrics
from dispatcher.testing import ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered, assert_accounts_balance, until
from ...kit.dispatchers import Make
from ...kit.services import fail


@pytest.mark.parametrize("fails", [False, True])
def test_a_failure_is_a_metric_and_a_stop_is_none(make: Make, fails: bool) -> None:
    registry = CollectorRegistry()
    dispatcher = make(name="central")
    register_metrics(dispatcher, registry)

    if fails:
        dispatcher.mailbox_executor.execute(fail)
    else:
        dispatcher.stop()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert registry.get_sample_value("dispatcher_failed", {"dispatcher": "central"}) == fails


def test_an_idle_action_that_raises_fails_the_dispatcher(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = AsyncDispatcher(idle_action=fail)  # type: ignore[arg-type]
    dispatcher.init()

    with caplog.at_level(logging.CRITICAL):
        dispatcher.start()
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert isinstance(dispatcher.failure_cause, LookupError)
    assert "the handler thread failed and ends" in caplog.text


def test_a_listener_of_the_failure_sees_its_cause_and_balanced_accounts(make: Make, gate: Gate) -> None:
    seen: list[Any] = []
    dispatcher = make(handler=gate)
    dispatcher.register_service_listener(
        lambda _: seen.append((dispatcher.failure_cause, dispatcher.stats().accepted, dispatcher.queue_size()))
    )
    for number in range(3):
        dispatcher.event_handler.handle(Numbered(number))
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.mailbox_executor.execute(fail)

    gate.opened.set()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    until(lambda: seen)

    ((cause, accepted, queued),) = seen
    assert isinstance(cause, LookupError)
    assert (accepted, queued) == (3, 0)


def test_a_start_that_fails_leaves_a_stopped_dispatcher_that_refuses() -> None:
    clock = ManualClock()
    clock.shutdown()
    dispatcher = AsyncDispatcher(time_service=clock)
    dispatcher.event_handler.handle(Numbered())
    dispatcher.init()

    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever timers say that have been shut down
        dispatcher.start()

    assert dispatcher.state is ServiceState.STOPPED
    assert dispatcher.failure_cause is not None
    assert dispatcher.is_stopped()
    assert not dispatcher.event_handler.handle(Numbered())
    dispatcher.stop()
    assert dispatcher.stats().discarded_by_reason == {"stop": 1}
    assert_accounts_balance(dispatcher, accepted=1)


class Uncancellable:
    """A command that a mailbox which closes cannot get rid of."""

    def __call__(self) -> None: ...

    def cancel(self) -> bool:
        raise OSError("no way to cancel")


@pytest.mark.parametrize("started", [True, False])
def test_mail_that_cannot_be_cancelled_does_not_keep_a_dispatcher_from_its_end(started: bool) -> None:
    """A wait for the end lasted for ever."""
    dispatcher = AsyncDispatcher()
    dispatcher.mailbox_executor.execute(fail, "ends the handler thread")
    dispatcher.mailbox_executor.execute(Uncancellable(), "stays behind")
    dispatcher.init()

    if started:
        dispatcher.start()
    else:
        dispatcher.stop()

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert isinstance(dispatcher.failure_cause, LookupError if started else OSError)
    assert dispatcher.is_stopped()
