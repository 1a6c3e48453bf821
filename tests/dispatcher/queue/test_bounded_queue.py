from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from dispatcher import AsyncDispatcher, DispatcherConfig

from ..conftest import TIMEOUT_S, Gate, Numbered, assert_accounts_balance

Make = Callable[..., AsyncDispatcher]


def test_a_full_queue_refuses_under_reject(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(queue_capacity=2, queue_full_policy="reject"), handler=gate)
    dispatcher.event_handler.handle(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)

    answers = [dispatcher.event_handler.handle(Numbered(number)) for number in (1, 2, 3)]

    assert answers == [True, True, False]
    assert dispatcher.queue_size() == dispatcher.stats.queue_capacity == 2
    assert dispatcher.stats.rejected == {"full": 1}
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)
    assert_accounts_balance(dispatcher, accepted=3)


def test_a_post_to_a_full_queue_waits_for_room_under_block(make: Make, gate: Gate) -> None:
    dispatcher = make(queue_capacity=1, handler=gate)
    dispatcher.event_handler.handle(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.event_handler.handle(Numbered(1))
    answers: list[bool] = []
    producer = threading.Thread(target=lambda: answers.append(dispatcher.event_handler.handle(Numbered(2))))

    producer.start()
    while not dispatcher.core.queue.room.waiters:
        assert producer.is_alive()
    assert dispatcher.queue_size() == 1
    gate.opened.set()
    producer.join(TIMEOUT_S)

    assert answers == [True]
    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.number for event in gate.events] == [0, 1, 2]


def test_a_post_gives_up_after_the_timeout(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(queue_capacity=1, queue_full_timeout_s=0.01), handler=gate)
    dispatcher.event_handler.handle(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.event_handler.handle(Numbered(1))

    assert not dispatcher.event_handler.handle(Numbered(2))

    assert dispatcher.stats.rejected == {"timeout": 1}


def test_a_stop_wakes_and_refuses_the_producers_that_wait(gate: Gate) -> None:
    dispatcher = AsyncDispatcher(queue_capacity=1)
    dispatcher.register(type(Numbered().type), gate)
    dispatcher.init()
    dispatcher.start()
    dispatcher.event_handler.handle(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.event_handler.handle(Numbered(1))
    answers: list[bool] = []
    producers = [
        threading.Thread(target=lambda: answers.append(dispatcher.event_handler.handle(Numbered(2)))) for _ in range(3)
    ]
    for producer in producers:
        producer.start()
    while len(dispatcher.core.queue.room.waiters) < 3:
        assert all(producer.is_alive() for producer in producers)

    stopper = threading.Thread(target=dispatcher.stop)
    stopper.start()

    for producer in producers:
        producer.join(TIMEOUT_S)
    gate.opened.set()  # only now does the drain end, after which the posts would be refused as stopped
    stopper.join(TIMEOUT_S)
    assert answers == [False] * 3
    assert dispatcher.stats.rejected == {"draining": 3}


@pytest.mark.parametrize("policy", ["block", "reject"])
def test_a_handler_may_post_to_its_own_full_dispatcher(make: Make, policy: str) -> None:
    """Invariant 8: only the handler makes room, so a handler that waits for room waits for ever."""
    got: list[int] = []

    def handle(event: Numbered) -> None:
        got.append(event.number)
        if event.number == 0:
            for number in range(1, 6):
                assert dispatcher.event_handler.handle(Numbered(number))

    dispatcher: Any = make(DispatcherConfig(queue_capacity=1, queue_full_policy=policy), handler=handle)
    dispatcher.event_handler.handle(Numbered(0))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert got == [0, 1, 2, 3, 4, 5]
    assert dispatcher.stats.rejected == {}


def test_many_producers_never_exceed_the_bound(make: Make) -> None:
    sizes: list[int] = []
    dispatcher = make(queue_capacity=3, handler=lambda _: sizes.append(dispatcher.queue_size()))
    together = threading.Barrier(4)

    def produce() -> None:
        together.wait(TIMEOUT_S)
        for number in range(500):
            assert dispatcher.event_handler.handle(Numbered(number))

    producers = [threading.Thread(target=produce) for _ in range(4)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join(TIMEOUT_S)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert len(sizes) == 2000
    assert max(sizes) <= 3


def test_a_capacity_of_zero_is_refused() -> None:
    with pytest.raises(ValidationError, match="queue_capacity"):
        AsyncDispatcher(queue_capacity=0)
