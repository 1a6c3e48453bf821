"""Make the pictures of the pages, docs/images/page-*.png, from a real daemon in Chromium.

    PYTHONPATH=. .venv/bin/python scripts/make_pictures.py [SECONDS]    # of traffic before, by default 300

It needs the extras `web` and `cli`, and `chromium` on the PATH. Run it after a change of what the pages look like.
"""

from __future__ import annotations

import logging
import random
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dispatcher import AsyncDispatcher, CompositeService, DispatcherConfig, JournalConfig, JournalWriter, Retry
from dispatcher.ops import OpsDoor
from dispatcher.web import WebConfig
from statemachines import Entities, StateMachineFactory
from tests.pipeline.report.page.browser import Browser

IMAGES = Path(__file__).parents[1] / "docs/images"
WIDTH, HEIGHT = 1280, 800
MOST_BYTES = 200_000
PICTURES = (
    ("overview", "/", "light"),
    ("overview", "/", "dark"),
    ("dispatcher", "/dispatcher/letters", "light"),
    ("entities", "/entities", "light"),
    ("journal", "/journal", "dark"),
)
"""The name of a page, its address, and the scheme."""

State = Enum("State", ["NEW", "PLACED", "PAID", "SHIPPED", "DELIVERED", "CANCELLED"])
Order = Enum("Order", ["PLACED", "PAID", "SHIPPED", "DELIVERED", "CANCELLED"])
Letter = Enum("Letter", ["CONFIRMED", "SHIPPED", "INVOICE"])


@dataclass
class OrderEvent:
    type: Order
    entity: str


@dataclass
class LetterEvent:
    type: Letter
    entity: str


class Operand:
    machine = "Order"

    def __init__(self, entity: str, state: State | None) -> None:
        self.entity = entity


ORDERS = (
    StateMachineFactory[State, Operand](State.NEW, "Order")
    .add_transition(State.NEW, State.PLACED, Order.PLACED)
    .add_transition(State.PLACED, State.PAID, Order.PAID)
    .add_transition(State.PLACED, State.CANCELLED, Order.CANCELLED)
    .add_transition(State.PAID, State.SHIPPED, Order.SHIPPED)
    .add_transition(State.SHIPPED, State.DELIVERED, Order.DELIVERED)
)


class Shop:
    """A daemon with orders that go their way, and letters, some of which fail."""

    def __init__(self, folder: Path) -> None:
        self._chance = random.Random(7)
        self._ended = threading.Event()
        config = DispatcherConfig(queue_capacity=10_000)
        journal = JournalWriter(folder / "journal", JournalConfig(write_ahead=True, segment_bytes=2_000_000))
        self.orders = AsyncDispatcher(config, name="orders", journal=journal)
        self.letters = AsyncDispatcher(config, name="letters", dead_letters=folder / "dead-letters")
        self._entities = Entities(ORDERS, Operand, journal=journal)
        self.orders.register(Order, self._handle, events=OrderEvent)
        retry = Retry(attempts=2, delay_s=1.0, on=ConnectionError)
        self.letters.register(Letter, self._send, events=LetterEvent, on_error=retry)
        self.door = OpsDoor(web=WebConfig(port=0, unix_socket=False), name="shop")
        self.daemon = CompositeService("shop")
        for service in (self.door, self.letters, self.orders):
            self.daemon.add_service(service)

    def __enter__(self) -> Shop:
        self.daemon.start()
        self._customers = threading.Thread(target=self._trade, name="customers")
        self._customers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._customers.join()
        self.daemon.stop()

    def _handle(self, event: OrderEvent) -> None:
        self._entities.handle(event)
        letter = {Order.PLACED: Letter.CONFIRMED, Order.PAID: Letter.INVOICE, Order.SHIPPED: Letter.SHIPPED}
        if event.type in letter:
            self.letters.post(LetterEvent(letter[event.type], event.entity))

    def _send(self, event: LetterEvent) -> None:
        time.sleep(0.004)  # the mail server
        if event.type is Letter.INVOICE and self._chance.random() < 0.1:
            raise ConnectionError("mail.example.com: connection refused")

    def _trade(self) -> None:
        steps, living, number = [*Order][1:4], dict[str, int](), 1000
        while not self._ended.wait(0.02):
            number += 1
            living[f"order-{number}"] = 0
            self.orders.post(OrderEvent(Order.PLACED, f"order-{number}"))
            for order, step in list(living.items()):
                if self._chance.random() > 0.02:
                    continue
                is_cancelled = step == 0 and self._chance.random() < 0.15
                self.orders.post(OrderEvent(Order.CANCELLED if is_cancelled else steps[step], order))
                living[order] = step + 1
                if is_cancelled or step == 2:
                    del living[order]


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("make_pictures: chromium is not on the PATH: apt-get install chromium")
    logging.disable()  # of the letters that fail
    with tempfile.TemporaryDirectory() as name, Shop(Path(name)) as shop:
        time.sleep(seconds)
        with Browser(chromium, Path(name) / "profile") as browser:
            network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
            browser("Network.emulateNetworkConditions", offline=False, **network)
            for page, path, scheme in PICTURES:
                take(browser, f"{shop.door.host.url}{path}", scheme, IMAGES / f"page-{page}-{scheme}.png")


def take(browser: Browser, url: str, scheme: str, file: Path) -> None:
    """The first screen of a page, or less if that has all, once it is live."""
    browser("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser("Page.navigate", url=url)
    while browser.value("document.getElementById('live')?.textContent") != "live":
        time.sleep(0.1)
    browser("Emulation.setScrollbarsHidden", hidden=True)
    height = min(HEIGHT, browser.value("document.querySelector('footer').getBoundingClientRect().bottom"))
    file.write_bytes(browser.picture({"x": 0, "y": 0, "width": WIDTH, "height": height}))
    if file.stat().st_size > MOST_BYTES:
        sys.exit(f"{file}: has {file.stat().st_size:,} bytes, more than {MOST_BYTES:,}")


if __name__ == "__main__":
    main()
