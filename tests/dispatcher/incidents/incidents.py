"""Five incidents: each is a daemon in trouble, to be looked at.

`python -m tests.dispatcher.incidents.incidents flood` runs one until Ctrl-C, and prints where to look.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any
from unittest import mock

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, JournalError, JournalWriter, Retry

from ...kit import TIMEOUT_S as WAIT_S
from ...kit import Gate
from ...kit.coroutines import running_loop

DISPATCHER = "orders"


class Order(Enum):
    PLACED = auto()
    PAID = auto()
    SHIPPED = auto()


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """About one order. Events with one `lock_key` are handled one after another."""

    type: Order
    entity: str
    lock_key: str | None = None


@dataclass(frozen=True)
class Shown:
    """What a person on call has to find."""

    problem: str
    event: str
    waits: str
    """A regular expression."""
    dispatcher: str = DISPATCHER


@contextmanager
def hanging_handler(folder: Path) -> Iterator[Shown]:
    """A handler hangs, and others wait behind it."""
    gate = Gate()
    dispatcher = AsyncDispatcher(DispatcherConfig(handler_warn_after_s=0.1), name=DISPATCHER)
    dispatcher.register(Order, gate)
    with dispatcher:
        dispatcher.post(OrderEvent(Order.PAID, "order_7"))
        assert gate.entered.wait(WAIT_S)
        for number in range(30):
            dispatcher.post(OrderEvent(Order.PLACED, f"order_{number}"))
        try:
            yield Shown("stuck", "Order.PAID", r"30 events queued.* 30 Order\.PLACED")
        finally:
            gate.opened.set()


@contextmanager
def flood(folder: Path) -> Iterator[Shown]:
    """Events of one type come faster than they are handled."""
    permits, is_over = threading.Semaphore(0), threading.Event()

    def handle(event: OrderEvent) -> None:
        if event.type is Order.PLACED and not is_over.is_set():
            permits.acquire(timeout=WAIT_S)

    def post() -> None:
        for number in range(1_000_000):
            for _ in range(20):
                dispatcher.post(OrderEvent(Order.PLACED, f"customer_{number % 3}"))
            if number % 10 == 0:  # so few that no sample takes them for a tenth of the growth
                dispatcher.post(OrderEvent(Order.SHIPPED, "order_1"))
            permits.release(5)
            if is_over.wait(0.05):
                return

    dispatcher = AsyncDispatcher(name=DISPATCHER)
    dispatcher.register(Order, handle)
    producer = threading.Thread(target=post, name="the shop", daemon=True)
    with dispatcher:
        producer.start()
        try:
            yield Shown("floods", "Order.PLACED", r"events queued.* Order\.PLACED")
        finally:
            is_over.set()
            producer.join(WAIT_S)
            permits.release(1_000_000)


@contextmanager
def service_down(folder: Path) -> Iterator[Shown]:
    """A service behind `Retry` is down: events are tried again and again, and none has failed yet."""

    def pay(event: OrderEvent) -> None:
        if event.type is Order.PAID:
            raise ConnectionRefusedError("payments.example:443 refused the connection")

    dispatcher = AsyncDispatcher(DispatcherConfig(drain_events_on_stop=False), name=DISPATCHER)
    dispatcher.register(Order, pay, on_error=Retry(attempts=1_000_000, delay_s=0.2, factor=1.0))
    with dispatcher:
        for number in range(20):
            dispatcher.post(OrderEvent(Order.PLACED, f"order_{number}"))
            dispatcher.post(OrderEvent(Order.PAID, f"order_{number}"))
        yield Shown("fails", "Order.PAID", r"\d+ events for another attempt")


@contextmanager
def slow_key(folder: Path) -> Iterator[Shown]:
    """500 events wait behind one slow key of an `async def` handler, while other keys go on."""
    slow = "warehouse_3"
    with running_loop() as loop:
        release = asyncio.Event()

        async def handle(event: OrderEvent) -> None:
            if event.lock_key == slow:
                await release.wait()

        dispatcher = AsyncDispatcher(name=DISPATCHER, loop=loop)
        dispatcher.register(Order, handle)
        with dispatcher:
            for number in range(501):
                dispatcher.post(OrderEvent(Order.SHIPPED, f"order_{number}", slow))
                dispatcher.post(OrderEvent(Order.PLACED, f"order_{number}", f"warehouse_{number}_other"))
            try:
                yield Shown("slow_key", "Order.SHIPPED", rf"500 events behind key '{slow}'")
            finally:
                loop.call_soon_threadsafe(release.set)


class FullDisk:
    """`os`, but for a disk that takes no more."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")


@contextmanager
def full_disk(folder: Path) -> Iterator[Shown]:
    """The disk under a write-ahead journal is full: what was accepted waits, and posts are rejected."""
    gate = Gate()
    config = JournalConfig(write_ahead=True, failure_policy="continue")
    dispatcher = AsyncDispatcher(name=DISPATCHER, journal=JournalWriter(folder / "journal", config))
    dispatcher.register(Order, gate, events=OrderEvent)
    with dispatcher:
        for number in range(12):
            dispatcher.post(OrderEvent(Order.PLACED, f"order_{number}"))
        assert gate.entered.wait(WAIT_S)
        with mock.patch("dispatcher.journal.format.segments.os", FullDisk()):
            for number in range(3):
                with contextlib.suppress(JournalError):
                    dispatcher.post(OrderEvent(Order.PAID, f"order_{number}"))
            try:
                yield Shown("journal_failed", "Order.PAID", r"11 events queued.*12 events in the journal")
            finally:
                gate.opened.set()


Incident = Callable[[Path], AbstractContextManager[Shown]]
INCIDENTS: list[Incident] = [hanging_handler, flood, service_down, slow_key, full_disk]


def run(incident: Incident) -> None:
    """Until Ctrl-C."""
    from dispatcher.ops import OpsDoor
    from dispatcher.web import WebConfig

    door = OpsDoor(name="shop", web=WebConfig(port=0))
    with tempfile.TemporaryDirectory() as folder, door, incident(Path(folder)) as shown:
        print(f"{door.host.url}/ shows {shown}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    run(globals()[sys.argv[1]])
