"""A daemon with its whole door: the ops API, health, metrics, a journal, two dispatchers and a check of its own.

    .venv/bin/python examples/daemon.py runs/shop     # until Ctrl-C or SIGTERM
    dispatcher top shop                               # in another terminal; or ps, status, stack
    touch runs/shop/maintenance                       # /readyz is 503 until the file is removed

It continues the journal of the start before it, however that ended, so a supervisor can restart it on the same folder.
The program prints where it serves health and metrics, and its door's socket, which `curl --unix-socket` takes too.
"""

import itertools
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
    register_check,
    register_metrics,
    run_until_signal,
)
from dispatcher.ops import OpsDoor

Order = Enum("Order", ["PLACED"])
Letter = Enum("Letter", ["CONFIRMED"])


@dataclass(slots=True)
class ShopEvent:
    type: Order | Letter
    entity: str  # the order's id, by which the journal finds it


def place_orders() -> None:
    """Stands in for whatever brings work: an order every 10 ms, until the dispatcher stops and takes no more."""
    for number in itertools.count(time.time_ns() // 10_000_000):  # beyond every number of an earlier start
        if not orders.post(ShopEvent(Order.PLACED, f"order_{number}")):
            return
        time.sleep(0.01)


def on_change(daemon: Service) -> None:
    if daemon.in_state(ServiceState.STARTED):
        threading.Thread(target=place_orders, name="customers").start()
        print(f"{metrics.url_of('/readyz')}\n{metrics.url}\n{door.socket_path}\nstarted", flush=True)


folder = Path(sys.argv[1])
settings = DispatcherConfig(queue_capacity=10_000, drain_timeout_s=5, handler_warn_after_s=5)
door, metrics = OpsDoor(name="shop"), MetricsServer()
letters = AsyncDispatcher(settings, name="letters")
try:
    journal = JournalWriter(folder / "journal", JournalConfig(write_ahead=True))
except JournalError as error:  # such as: another process has the folder
    sys.exit(f"shop: {error}")
orders = AsyncDispatcher(settings, name="orders", journal=journal)
letters.register(Letter, lambda event: None)
orders.register(Order, lambda event: letters.post(ShopEvent(Letter.CONFIRMED, event.entity)), events=ShopEvent)
register_check("maintenance", lambda: not (folder / "maintenance").exists())
daemon = CompositeService("shop")
for service in (door, metrics, letters, orders):  # started in this order, stopped in the reverse one
    daemon.add_service(service)
for dispatcher in (letters, orders):
    register_metrics(dispatcher)
daemon.register_service_listener(on_change)
sys.exit(run_until_signal(daemon))
