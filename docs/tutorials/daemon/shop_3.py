import sys
import time
from dataclasses import dataclass
from enum import Enum

from dispatcher import AsyncDispatcher, DispatcherConfig
from statemachines import Entities, StateMachineFactory, TransitionRecorder
from statemachines.graph import to_mermaid

OrderEventType = Enum("OrderEventType", ["PLACED", "PAID", "DELIVERED"])
OrderState = Enum("OrderState", ["NEW", "PLACED", "PAID", "DELIVERED"])


@dataclass
class OrderEvent:
    type: OrderEventType
    entity: str  # the order's id


class Order:
    machine = "Order"  # the kind of machine, for logs and metrics

    def __init__(self, entity: str, state: OrderState | None) -> None:
        self.entity = entity

    def charge(self, event: OrderEvent) -> None:
        print(f"charging {self.entity}")
        time.sleep(1)  # your payment service


ORDERS = (
    StateMachineFactory[OrderState, Order](OrderState.NEW, "Order")
    .add_transition(OrderState.NEW, OrderState.PLACED, OrderEventType.PLACED)
    .add_transition(OrderState.PLACED, OrderState.PAID, OrderEventType.PAID, Order.charge)
    .add_transition(OrderState.PAID, OrderState.DELIVERED, OrderEventType.DELIVERED)
)
if sys.argv[1:] == ["graph"]:
    print(to_mermaid(ORDERS), end="")
    sys.exit()


def handle(event: OrderEvent) -> None:
    print(f"{event.entity} is {orders.handle(event).name}")


recorder = TransitionRecorder()
orders = Entities(ORDERS, Order, recorder=recorder, ends={OrderState.DELIVERED})
config = DispatcherConfig(queue_capacity=10_000)
shop = AsyncDispatcher(config, name="shop")
shop.register(OrderEventType, handle)
with shop:  # starts its thread; on the way out, handles what is queued, and stops it
    for line in sys.stdin:
        event_type, order = line.split()
        if not shop.post(OrderEvent(OrderEventType[event_type], order)):
            print(f"rejected {event_type} of {order}")
