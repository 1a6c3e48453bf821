"""500 events wait behind one slow key of an `async def` handler, while other keys go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatcher import AsyncDispatcher
from tests.kit.coroutines import running_loop

from .incident import DISPATCHER, Order, OrderEvent, Shown, run

SLOW = "warehouse_3"


@contextmanager
def incident(folder: Path) -> Iterator[Shown]:
    with running_loop() as loop:
        release = asyncio.Event()

        async def handle(event: OrderEvent) -> None:
            if event.lock_key == SLOW:
                await release.wait()

        dispatcher = AsyncDispatcher(name=DISPATCHER, loop=loop)
        dispatcher.register(Order, handle)
        with dispatcher:
            for number in range(501):
                dispatcher.post(OrderEvent(Order.SHIPPED, f"order_{number}", SLOW))
                dispatcher.post(OrderEvent(Order.PLACED, f"order_{number}", f"warehouse_{number}_other"))
            try:
                yield Shown("slow_key", "Order.SHIPPED", rf"500 events behind key '{SLOW}'")
            finally:
                loop.call_soon_threadsafe(release.set)


if __name__ == "__main__":
    run(incident)
