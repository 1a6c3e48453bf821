"""Dispatchers of different kinds whose handlers post to each other: stopped together, nothing is refused on the way."""

from __future__ import annotations

import re
import threading
from enum import Enum, auto
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
)

from ...kit import TIMEOUT_S


class Ball(Enum):
    PING = auto()
    PONG = auto()


def rally(length: int, **config: Any) -> tuple[DispatcherGroup, list[str]]:
    """A central dispatcher and one behind it: each ball that is played goes back, `length` times in all."""
    settings = DispatcherConfig(**config)
    central = AsyncDispatcher(settings, name="central")
    played: list[str] = []

    def play(event: Event[Ball]) -> None:
        played.append(threading.current_thread().name)
        if len(played) < length:
            other = behind if event.type is Ball.PING else central
            target = Ball.PONG if event.type is Ball.PING else Ball.PING
            assert other.post(Event(target))

    behind = EventDispatcher(play, "behind", config=settings)
    central.register(Ball, play)
    return DispatcherGroup([central, behind], name="both"), played


def test_events_that_handlers_post_to_each_other_are_handled_before_the_group_has_stopped() -> None:
    group, played = rally(1000)
    group.start()

    group.partitions[0].post(Event(Ball.PING))
    group.stop()

    assert played == ["central", "behind"] * 500
    assert all(each.is_stopped() for each in group.partitions)


def test_the_stop_of_a_group_keeps_the_grace_of_its_members_within_its_timeout() -> None:
    """It began the members' grace only when its own timeout was over."""
    timeouts: list[float | None] = []

    class Watched(DispatcherGroup):
        def await_drained(self, timeout: float | None = None) -> bool:
            timeouts.append(timeout)
            return False

    group = Watched([AsyncDispatcher(name=name) for name in ("one", "other")], name="group", drain_timeout_s=30.0)
    group.start()

    group.stop()

    [joint_s] = timeouts
    assert joint_s is not None
    assert 0 < joint_s <= 29.5


def test_a_member_whose_handler_stops_it_alone_ends_with_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop of its handler came first, so the group's did nothing; its thread lingered for ever."""
    has_stopped, others_linger = threading.Event(), threading.Event()

    def begin_first(timeout_s: float) -> None:
        """The group calls this once it lets the first member linger, before the other one."""
        begin(timeout_s)
        others_linger.set()
        assert has_stopped.wait(TIMEOUT_S)

    def stop(_: Event[Ball]) -> None:
        assert others_linger.wait(TIMEOUT_S)
        stopping.stop()
        has_stopped.set()

    first, stopping = AsyncDispatcher(name="first"), AsyncDispatcher(name="stopping")
    begin = first.core.stop_wait.begin
    monkeypatch.setattr(first.core.stop_wait, "begin", begin_first)
    stopping.register(Ball, stop)
    group = DispatcherGroup([first, stopping], name="both")
    group.start()
    assert stopping.post(Event(Ball.PING))

    group.stop()

    assert group.is_stopped()
    assert (stopping.stats().handled, stopping.stats().discarded) == (1, 0)


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
        (lambda: MultiDispatcher(partitions="4"), "partitions must be an int, not '4'"),
        (lambda: MultiDispatcher(partitions=True), "partitions must be an int, not True"),
        (
            lambda: EventDispatcher(print, DispatcherConfig()),
            "EventDispatcher: name must be a str, not DispatcherConfig(",
        ),
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
