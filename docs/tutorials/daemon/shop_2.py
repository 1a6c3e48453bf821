import sys
import time
from dataclasses import dataclass
from enum import Enum

from dispatcher import AsyncDispatcher, DispatcherConfig

OrderEventType = Enum("OrderEventType", ["PLACED", "PAID", "DELIVERED"])


@dataclass
class OrderEvent:
    type: OrderEventType
    entity: str  # the order's id


def handle(event: OrderEvent) -> None:
    time.sleep(1)  # your payment service
    print(f"{event.entity} is {event.type.name}")


config = DispatcherConfig(queue_capacity=2, queue_full_policy="reject")
shop = AsyncDispatcher(config, name="shop")
shop.register(OrderEventType, handle)
with shop:  # starts its thread; on the way out, handles what is queued, and stops it
    for line in sys.stdin:
        event_type, order = line.split()
        if not shop.post(OrderEvent(OrderEventType[event_type], order)):
            print(f"rejected {event_type} of {order}")
