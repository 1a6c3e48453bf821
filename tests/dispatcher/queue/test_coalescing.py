"""`coalesce_by`: a queued event is superseded by a newer one of its key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher import AsyncDispatcher

from ...kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance, in_threads
from ...kit.dispatchers import hold
from ...kit.holding import held
from ..stage import Rows, perform, scenarios

Make = Callable[..., AsyncDispatcher]


class Update(Enum):
    SET = 1
    CLEAR = 2


class Twin(Enum):
    SET = 1


def keyed(key: Any, number: int, type: Enum = Update.SET) -> Any:
    return SimpleNamespace(key=key, number=number, type=type)


def key_of(event: Any) -> Any:
    return event.key


@pytest.fixture
def got() -> list[Any]:
    return []


SCENARIOS: Rows = {
    "the newest event of each key is handled, in the order of first arrival": (
        "hold | post 1:a 2:b 3:a 4:c 5:b 6:a -> posted True True True True True True ; queue_size 3 "
        "| release -> seen 6 5 4 ; discarded_by_reason superseded:3",
        {},
    ),
    "an event without a key stands for itself": (
        "hold | post 1 2 3:a 4 | release -> seen 1 2 3 4 ; discarded 0",
        {},
    ),
    "in a full queue an event supersedes without room": (
        "hold | post 1:a 2:a | release -> seen 2 ; discarded_by_reason superseded:1 ; remaining 1",
        {"queue_capacity": 1},
    ),
    "in a full queue the first event of a key waits for room": (
        "hold | post 1:a | begin post 2:b -> waiting 1 | release -> seen 1 2 ; posted True True",
        {"queue_capacity": 1},
    ),
    "an error of the function reaches the producer, and nothing is accepted": (
        "post 1 -> posted ZeroDivisionError ; accepted 0 ; rejected",
        {"coalesce_by": lambda event: 1 // 0},
    ),
    "the error of an unhashable key reaches the producer, and nothing is accepted": (
        "post 1 -> posted TypeError ; accepted 0 ; rejected",
        {"coalesce_by": lambda event: []},
    ),
}


@scenarios(SCENARIOS)
def test_scenario(script: str, options: dict[str, Any]) -> None:
    perform(script, **{"coalesce_by": lambda event: event.lock_key, **options})


def test_the_same_key_of_two_classes_is_two_keys_and_of_two_types_one(make: Make, gate: Gate, got: list[Any]) -> None:
    dispatcher = make(handler=gate)
    for event_class in (Update, Twin):
        dispatcher.register(event_class, got.append, coalesce_by=key_of)
    hold(dispatcher, gate)

    for number, type in enumerate((Update.SET, Twin.SET, Update.CLEAR, Twin.SET)):
        dispatcher.post(keyed("a", number, type))
    assert dispatcher.queue_contents() == {Update.CLEAR: 1, Twin.SET: 1}
    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.number for event in got] == [2, 3]


@pytest.mark.parametrize("capacity", [None, 3])
def test_with_many_producers_the_last_event_of_each_key_is_handled_and_the_accounts_balance(
    make: Make, got: list[Any], capacity: int | None
) -> None:
    dispatcher = make(queue_capacity=capacity)
    dispatcher.register(Update, got.append, coalesce_by=key_of)

    def produce(producer: int) -> None:
        for number in range(300):
            assert dispatcher.post(keyed((producer, number % 3), number))

    in_threads(*(lambda producer=producer: produce(producer) for producer in range(3)))

    assert dispatcher.await_drained(TIMEOUT_S)
    last = {event.key: event.number for event in got}
    assert last == {(producer, rest): 297 + rest for producer in range(3) for rest in range(3)}
    assert_accounts_balance(dispatcher, accepted=900)
    assert dispatcher.core.queue.queued == {}
    if capacity is not None:
        assert dispatcher.core.queue.room.remaining() == capacity


def test_a_coalesce_by_that_cannot_be_called_is_refused_and_nothing_is_registered(make: Make) -> None:
    dispatcher = make()

    with pytest.raises(TypeError, match="not callable"):
        dispatcher.register(Work, lambda _: None, coalesce_by=())  # type: ignore[arg-type]

    dispatcher.post(Numbered())
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().failed == 1


@pytest.mark.parametrize(
    ("first", "second", "unregistered", "expected"),
    [
        (key_of, None, "first", 3),  # the second handler got 1 of the events
        (key_of, None, "second", 1),
        (None, key_of, "first", 1),
        (None, key_of, "second", 3),
        (key_of, lambda event: event.number, "second", 1),
        (key_of, lambda event: event.number, "first", 3),
    ],
)
def test_a_key_goes_with_the_handler_that_brought_it(
    make: Make, gate: Gate, got: list[Any], first: Any, second: Any, unregistered: str, expected: int
) -> None:
    handlers = {"first": lambda event: got.append(event), "second": lambda event: got.append(event)}
    dispatcher = make(handler=gate)
    for handler, key in zip(handlers.values(), (first, second), strict=True):
        dispatcher.register(Update, handler, coalesce_by=key)
    hold(dispatcher, gate)

    assert dispatcher.unregister(Update, handlers[unregistered])
    for number in range(3):
        dispatcher.post(keyed("a", number))
    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert len(got) == expected


def test_coalescing_registered_while_running_holds_from_the_next_post(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    for number in range(3):
        dispatcher.post(Numbered(number))
    assert gate.entered.wait(TIMEOUT_S)

    dispatcher.register(Work, lambda _: None, coalesce_by=lambda event: event.type)
    for number in range(3, 6):
        dispatcher.post(Numbered(number))
    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.number for event in gate.events] == [0, 1, 2, 5]


def test_an_event_put_aside_whose_key_cannot_be_compared_is_handled_without_its_key(
    make: Make, got: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A post that interrupts another of its thread has returned True before the handler thread compares its key."""
    dispatcher = make(handler=got.append)
    dispatcher.register(Update, got.append, coalesce_by=key_of)
    producer, nested = threading.get_ident(), [3]

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if threading.get_ident() != producer:
                raise LookupError("not comparable")
            if nested:
                assert dispatcher.post(keyed(Key(), nested.pop()))
            return self is other

    with held(dispatcher.mailbox_executor.execute):
        for number in (1, 2):
            assert dispatcher.post(keyed(Key(), number))
    dispatcher.stop()

    assert sorted(event.number for event in got) == [1, 2, 3]
    assert "cannot be compared" in caplog.text
    assert "LookupError: not comparable" in caplog.text
