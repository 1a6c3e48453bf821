"""A dispatcher whose orders fail until it is mended, and the changes that an administrator can make to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dispatcher import AsyncDispatcher, DeadLetters
from dispatcher.ops import ops_app

from ..cli.letters import Order, OrderEvent, Other
from .client import WAIT_S, Client


class Shop:
    """The second attempt at `again` fails, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handled: list[str] = []
        self.is_mended = False
        self.gate = threading.Event()
        self.gate.set()
        self.dispatcher = AsyncDispatcher(name="shop", dead_letters=folder)
        self.dispatcher.register(Order, self.handle, events=OrderEvent)
        self.dispatcher.register(Other, self.fail)

    def handle(self, event: OrderEvent) -> None:
        assert self.gate.wait(WAIT_S)
        if not self.is_mended or event.entity == "again":
            raise ValueError("no stock")
        self.handled.append(event.entity)

    @staticmethod
    def fail(event: Any) -> None:
        raise ValueError("never")

    def place(self, *entities: str) -> None:
        for entity in entities:
            assert self.dispatcher.post(OrderEvent(Order.PLACED, entity))
        assert self.dispatcher.await_drained(WAIT_S)

    def letters(self) -> list[str | None]:
        return [letter.entity for letter in DeadLetters(self.folder)]

    @property
    def journal(self) -> str:
        return str(Client(ops_app()).json("/dispatchers/shop/dead-letters")["journal"])

    def changes(self) -> dict[str, dict[str, Any]]:
        """Every change, with a body that asks for it."""
        letter = {"letters": [1], "journal": self.journal}
        return {"redeliver": letter, "discard": letter, "cancel": {"keys": ["daily"]}, "stop": {}}


@contextmanager
def running_shop(folder: Path) -> Iterator[Shop]:
    shop = Shop(folder)
    with shop.dispatcher:
        yield shop
        shop.gate.set()
