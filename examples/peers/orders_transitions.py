"""The same as ../orders.py, with transitions, SQLite and a thread.

.venv/bin/python examples/peers/orders_transitions.py runs/orders
"""

import logging
import queue
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge, start_http_server
from transitions import Machine, MachineError

STATES = ["NEW", "PLACED", "PAID", "DELIVERED"]
TRANSITIONS = [
    {"trigger": "PLACED", "source": "NEW", "dest": "PLACED"},
    {"trigger": "PAID", "source": "PLACED", "dest": "PAID", "before": "charge"},
    {"trigger": "DELIVERED", "source": "PAID", "dest": "DELIVERED"},
]
TABLES = """
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY AUTOINCREMENT, type TEXT NOT NULL, entity TEXT NOT NULL,
                                   outcome TEXT);
"""
DRAIN_TIMEOUT_S = 10.0

log = logging.getLogger("orders")
accepted = Counter("orders_events_accepted", "Events that are in the database.", ["type"])
ended = Counter("orders_events_ended", "Events by their outcome.", ["type", "outcome"])
queued = Gauge("orders_queue_size", "Events that wait.")


def say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)


class Order:
    state: str

    def __init__(self, entity: str) -> None:
        self.entity = entity

    def charge(self, redelivered: bool) -> None:
        say(f"charging {self.entity}" + (", perhaps once more" if redelivered else ""))
        time.sleep(1)


def connect(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "orders.db", timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(TABLES)
    return connection


class Shop:
    """Reader threads post, and one worker thread handles. Each thread has a connection of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed = threading.Event()
        self.is_stopping = False
        self.lock = threading.Lock()
        self.queue: queue.Queue[tuple[int, str, str, bool] | None] = queue.Queue()
        self.machine = Machine(
            model=None, states=STATES, transitions=TRANSITIONS, initial="NEW", auto_transitions=False
        )
        self.orders: dict[str, Any] = {}
        self.worker = threading.Thread(target=self.work, name="orders", daemon=True)
        queued.set_function(self.queue.qsize)

    def restore(self) -> None:
        connection = connect(self.folder)
        for entity, state in connection.execute("SELECT id, state FROM orders ORDER BY rowid"):
            self.orders[entity] = order = Order(entity)
            self.machine.add_model(order, initial=state)
            say(f"{entity} was {state}")
        rows = connection.execute("SELECT seq, type, entity FROM events WHERE outcome IS NULL ORDER BY seq")
        for seq, event_type, entity in rows:
            self.queue.put((seq, event_type, entity, True))
        connection.close()

    def post(self, connection: sqlite3.Connection, event_type: str, entity: str) -> bool:
        if event_type not in STATES[1:]:
            raise ValueError(f"{event_type} is no event type")
        with self.lock:  # queued in the order of their numbers, and none after the end
            if self.is_stopping:
                return False
            with connection:
                sql = "INSERT INTO events (type, entity) VALUES (?, ?)"
                seq = connection.execute(sql, (event_type, entity)).lastrowid
            assert seq is not None
            self.queue.put((seq, event_type, entity, False))
        accepted.labels(event_type).inc()
        return True

    def work(self) -> None:
        try:
            connection = connect(self.folder)
            while (event := self.queue.get()) is not None:
                self.handle(connection, *event)
            connection.close()
        except Exception:
            log.exception("the database cannot be written")
            self.failed.set()

    def handle(self, connection: sqlite3.Connection, seq: int, event_type: str, entity: str, redelivered: bool) -> None:
        order: Any = self.orders.get(entity)  # the machine adds `trigger`
        outcome = "handled"
        if order is None:
            order = Order(entity)
            self.machine.add_model(order)
        try:
            order.trigger(event_type, redelivered)
        except MachineError as error:
            outcome = "refused"
            log.error("%s of %s: %s", event_type, entity, error)
        except Exception:
            outcome = "failed"
            log.exception("%s of %s failed", event_type, entity)
        with connection:  # the state and the event's end in one transaction
            if outcome == "handled":
                sql = "INSERT INTO orders VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state"
                connection.execute(sql, (entity, order.state))
                if order.state == "DELIVERED":
                    connection.execute("DELETE FROM orders WHERE id = ?", (entity,))
            connection.execute("UPDATE events SET outcome = ? WHERE seq = ?", (outcome, seq))
        if order.state in ("NEW", "DELIVERED"):
            self.machine.remove_model(order)
            self.orders.pop(entity, None)
        else:
            self.orders[entity] = order
        ended.labels(event_type, outcome).inc()
        if outcome == "handled":
            say(f"{entity} is {order.state}")

    def stop(self) -> None:
        with self.lock:
            self.is_stopping = True
        self.queue.put(None)
        self.worker.join(DRAIN_TIMEOUT_S)


def read_events(shop: Shop) -> None:
    connection = connect(shop.folder)
    with open(0) as lines:  # not sys.stdin, whose lock Python needs at its end
        for line in lines:
            event_type, entity = line.split()
            if shop.post(connection, event_type, entity):
                say(f"accepted {event_type} of {entity}")


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    shop = Shop(folder)
    shop.restore()
    server, _ = start_http_server(0, "127.0.0.1")
    shop.worker.start()
    say(f"metrics at http://127.0.0.1:{server.server_port}/metrics")
    threading.Thread(target=read_events, args=(shop,), daemon=True).start()
    while (got := signal.sigtimedwait(signals, 1)) is None:
        if shop.failed.is_set():
            return 1
    shop.stop()
    return 128 + got.si_signo


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
