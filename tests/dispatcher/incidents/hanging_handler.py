"""A handler hangs, and others wait behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatcher import AsyncDispatcher, DispatcherConfig

from ...kit import Gate
from .incident import DISPATCHER, WAIT_S, Order, OrderEvent, Shown, run


@contextmanager
def incident(folder: Path) -> Iterator[Shown]:
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


if __name__ == "__main__":
    run(incident)
