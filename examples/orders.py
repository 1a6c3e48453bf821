"""A daemon that is killed and comes back: orders are where they were, and no accepted event is lost.

    .venv/bin/python examples/orders.py runs/orders       # then type: PLACED order-1, PAID order-1, DELIVERED order-1

Kill it with `kill -9`, at any moment, and start it again. Ctrl-C or SIGTERM ends it once its queue is empty.
"""

import sys
import threading
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dispatcher import (
    AsyncDispatcher,
    CompositeService,
    DispatcherConfig,
    JournalConfig,
    JournalError,
    JournalWriter,
    MetricsServer,
    Service,
    ServiceState,
    register_metrics,
    run_until_signal,
)
from statemachines import Entities, StateMachineFactory, TransitionRecorder

OrderEventType = Enum("OrderEventType", ["PLACED", "PAID", "DELIVERED"])
OrderState = Enum("OrderState", ["NEW", "PLACED", "PAID", "DELIVERED"])


def say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)  # in one piece: two threads talk


@dataclass
class OrderEvent:
    type: OrderEventType
    entity: str  # the order's id


class Order:
    machine = "Order"

    def __init__(self, entity: str, state: OrderState | None) -> None:
        self.entity = entity
        if state is not None:  # it comes back: load here what else it has
            say(f"{entity} was {state.name}")

    def charge(self, event: OrderEvent) -> None:
        say(f"charging {self.entity}" + (", perhaps once more" if shop.is_redelivering() else ""))
        time.sleep(1)  # your payment service, which charges an order once, however often it is asked


ORDERS = (
    StateMachineFactory[OrderState, Order](OrderState.NEW, "Order")
    .add_transition(OrderState.NEW, OrderState.PLACED, OrderEventType.PLACED)
    .add_transition(OrderState.PLACED, OrderState.PAID, OrderEventType.PAID, Order.charge)
    .add_transition(OrderState.PAID, OrderState.DELIVERED, OrderEventType.DELIVERED)
)


def handle(event: OrderEvent) -> None:
    say(f"{event.entity} is {orders.handle(event).name}")


def read_events() -> None:
    with open(0) as lines:  # not sys.stdin, whose lock Python needs at its end
        for line in lines:
            try:
                event_type, order = line.split()
                event = OrderEvent(OrderEventType[event_type], order)
            except (ValueError, KeyError):
                say(f"not understood: {line.strip()}")
                continue
            if shop.post(event):
                say(f"accepted {event_type} of {order}")  # from here on, nothing loses it


def on_change(daemon: Service) -> None:
    if daemon.in_state(ServiceState.STARTED):
        say(f"metrics at {metrics.url}")
        threading.Thread(target=read_events, daemon=True).start()


try:
    journal = JournalWriter(Path(sys.argv[1]) / "journal", JournalConfig(durability="sync", write_ahead=True))
except JournalError as error:  # such as: another process has the folder
    sys.exit(f"orders: {error}")
recorder = TransitionRecorder(journal)
orders = Entities(ORDERS, Order, recorder=recorder, journal=journal, ends={OrderState.DELIVERED})
shop = AsyncDispatcher(DispatcherConfig(drain_timeout_s=10), name="shop", journal=journal)
shop.register(OrderEventType, handle, events=OrderEvent)
register_metrics(shop, sources=[recorder])
orders.restore()
daemon, metrics = CompositeService("orders"), MetricsServer()
daemon.add_service(metrics)
daemon.add_service(shop)  # its start redelivers the events accepted and not handled, before any new one
daemon.register_service_listener(on_change)
sys.exit(run_until_signal(daemon))
