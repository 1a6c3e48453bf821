"""Events of no meaning, and a handler that a test holds."""

from __future__ import annotations

import threading
from enum import Enum
from typing import Any

from dispatcher import AsyncDispatcher, Event

from .waiting import TIMEOUT_S


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


def assert_accounts_balance(dispatcher: AsyncDispatcher, accepted: int) -> None:
    """Invariant 4, on a dispatcher at rest."""
    parts = (
        dispatcher.stats().handled,
        dispatcher.stats().failed,
        dispatcher.queue_size(),
        dispatcher.stats().discarded,
    )
    assert dispatcher.stats().accepted == sum(parts) == accepted, parts
