"""A daemon's dispatcher whose events fail, and its dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dispatcher import AsyncDispatcher, JournalWriter, MultiDispatcher

WAIT_S = 60.0


class Order(Enum):
    PLACED = 1
    PAID = 2


class Other(Enum):
    PLACED = 1


@dataclass
class OrderEvent:
    type: Order
    entity: str

    @property
    def lock_key(self) -> str:
        return self.entity


@dataclass
class OtherEvent:
    type: Other


def fail(event: Any) -> None:
    raise ValueError(f"no stock for {getattr(event, 'entity', 'any')}\nat all")


@contextmanager
def failing(letters: Path | None, **options: Any) -> Iterator[AsyncDispatcher]:
    """A started dispatcher whose events all fail; those of the class OtherEvent are not declared."""
    dispatcher = AsyncDispatcher(name="shop", dead_letters=letters, **options)
    dispatcher.register(Order, fail, events=OrderEvent)
    dispatcher.register(Other, fail)
    with dispatcher:
        yield dispatcher
        assert dispatcher.await_drained(WAIT_S)


def leave_letters(folder: Path, *events: Any) -> None:
    with failing(folder) as dispatcher:
        for event in events:
            assert dispatcher.post(event)


def leave_partitioned_letters(folder: Path, *entities: str, partitions: int = 4) -> None:
    shop = MultiDispatcher(name="shop", partitions=partitions, dead_letters=folder)
    shop.register(Order, fail, events=OrderEvent)
    with shop:
        for entity in entities:
            assert shop.post(OrderEvent(Order.PLACED, entity))
        assert shop.await_drained(WAIT_S)


def journal_with_failed_rows(folder: Path) -> Path:
    with failing(None, journal=JournalWriter(folder)) as dispatcher:
        assert dispatcher.post(OrderEvent(Order.PLACED, "o1"))
    return folder
