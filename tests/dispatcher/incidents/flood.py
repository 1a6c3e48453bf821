"""Events of one type come faster than they are handled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatcher import AsyncDispatcher

from .incident import DISPATCHER, WAIT_S, Order, OrderEvent, Shown, run

EVERY_S = 0.05


@contextmanager
def incident(folder: Path) -> Iterator[Shown]:
    permits, is_over = threading.Semaphore(0), threading.Event()

    def handle(event: OrderEvent) -> None:
        if event.type is Order.PLACED and not is_over.is_set():
            permits.acquire(timeout=WAIT_S)

    def post() -> None:
        for number in range(1_000_000):
            for _ in range(20):
                dispatcher.post(OrderEvent(Order.PLACED, f"customer_{number % 3}"))
            dispatcher.post(OrderEvent(Order.SHIPPED, "order_1"))
            permits.release(5)
            if is_over.wait(EVERY_S):
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


if __name__ == "__main__":
    run(incident)
