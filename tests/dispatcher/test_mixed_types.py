"""Events of several types in one batch: each goes to its own handler, in order, and counts for its own type."""

from __future__ import annotations

import random
from collections import Counter
from enum import Enum
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, Event

from ..kit import TIMEOUT_S, Gate, assert_accounts_balance
from ..kit.dispatchers import Make


class First(Enum):
    A = 1
    B = 2
    C = 3


class Second(Enum):
    A = 1
    B = 2
    C = 3
    D = 4


TYPES = (*First, *Second)


class Recording:
    """Notes its events. Raises at those whose timestamp the test names, and waits at its gate at one of them."""

    def __init__(
        self, fails_at: frozenset[float] = frozenset(), gate: Gate | None = None, gated_at: float = -1
    ) -> None:
        self.seen: list[Event[Any]] = []
        self.fails_at, self.gate, self.gated_at = fails_at, gate, gated_at

    def handle(self, event: Event[Any]) -> None:
        if event.timestamp == self.gated_at and self.gate is not None:
            self.gate.handle(event)
        self.seen.append(event)
        if event.timestamp in self.fails_at:
            raise IndexError("pop from an empty deque")


def drawn(count: int, types: int) -> list[Event[Any]]:
    draw = random.Random(types)
    return [Event(draw.choice(TYPES[:types]), float(number)) for number in range(count)]


def post_at_once(dispatcher: AsyncDispatcher, events: list[Event[Any]]) -> None:
    """While the handler thread is busy with a mail, so that they make whole batches."""
    post = dispatcher.event_handler.handle
    dispatcher.mailbox_executor.submit(lambda: [post(event) for event in events]).result(TIMEOUT_S)


def named(types: Counter[Any]) -> dict[tuple[str, str], int]:
    return {(type(each).__name__, each.name): count for each, count in types.items()}


@pytest.mark.parametrize(("types", "capacity"), [(1, None), (2, 2_000), (4, None), (5, 2_000), (7, None)])
def test_events_of_random_types_go_to_their_handlers_in_order_and_count_by_type(
    make: Make, types: int, capacity: int | None
) -> None:
    events = drawn(1_500, types)
    failing = frozenset(each.timestamp for each in random.Random(1).sample(events, 40))
    first, second = Recording(failing), Recording(failing)
    dispatcher = make(DispatcherConfig(queue_capacity=capacity, batch_size=100))
    dispatcher.register(First, first)
    dispatcher.register(Second, second.handle)

    post_at_once(dispatcher, events)
    assert dispatcher.await_drained(TIMEOUT_S)

    assert first.seen == [each for each in events if type(each.type) is First]
    assert second.seen == [each for each in events if type(each.type) is Second]
    stats = dispatcher.stats()
    failed = Counter(each.type for each in events if each.timestamp in failing)
    assert stats.failed_by_type == named(failed)
    assert stats.handled_by_type == named(Counter(each.type for each in events) - failed)
    assert_accounts_balance(dispatcher, len(events))


@pytest.mark.parametrize("place", [300, 301, 302, 303, 304, 305])
def test_while_an_event_in_the_midst_of_a_batch_is_handled_those_before_it_have_counted(
    make: Make, gate: Gate, place: int
) -> None:
    """The first batch times each event; this one is in the second, which does not."""
    events = drawn(700, 7)
    handler = Recording(gate=gate, gated_at=float(place))
    dispatcher = make()
    for each in (First, Second):
        dispatcher.register(each, handler)

    post_at_once(dispatcher, events)
    assert gate.entered.wait(TIMEOUT_S)
    stats, run = dispatcher.stats(), dispatcher.view.running()
    gate.opened.set()

    assert stats.handled_by_type == named(Counter(each.type for each in events[:place]))
    assert stats.queue_size == len(events) - place - 1
    assert run is not None
    assert named(Counter([events[place].type])) == {(run.event_class, run.event_type): 1}
    assert dispatcher.await_drained(TIMEOUT_S)


def test_a_handler_registered_by_a_handler_gets_the_next_event_of_each_type(make: Make) -> None:
    """Although the batch has kept the former handlers of the four types."""
    dispatcher = make()
    events = drawn(600, 4)
    former, latter = Recording(), Recording()

    def replace(event: Event[Any]) -> None:
        former.handle(event)
        if event is events[400]:
            for each in (First, Second):
                dispatcher.unregister(each, replace)
                dispatcher.register(each, latter)

    for each in (First, Second):
        dispatcher.register(each, replace)
    post_at_once(dispatcher, events)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert (former.seen, latter.seen) == (events[:401], events[401:])
