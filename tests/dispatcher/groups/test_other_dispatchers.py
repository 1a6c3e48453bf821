"""EventDispatcher, MultiDispatcher, and the helpers for tests."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    ConfigError,
    DispatcherConfig,
    DispatcherGroup,
    Event,
    EventDispatcher,
    MultiDispatcher,
    UnregisteredEventTypeError,
)
from dispatcher.testing import DrainDispatcher, InlineDispatcher

from ...kit import TIMEOUT_S, Gate, Numbered, Other, Work

Make = Callable[..., AsyncDispatcher]


def test_an_event_dispatcher_takes_events_of_every_class_for_one_handler() -> None:
    got: list[Any] = []

    with EventDispatcher(lambda event: got.append(event.type), "scheduler") as dispatcher:
        for event in (Event(Work.DO), Event(Other.DO), Event(Work.MORE)):
            assert dispatcher.handle(event)

    assert got == [Work.DO, Other.DO, Work.MORE]
    assert dispatcher.name == "scheduler"


def test_a_slow_consumer_behind_an_event_dispatcher_does_not_hold_up_the_central_one(make: Make, gate: Gate) -> None:
    quick: list[Any] = []
    with EventDispatcher(gate, "slow") as slow:
        central = make(handler=slow.handle)
        central.register(Other, quick.append)
        central.event_handler.handle(Numbered())
        assert gate.entered.wait(TIMEOUT_S)

        central.event_handler.handle(Event(Other.DO))

        assert central.await_drained(TIMEOUT_S)
        assert len(quick) == 1
        gate.opened.set()
    assert len(gate.events) == 1


def test_first_events_of_a_class_from_two_threads_register_the_handler_once() -> None:
    got: list[Any] = []
    together = threading.Barrier(4)
    with EventDispatcher(got.append) as dispatcher:

        def post() -> None:
            together.wait(TIMEOUT_S)
            dispatcher.handle(Numbered())

        threads = [threading.Thread(target=post) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)

    assert len(got) == 4


class Keyed(Numbered):
    __slots__ = ("lock_key",)

    def __init__(self, key: Any, number: int) -> None:
        super().__init__(number)
        self.lock_key = key


def test_a_multi_dispatcher_keeps_the_order_of_each_key_and_one_thread_per_key() -> None:
    lock = threading.Lock()
    got: dict[Any, list[int]] = {}
    threads: dict[Any, set[int]] = {}

    def handle(event: Keyed) -> None:
        with lock:
            got.setdefault(event.lock_key, []).append(event.number)
            threads.setdefault(event.lock_key, set()).add(threading.get_ident())

    with MultiDispatcher(partitions=3) as dispatcher:
        dispatcher.register(Work, handle)
        for number in range(300):
            assert dispatcher.event_handler.handle(Keyed(f"key{number % 7}", number))

    assert {key: numbers == sorted(numbers) for key, numbers in got.items()} == {f"key{k}": True for k in range(7)}
    assert sum(map(len, got.values())) == 300
    assert all(len(idents) == 1 for idents in threads.values())


def test_an_event_without_a_key_goes_to_the_first_partition() -> None:
    with MultiDispatcher(partitions=3) as dispatcher:
        dispatcher.register(Work, lambda _: None)
        dispatcher.event_handler.handle(Numbered())

    assert [partition.stats().handled for partition in dispatcher.partitions] == [1, 0, 0]
    assert dispatcher.is_drained()
    assert dispatcher.queue_size() == 0


def test_a_group_needs_a_dispatcher() -> None:
    with pytest.raises(ValueError, match="g: a DispatcherGroup needs at least one dispatcher; partitions is empty"):
        DispatcherGroup([], name="g")


def test_a_dispatcher_joins_one_group_and_a_group_that_is_refused_changes_nothing() -> None:
    free, taken = AsyncDispatcher(name="free"), AsyncDispatcher(name="taken")
    DispatcherGroup([taken], name="first")

    with pytest.raises(ValueError, match="second: taken belongs to first already"):
        DispatcherGroup([free, taken], name="second")
    with pytest.raises(ValueError, match="third: free was added already"):
        DispatcherGroup([free, free], name="third")

    assert (free.parent, free.core.siblings) == (None, ())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AsyncDispatcher("orders"), "config must be a DispatcherConfig, not 'orders'. Pass a name as name="),
        (lambda: AsyncDispatcher({}), "config must be a DispatcherConfig, not {}"),
        (lambda: AsyncDispatcher(name=3), "AsyncDispatcher: name must be a str, not 3"),
        (lambda: MultiDispatcher("orders"), "config must be a DispatcherConfig, not 'orders'"),
        (lambda: MultiDispatcher(partitions="4"), "partitions must be an int, not '4'"),
        (lambda: MultiDispatcher(partitions=True), "partitions must be an int, not True"),
        (
            lambda: EventDispatcher("orders"),
            "a handler is a callable or has a method handle(event); 'orders' is neither",
        ),
        (
            lambda: EventDispatcher(print, DispatcherConfig()),
            "EventDispatcher: name must be a str, not DispatcherConfig(",
        ),
        (lambda: EventDispatcher(print, config="orders"), "config must be a DispatcherConfig, not 'orders'"),
        (lambda: DispatcherGroup([], name=["g"]), "DispatcherGroup: name must be a str, not ['g']"),
        (lambda: DispatcherGroup(["orders"], name="g"), "g: partitions[0] must be an AsyncDispatcher, not 'orders'"),
    ],
)
def test_a_wrong_argument_is_named(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


def test_queue_capacity_goes_with_a_config_of_a_subclass() -> None:
    class OwnConfig(DispatcherConfig):
        tenant: str

    config = OwnConfig(tenant="a", batch_size=7)

    assert AsyncDispatcher(config, queue_capacity=5).stats().queue_capacity == 5
    partitions = MultiDispatcher(config, partitions=2, queue_capacity=6).partitions
    assert [each.stats().queue_capacity for each in partitions] == [6, 6]
    with pytest.raises(ConfigError, match="queue_capacity"):
        AsyncDispatcher(config, queue_capacity=True)
    assert config.queue_capacity is None


def test_an_inline_dispatcher_handles_in_the_callers_thread_nested_events_in_order() -> None:
    calls: list[int] = []
    threads: set[int] = set()
    dispatcher = InlineDispatcher()

    def handle(event: Numbered) -> None:
        threads.add(threading.get_ident())
        if event.number == 0:
            dispatcher.event_handler.handle(Numbered(1))
            dispatcher.event_handler.handle(Numbered(2))
        calls.append(event.number)

    dispatcher.register(Work, handle)
    dispatcher.event_handler.handle(Numbered(0))

    assert calls == [0, 1, 2]
    assert threads == {threading.get_ident()}
    assert [event.number for event in dispatcher.events] == [0, 1, 2]


def test_an_inline_dispatcher_lets_errors_through_and_works_on() -> None:
    dispatcher = InlineDispatcher()

    def handle(event: Numbered) -> None:
        dispatcher.event_handler.handle(Numbered(9))
        raise RuntimeError("broken")

    dispatcher.register(Work, handle)
    with pytest.raises(RuntimeError, match="broken"):
        dispatcher.event_handler.handle(Numbered(0))
    assert dispatcher.unregister(Work, handle)

    with pytest.raises(UnregisteredEventTypeError):
        dispatcher.event_handler.handle(Numbered(1))
    assert [event.number for event in dispatcher.events] == [0]


def test_a_drain_dispatcher_says_what_is_left_when_it_does_not_drain(gate: Gate) -> None:
    dispatcher = DrainDispatcher()
    dispatcher.register(Work, gate)
    with dispatcher:
        dispatcher.event_handler.handle(Numbered())
        assert gate.entered.wait(TIMEOUT_S)
        dispatcher.event_handler.handle(Numbered(type=Work.MORE))

        with pytest.raises(AssertionError, match=r"in hand <Numbered Work.DO>, queued .*Work.MORE"):
            dispatcher.await_drained(0.01)

        gate.opened.set()
        assert dispatcher.await_drained()
