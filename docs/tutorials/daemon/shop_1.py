import sys
from dataclasses import dataclass
from enum import Enum

from dispatcher import AsyncDispatcher

OrderEventType = Enum("OrderEventType", ["PLACED", "PAID", "DELIVERED"])


@dataclass
class OrderEvent:
    type: OrderEventType
    entity: str  # the order's id


def handle(event: OrderEvent) -> None:
    print(f"{event.entity} is {event.type.name}")


shop = AsyncDispatcher(name="shop")
shop.register(OrderEventType, handle)
with shop:  # starts its thread; on the way out, handles what is queued, and stops it
    for line in sys.stdin:
        event_type, order = line.split()
        shop.post(OrderEvent(OrderEventType[event_type], order))
