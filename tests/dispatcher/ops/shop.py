"""A dispatcher whose orders fail until it is mended, and the changes that an administrator can make to it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dispatcher import AsyncDispatcher, DeadLetters
from dispatcher.ops import ops_app

from ..cli.letters import Order, OrderEvent, Other, OtherEvent
from .client import WAIT_S, Client
from .stage import looked


class Shop:
    """The second attempt at `again` fails, too."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.handled: list[str] = []
        self.is_mended = False
        self.gate = threading.Event()
        self.gate.set()
        self.dispatcher = AsyncDispatcher(name="shop", dead_letters=folder, **options)
        self.dispatcher.register(Order, self.handle, events=OrderEvent)
        self.dispatcher.register(Other, self.fail, durable=False)

    def handle(self, event: OrderEvent) -> None:
        assert self.gate.wait(WAIT_S)
        if not self.is_mended or event.entity == "again":
            raise ValueError("no stock")
        self.handled.append(event.entity)

    @staticmethod
    def fail(event: Any) -> None:
        raise ValueError("never")

    def place(self, *entities: str, type: Order = Order.PLACED) -> None:
        for entity in entities:
            assert self.dispatcher.post(OrderEvent(type, entity))
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
def running_shop(folder: Path, **options: Any) -> Iterator[Shop]:
    shop = Shop(folder, **options)
    with shop.dispatcher:
        try:
            yield shop
        finally:
            shop.gate.set()


class ShopStage:
    """The stage of scenarios about a shop's dead letters, and about the changes that an administrator makes.

    Changes: `redeliver 1 2`, `discard 3`, `cancel KEY`, `stop`; with `elsewhere`, letters of another folder.
    `PATH#FIELD` looks at the ops API, `!PATH` at the status of its answer, and the others at the last
    change and the shop.
    """

    def __init__(self, shop: Shop, client: Client) -> None:
        self._shop = shop
        self._client = client
        self._journal = ""
        self._status = 0
        self._answer: dict[str, Any] = {}

    def play(self, verb: str, *words: str) -> None:
        shop = self._shop
        match verb:
            case "place" | "pay":
                shop.place(*words, type=Order.PLACED if verb == "place" else Order.PAID)
                self._journal = shop.journal
            case "other":
                assert shop.dispatcher.post(OtherEvent(Other.PLACED))
                assert shop.dispatcher.await_drained(WAIT_S)
            case "mend":
                shop.is_mended = True
            case "hold":
                shop.gate.clear()
            case "go":
                shop.gate.set()
                assert shop.dispatcher.await_drained(WAIT_S)
            case "schedule":
                for key in words:
                    shop.dispatcher.post_after(3600, OrderEvent(Order.PLACED, key), key=key)
            case "stopped":
                shop.dispatcher.stop()
            case "gone":
                shutil.rmtree(shop.folder)
            case "redeliver" | "discard":
                journal = "of another folder" if "elsewhere" in words else self._journal
                self._change(verb, letters=[int(each) for each in words if each.isdigit()], journal=journal)
            case "cancel":
                self._change(verb, keys=list(words))
            case "stop":
                self._change(verb)

    def _change(self, verb: str, **body: Any) -> None:
        answer = self._client.post(f"/dispatchers/shop/{verb}", **body)
        self._status, self._answer = answer.status_code, answer.json()

    def look(self, what: str) -> Iterable[object]:
        if "#" in what or what.startswith("!"):
            return looked(self._client, what, "shop")
        shop, answer = self._shop, self._answer
        match what:
            case "status":
                return [self._status]
            case "error":
                return [answer[what].partition(";")[0]]
            case "refused":
                return [each.get("letter", each.get("key")) for each in answer["refused"]]
            case "became" | "why":
                name = "outcome" if what == "became" else "detail"
                items = self._client.json(f"/changes/{answer['change']}")["items"]
                return [f"{each['name']}={each[name]}" for each in items if each.get(name)]
            case "handled" | "letters":
                return shop.handled if what == "handled" else shop.letters()
            case "scheduled":
                return [post.key for post in shop.dispatcher.view.scheduled(10)]
            case "state":
                return [shop.dispatcher.state.name]
        return answer[what] if isinstance(answer[what], list) else [answer[what]]
