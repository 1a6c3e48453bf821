"""What the dispatcher's tests share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, Event
from dispatcher.metrics.transition_ring import ring
from dispatcher.util.registry import Registry

TIMEOUT_S = 60.0
"""For waits that succeed at once unless something is broken."""


class Work(Enum):
    DO = 1
    MORE = 2


class Other(Enum):
    DO = 1


class Numbered(Event[Work]):
    """An event that can be distinguished from others of its type."""

    __slots__ = ("number", "producer")

    def __init__(self, number: int = 0, producer: int = 0, type: Work = Work.DO) -> None:
        super().__init__(type, 0.0)
        self.number = number
        self.producer = producer


class OfEntity(Numbered):
    """An event that names its entity, and can be referred to weakly."""

    __slots__ = ("__weakref__", "entity")

    def __init__(self, entity: Any = None) -> None:
        super().__init__()
        self.entity = entity


class Unreadable:
    """An event whose type, entity and text cannot be read."""

    @property
    def type(self) -> Any:
        raise RuntimeError("no type")

    @property
    def entity(self) -> Any:
        raise RuntimeError("no entity")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Gate:
    """A handler that stays in its first event until the test opens it, and records what it gets."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.events: list[Any] = []

    def handle(self, event: Any) -> None:
        self.entered.set()
        assert self.opened.wait(TIMEOUT_S)
        self.events.append(event)


@pytest.fixture(autouse=True, scope="module")
def no_waits_for_the_disk() -> Iterator[None]:
    """No test loses power, so none has to wait until the disk has what was written.

    `fstat` stands for both calls: it lets other threads run, and fails for a descriptor that is closed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        patch.setattr(os, "fdatasync", os.fstat)
        yield


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def make() -> Iterator[Callable[..., AsyncDispatcher]]:
    """Makes started dispatchers, and stops them at the end."""
    made: list[AsyncDispatcher] = []

    def make(*args: Any, handler: Any = None, **kwargs: Any) -> AsyncDispatcher:
        dispatcher = AsyncDispatcher(*args, **kwargs)
        if handler is not None:
            dispatcher.register(Work, handler)
        made.append(dispatcher)
        dispatcher.init()
        dispatcher.start()
        return dispatcher

    yield make
    for dispatcher in made:
        dispatcher.stop()
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


def assert_accounts_balance(dispatcher: AsyncDispatcher, accepted: int) -> None:
    """Invariant 4, on a dispatcher at rest."""
    parts = (
        dispatcher.stats().handled,
        dispatcher.stats().failed,
        dispatcher.queue_size(),
        dispatcher.stats().discarded,
    )
    assert dispatcher.stats().accepted == sum(parts) == accepted, parts


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test sees only its own dispatchers, services and entities: others may have left theirs in a cycle."""
    monkeypatch.setattr("dispatcher.view._views", Registry())
    monkeypatch.setattr("dispatcher.service._all_services", Registry())
    monkeypatch.setattr("dispatcher.metrics.entities._sources", Registry())
    ring.resize(0)
    yield
    ring.resize(0)
