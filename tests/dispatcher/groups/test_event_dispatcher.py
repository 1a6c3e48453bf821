"""EventDispatcher: a handler for the events of every class, on a thread of its own."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, Event, EventDispatcher

from ...kit import Gate, Numbered, Other, Work, in_threads
from ...kit.dispatchers import hold


def test_an_event_dispatcher_takes_events_of_every_class_for_one_handler() -> None:
    got: list[Any] = []

    with EventDispatcher(lambda event: got.append(event.type), "scheduler") as dispatcher:
        for event in (Event(Work.DO), Event(Other.DO), Event(Work.MORE)):
            assert dispatcher.handle(event)

    assert got == [Work.DO, Other.DO, Work.MORE]
    assert dispatcher.name == "scheduler"


def test_first_events_of_a_class_from_several_threads_register_the_handler_once() -> None:
    got: list[Any] = []
    with EventDispatcher(got.append) as dispatcher:
        in_threads(*[lambda: dispatcher.handle(Numbered())] * 4)

    assert len(got) == 4


def test_a_registration_on_an_event_dispatcher_replaces_its_handler_for_that_class() -> None:
    every: list[Any] = []
    work: list[Any] = []
    with EventDispatcher(every.append) as dispatcher:
        dispatcher.register(Work, work.append)
        for event in (Event(Work.DO), Event(Other.DO)):
            dispatcher.handle(event)

    assert ([event.type for event in every], [event.type for event in work]) == ([Other.DO], [Work.DO])


def test_an_event_dispatcher_takes_the_options_of_a_dispatcher(gate: Gate) -> None:
    config = DispatcherConfig(queue_capacity=1, queue_full_policy="reject")
    with EventDispatcher(gate, config=config) as dispatcher:
        hold(dispatcher, gate)
        answers = [dispatcher.handle(Numbered(number)) for number in (1, 2)]
        gate.opened.set()

    assert answers == [True, False]
    assert isinstance(dispatcher, AsyncDispatcher)


def test_an_event_dispatcher_says_what_is_wrong_with_an_event_whose_type_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd:
        type = None

    with EventDispatcher(lambda _: None) as dispatcher:
        dispatcher.handle(Odd())

    assert "UnboundLocalError" not in caplog.text
