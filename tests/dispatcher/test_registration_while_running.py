"""Handlers that come and go while events are handled, and which events they get."""

from __future__ import annotations

from enum import Enum, Flag
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, Event, MultiListenerHandler, UnregisteredEventTypeError

from ..kit import TIMEOUT_S, Gate, Numbered, Other, Work, assert_accounts_balance, in_threads
from ..kit.dispatchers import Make

batches = pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])


class _NeverWalked(dict[int, Any]):
    """A dict of which single entries are looked up."""

    def _walk(self) -> Any:
        raise AssertionError("all event types are looked at")

    __iter__ = keys = values = items = _walk


def test_a_registration_looks_only_at_the_event_types_of_its_class() -> None:
    """It looked at all: 30,000 classes took 45 s."""
    dispatcher = AsyncDispatcher()
    routes = dispatcher._routes
    routes.by_type = _NeverWalked()
    classes: list[Any] = [Enum(f"Class{index}", {"SAME": 1}) for index in range(3)]
    for each in classes:
        routes.find(each.SAME)
        dispatcher.register(each, len)
    for each in classes:
        dispatcher.register(each, id, on_error="stop")
        dispatcher.unregister(each, len)

    assert [(routes.find(each.SAME).handle, routes.find(each.SAME).on_error) for each in classes] == [(id, "stop")] * 3


class Right(Flag):
    READ = 1
    WRITE = 2


def post_in_one_batch(dispatcher: AsyncDispatcher, *events: Any) -> None:
    """The handler thread finds them all at once."""
    post = dispatcher.event_handler.handle
    dispatcher.mailbox_executor.submit(lambda: [post(event) for event in events]).result(TIMEOUT_S)


@batches
@pytest.mark.parametrize("is_inside", [True, False], ids=["by a handler", "by another thread"])
def test_a_handler_that_comes_or_goes_does_so_with_the_next_event_of_the_batch(
    make: Make, gate: Gate, measure_times: str, is_inside: bool
) -> None:
    first: list[int] = []
    late: list[int] = []

    def change() -> None:
        dispatcher.register(Work, lambda event: late.append(event.number))
        assert dispatcher.unregister(Work, handle)

    def handle(event: Numbered) -> None:
        first.append(event.number)
        if event.number == 1:
            if is_inside:
                change()
            else:
                gate.handle(event)

    dispatcher = make(DispatcherConfig(measure_times=measure_times), handler=handle)
    post_in_one_batch(dispatcher, *map(Numbered, range(5)))
    if not is_inside:
        assert gate.entered.wait(TIMEOUT_S)
        change()
        gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert (first, late) == ([0, 1], [2, 3, 4])
    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (5, 0)


def test_registrations_from_many_threads_while_events_flow_are_all_kept_and_lose_no_event(make: Make) -> None:
    last: list[int] = []
    dispatcher = make(handler=lambda _: None)

    def produce() -> None:
        for number in range(5_000):
            dispatcher.post(Numbered(number))

    def register(index: int) -> None:
        def note(event: Numbered) -> None:
            if event.number == -1:
                last.append(index)

        for _ in range(20):
            dispatcher.register(Work, note)
            assert dispatcher.unregister(Work, note)
        dispatcher.register(Work, note)

    in_threads(produce, *(lambda index=index: register(index) for index in range(8)))
    dispatcher.post(Numbered(-1))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert sorted(last) == list(range(8))
    assert dispatcher.stats().failed == 0
    assert_accounts_balance(dispatcher, accepted=5_001)


def test_a_registration_reaches_members_whose_name_is_shared(make: Make) -> None:
    """The second member of a name is behind the first: a change of its class's registration must reach it there."""
    other: list[Any] = []
    dispatcher = make(handler=lambda _: None)
    post_in_one_batch(dispatcher, Event(Work.DO), Event(Other.DO))
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().failed_by_type == {("Other", "DO"): 1}

    dispatcher.register(Other, other.append)
    post_in_one_batch(dispatcher, Event(Work.DO), Event(Other.DO))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert len(other) == 1


def test_flags_are_handled_also_several_at_once(make: Make) -> None:
    got: list[Any] = []
    dispatcher = make()
    dispatcher.register(Right, got.append)
    types = [Right.READ, Right.READ | Right.WRITE, Right(0)]

    post_in_one_batch(dispatcher, *map(Event, types))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.type for event in got] == types
    assert sum(dispatcher.stats().handled_by_type.values()) == 3


@pytest.mark.parametrize("odd", [object(), None, SimpleNamespace(type=None), SimpleNamespace(type="DO")])
def test_an_object_that_is_no_event_fails_alone(make: Make, caplog: pytest.LogCaptureFixture, odd: Any) -> None:
    got: list[int] = []
    dispatcher = make(handler=lambda event: got.append(event.number))

    post_in_one_batch(dispatcher, Numbered(1), odd, odd, Numbered(2))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert got == [1, 2]
    assert dispatcher.stats().failed_by_type == {("(none)", "(no Enum member)"): 2}
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert all(isinstance(error, UnregisteredEventTypeError) for error in errors)
    assert_accounts_balance(dispatcher, accepted=4)


def test_a_users_multi_listener_handler_keeps_growing_beside_another_handler_and_can_be_taken_back(make: Make) -> None:
    late: list[Any] = []
    fan_out = MultiListenerHandler()
    dispatcher = make(handler=fan_out)
    dispatcher.register(Work, lambda _: None)

    fan_out.add_handler(late.append)
    dispatcher.post(Numbered())

    assert dispatcher.await_drained(TIMEOUT_S)
    assert len(late) == 1
    assert dispatcher.unregister(Work, fan_out)


def test_the_policy_of_a_handler_goes_with_it(make: Make) -> None:
    def strict(_: Any) -> None: ...

    def fail(_: Any) -> None:
        raise RuntimeError("broken")

    dispatcher = make()
    dispatcher.register(Work, strict, on_error="stop")
    dispatcher.register(Work, fail)
    dispatcher.unregister(Work, strict)

    dispatcher.post(Numbered())

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.failure_cause is None
