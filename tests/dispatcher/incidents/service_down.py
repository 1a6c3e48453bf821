"""A service behind `Retry` is down: events are tried again and again, and none has failed yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatcher import AsyncDispatcher, DispatcherConfig, Retry

from .incident import DISPATCHER, Order, OrderEvent, Shown, run


def pay(event: OrderEvent) -> None:
    if event.type is Order.PAID:
        raise ConnectionRefusedError("payments.example:443 refused the connection")


@contextmanager
def incident(folder: Path) -> Iterator[Shown]:
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_events_on_stop=False), name=DISPATCHER)
    dispatcher.register(Order, pay, on_error=Retry(attempts=1_000_000, delay_s=0.2, factor=1.0))
    with dispatcher:
        for number in range(20):
            dispatcher.post(OrderEvent(Order.PLACED, f"order_{number}"))
            dispatcher.post(OrderEvent(Order.PAID, f"order_{number}"))
        yield Shown("fails", "Order.PAID", r"\d+ events for another attempt")


if __name__ == "__main__":
    run(incident)
