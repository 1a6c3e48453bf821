"""A daemon that does at once what embedders do, and that a test kills: partitions, asks, timers, retries, dead letters,
entities.

It is given FOLDER RUN PARTITIONS PRODUCES, and says `ready` once the first event was accepted. With PRODUCES 0, it
handles what earlier runs have left, and ends.

Each producer writes the number of an event to FOLDER/accepted-KIND once it is promised: its post has returned, its
`post_after` has, or its ask was answered. The handler writes the kind, the number and the attempt of each event that it
handles to FOLDER/handled. Events whose number `fails_once` fail at their first attempt, those that `fails_always` at
each. RUN counts the runs on one folder; the numbers of each run are greater than all numbers of the run before.

Orders are entities: a producer posts the events of ORDER_EVENTS for one after the other, and writes each to
FOLDER/accepted-order. Their machines write the transitions that they make to FOLDER/transitions.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dispatcher import JournalConfig, MultiDispatcher, PartitionedJournal, Retry
from statemachines import Entities, StateMachineFactory, TransitionRecorder

from ..kit.killed import say, serve

KINDS = ("post", "after", "ask")
EACH_RUN = 1_000_000
ATTEMPTS = 3


class Job(Enum):
    POSTED = 1


class OrderEvent(Enum):
    PLACED = 1
    PAID = 2
    SHIPPED = 3


class OrderState(Enum):
    NEW = 1
    PLACED = 2
    PAID = 3
    SHIPPED = 4


ORDER_EVENTS = tuple(OrderEvent)


@dataclass
class OfOrder:
    type: OrderEvent
    entity: str

    @property
    def lock_key(self) -> str:
        return self.entity


class Order:
    machine = "Order"

    def __init__(self, entity: str, state: OrderState | None) -> None:
        self.entity = entity

    def moved(self, event: OfOrder) -> None:
        os.write(transitions, f"{self.entity} {event.type.name}\n".encode())


transitions = -1
"""Of FOLDER/transitions, open to append; set by the daemon's process."""
ORDERS = StateMachineFactory[OrderState, Order](OrderState.NEW, "Order")
for before, event_type, after in zip(OrderState, OrderEvent, list(OrderState)[1:], strict=False):
    ORDERS = ORDERS.add_transition(before, after, event_type, Order.moved)


@dataclass
class Posted:
    type: Job
    kind: str
    number: int

    @property
    def lock_key(self) -> str:
        return f"{self.number % 8}"


def fails_once(number: int) -> bool:
    return number % 7 == 3


def fails_always(number: int) -> bool:
    return number % 11 == 5


def append_to(path: Path) -> int:
    """Open the file for whole lines, once in a run. A kill can cut a write at the end of a page: that line goes."""
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
    os.ftruncate(file, path.read_bytes().rfind(b"\n") + 1)
    return file


def main(*given: str) -> None:
    folder, run, partitions, produces = Path(given[0]), int(given[1]), int(given[2]), given[3] == "1"
    global transitions
    logging.disable(logging.CRITICAL)
    transitions = append_to(folder / "transitions")
    # A kill loses nothing of what was written, synced or not.
    config = JournalConfig(durability="none", write_ahead=True, segment_bytes=20_000)
    journal = PartitionedJournal(folder / "journal", config)
    dispatcher = MultiDispatcher(partitions=partitions, journal=journal, dead_letters=folder / "dead")
    recorder = TransitionRecorder(journal)
    orders = Entities(
        ORDERS, Order, recorder=recorder, journal=journal, ends={OrderState.SHIPPED}, snapshot_transitions=50
    )
    dispatcher.register(OrderEvent, orders, events=OfOrder)
    orders.restore()
    handled = append_to(folder / "handled")

    def handle(event: Posted) -> int:
        attempt = dispatcher.partition_of(event).attempt()
        if fails_always(event.number) or (fails_once(event.number) and attempt == 1):
            raise OSError(event.number)
        os.write(handled, f"{event.kind} {event.number} {attempt}\n".encode())
        return event.number

    policy = Retry(attempts=ATTEMPTS, delay_s=0.003, jitter=0.5, on=(OSError,))
    dispatcher.register(Job, handle, events=Posted, on_error=policy)
    dispatcher.start()

    def produce(kind: str, post: Callable[[Posted], object]) -> None:
        accepted = append_to(folder / f"accepted-{kind}")
        number = run * EACH_RUN
        while True:
            number += 1
            post(Posted(Job.POSTED, kind, number))
            os.write(accepted, b"%d\n" % number)
            if number == run * EACH_RUN + 1 and kind == "post":
                say("ready")
            time.sleep(0.0002)

    def order() -> None:
        accepted = append_to(folder / "accepted-order")
        number = run * EACH_RUN
        while True:
            number += 1
            for event_type in ORDER_EVENTS:
                dispatcher.post(OfOrder(event_type, f"order-{number}"))
                os.write(accepted, f"order-{number} {event_type.name}\n".encode())
                time.sleep(0.0005)

    def ask(event: Posted) -> object:
        return dispatcher.ask(event).exception()

    posts = (dispatcher.post, lambda event: dispatcher.post_after(event.number % 20 / 1000, event), ask)
    if produces:
        for kind, post in zip(KINDS, posts, strict=True):
            threading.Thread(target=produce, args=(kind, post), daemon=True).start()
        threading.Thread(target=order, daemon=True).start()
        threading.Event().wait()
    while not dispatcher.is_drained() or any(each.stats().scheduled for each in dispatcher.partitions):
        time.sleep(0.001)
    (folder / "left").write_text("".join(f"{entity}\n" for entity in orders))
    dispatcher.stop()


if __name__ == "__main__":
    serve(main)
