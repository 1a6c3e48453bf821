"""Draining and stopping: invariants 2 to 4 and 7 to 10 of the design."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, DispatcherConfig, ServiceState
from dispatcher.queue.entry import event_of

from ...kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance

Make = Callable[..., AsyncDispatcher]


def test_without_drain_on_stop_queued_events_are_discarded_and_counted(
    make: Make, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = make(handler=gate)
    dispatcher.set_drain_events_on_stop(False)
    for number in range(5):
        dispatcher.event_handler.handle(Numbered(number))
    assert gate.entered.wait(TIMEOUT_S)
    stopper = threading.Thread(target=dispatcher.stop)

    with caplog.at_level(logging.WARNING):
        stopper.start()
        while dispatcher.stats().discarded < 4:
            assert stopper.is_alive()
        gate.opened.set()
        stopper.join(TIMEOUT_S)

    assert [event.number for event in gate.events] == [0]
    assert "stop discarded 4 queued events: 4 Work.DO" in caplog.text
    assert_accounts_balance(dispatcher, accepted=5)


def test_an_event_in_the_handlers_hands_is_not_drained(make: Make, gate: Gate) -> None:
    """YARN-3878: the flag said drained while the last event was taken and not yet handled."""
    dispatcher = make(handler=gate)
    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)

    assert dispatcher.queue_size() == 0
    assert not dispatcher.is_drained()
    assert not dispatcher.await_drained(0.01)

    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)


def test_await_drained_in_a_handler_is_refused_instead_of_waiting_for_itself(make: Make) -> None:
    errors: list[BaseException] = []

    def wait_for_myself(event: Any) -> None:
        try:
            dispatcher.await_drained(1)
        except RuntimeError as error:
            errors.append(error)

    dispatcher = make(handler=wait_for_myself)
    dispatcher.event_handler.handle(Numbered())

    assert dispatcher.await_drained(TIMEOUT_S)
    assert "cannot wait" in str(errors[0])


def test_stop_returns_within_its_timeout_although_a_handler_hangs(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """TEZ-4277: a stop waited for ever for a handler that hung."""
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.1), name="central")
    dispatcher.register(Work, gate)
    dispatcher.init()
    dispatcher.start()
    for number in range(3):
        dispatcher.event_handler.handle(Numbered(number))
    assert gate.entered.wait(TIMEOUT_S)

    with caplog.at_level(logging.WARNING):
        started = time.monotonic()
        dispatcher.stop()
        took = time.monotonic() - started

    assert took < TIMEOUT_S / 2  # the handler would wait for the whole of it
    assert dispatcher.state is ServiceState.STOPPED
    assert not dispatcher.is_stopped()
    assert "stop discarded 2 queued events: 2 Work.DO" in caplog.text
    assert "a handler is still at work on <Numbered Work.DO>" in caplog.text
    assert "assert self.opened.wait" in caplog.text  # the stack says where it hangs
    assert dispatcher.stats().accepted == 3

    gate.opened.set()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert_accounts_balance(dispatcher, accepted=3)


class Waits(threading.Event):
    """Never set, and never waits: adds up how long it should have waited."""

    waited_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited_s += timeout
        return False


@pytest.mark.parametrize("timeout_s", [0.0, 0.4, 1.0, 30.0])
def test_a_stop_keeps_its_grace_within_the_drain_timeout(gate: Gate, timeout_s: float) -> None:
    """It waited half a second more for a handler that hung."""
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=timeout_s))
    dispatcher.register(Work, gate)
    dispatcher.init()
    dispatcher.start()
    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)
    waits = dispatcher._drain.finished = Waits()

    dispatcher.stop()

    assert timeout_s / 2 <= waits.waited_s <= timeout_s
    gate.opened.set()


def test_stopping_twice_and_from_two_threads_is_harmless(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)
    stoppers = [threading.Thread(target=dispatcher.stop) for _ in range(2)]

    for stopper in stoppers:
        stopper.start()
    gate.opened.set()
    for stopper in stoppers:
        stopper.join(TIMEOUT_S)
    dispatcher.stop()

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


def test_a_dispatcher_that_never_started_stops_and_discards() -> None:
    dispatcher = AsyncDispatcher()
    dispatcher.event_handler.handle(Numbered())
    future = dispatcher.mailbox_executor.submit(lambda: None)

    dispatcher.stop()

    assert dispatcher.is_stopped()
    assert future.cancelled()
    assert dispatcher.stats().discarded == 1
    assert not dispatcher.event_handler.handle(Numbered())
    assert_accounts_balance(dispatcher, accepted=1)


def test_mail_that_waits_at_the_stop_is_run_before_the_end(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)
    future = dispatcher.mailbox_executor.submit(lambda: "ran")
    stopper = threading.Thread(target=dispatcher.stop)

    stopper.start()
    gate.opened.set()
    stopper.join(TIMEOUT_S)

    assert future.result(TIMEOUT_S) == "ran"


class _PausingDeque(deque[Any]):
    """A queue that holds one producer right before or right after its append."""

    before: threading.Event | None = None
    after: threading.Event | None = None
    reached: threading.Event

    def append(self, entry: Any) -> None:
        number = getattr(event_of(entry), "number", None)
        if number == -1 and self.before is not None:
            self.reached.set()
            assert self.before.wait(TIMEOUT_S)
        super().append(entry)
        if number == -1 and self.after is not None:
            self.reached.set()
            assert self.after.wait(TIMEOUT_S)


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("window", ["before", "after"])
def test_a_producer_held_between_its_steps_strands_no_event(
    monkeypatch: pytest.MonkeyPatch, window: str, drain: bool
) -> None:
    """Invariant 2: check, then append strands an event between a stop and a post (pykka does)."""
    held, reached = threading.Event(), threading.Event()
    monkeypatch.setattr(_PausingDeque, window, held)
    monkeypatch.setattr(_PausingDeque, "reached", reached, raising=False)
    monkeypatch.setattr("dispatcher.queue.inbox.deque", _PausingDeque)
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_events_on_stop=drain))
    handled: list[int] = []
    dispatcher.register(Work, lambda event: handled.append(event.number))
    answers: list[bool] = []
    producer = threading.Thread(target=lambda: answers.append(dispatcher.event_handler.handle(Numbered(-1))))
    with dispatcher:
        producer.start()
        assert reached.wait(TIMEOUT_S)
    held.set()
    producer.join(TIMEOUT_S)

    accepted = answers == [True]
    assert dispatcher.queue_size() == 0
    assert accepted == (handled == [-1] or dispatcher.stats().discarded == 1)
    assert accepted == (window == "after")
    assert_accounts_balance(dispatcher, accepted=int(accepted))


@settings(max_examples=40, deadline=None)
@given(
    producers=st.integers(1, 4),
    events=st.integers(0, 60),
    capacity=st.none() | st.integers(1, 5),
    drain=st.booleans(),
    stop_after=st.integers(0, 120),
)
def test_every_accepted_event_is_handled_or_discarded_whenever_the_stop_comes(
    producers: int, events: int, capacity: int | None, drain: bool, stop_after: int
) -> None:
    handled: list[Numbered] = []
    dispatcher = AsyncDispatcher(DispatcherConfig(queue_capacity=capacity, drain_events_on_stop=drain))

    def handle(event: Numbered) -> None:
        handled.append(event)
        if len(handled) == stop_after:
            dispatcher.stop()

    dispatcher.register(Work, handle)
    accepted: list[list[int]] = [[] for _ in range(producers)]
    together = threading.Barrier(producers)

    def produce(producer: int) -> None:
        together.wait(TIMEOUT_S)
        for number in range(events):
            if dispatcher.event_handler.handle(Numbered(number, producer)):
                accepted[producer].append(number)

    threads = [threading.Thread(target=produce, args=(producer,)) for producer in range(producers)]
    with dispatcher:
        for thread in threads:
            thread.start()
        if stop_after:
            threads[0].join(TIMEOUT_S)
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    total = sum(map(len, accepted))
    assert_accounts_balance(dispatcher, accepted=total)
    assert len(handled) + dispatcher.stats().discarded == total
    for producer in range(producers):
        of_producer = [event.number for event in handled if event.producer == producer]
        assert of_producer == accepted[producer][: len(of_producer)]
    if drain:
        assert dispatcher.stats().discarded == 0
