import sys
import time
from dataclasses import dataclass
from enum import Enum

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, JournalWriter, Retry
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
        if state is not None:  # it comes back from an earlier run
            print(f"{entity} was {state.name}")

    def charge(self, event: OrderEvent) -> None:
        print(f"charging {self.entity}" + (", perhaps once more" if shop.is_redelivering() else ""))
        if self.entity == "order-13":
            raise OSError("the payment service does not answer")
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


journal = JournalWriter("runs/journal", JournalConfig(durability="sync", write_ahead=True))
recorder = TransitionRecorder(journal)
orders = Entities(ORDERS, Order, recorder=recorder, journal=journal, ends={OrderState.DELIVERED})
config = DispatcherConfig(queue_capacity=10_000)
shop = AsyncDispatcher(config, name="shop", journal=journal, dead_letters="runs/dead-letters")
retry = Retry(attempts=3, delay_s=0.5, on=OSError)
shop.register(OrderEventType, handle, events=OrderEvent, on_error=retry)
orders.restore()
with shop:  # redelivers what an earlier run has accepted and not handled, before any new event
    for line in sys.stdin:
        event_type, order = line.split()
        if not shop.post(OrderEvent(OrderEventType[event_type], order)):
            print(f"rejected {event_type} of {order}")
