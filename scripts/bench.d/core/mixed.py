"""Events per second of one producer, beside the bare loop in the same round: of several types, and of several classes.

Several types: one, two or four, drawn at random, of two Enum classes, whose handlers are functions, bound methods or
objects. Several classes: events that are made in the loop that posts them.
"""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from core.dispatchers import config
from load import Counting
from measure import RateTable, Row, Settings
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from dispatcher import AsyncDispatcher, Event, register_metrics

MILLION = 1_000_000
Handle = Callable[[Any], Any]


class Left(Enum):
    UP = 1
    DOWN = 2


class Right(Enum):
    UP = 1
    DOWN = 2


TYPES: dict[str, tuple[Enum, ...]] = {
    "one": (Left.UP,),
    "two": (Left.UP, Right.UP),
    "four": (Left.UP, Left.DOWN, Right.UP, Right.DOWN),
}


def function() -> Handle:
    """A function that counts."""
    handled = 0

    def handle(event: Any) -> None:
        nonlocal handled
        handled += 1

    return handle


HANDLERS: dict[str, tuple[str, Callable[[], Any], Callable[[Any], Handle]]] = {
    "functions": ("functions", function, lambda handler: handler),
    "methods": ("bound methods", lambda: Counting().handle, lambda handler: handler),
    "objects": ("objects with a method handle", Counting, lambda handler: handler.handle),
}
"""By key: what they are, how to make one, and what the bare loop calls."""


class Slotted(Event[Left]):
    """As users write them: with an attribute of its own."""

    __slots__ = ("entity",)

    def __init__(self, entity: str) -> None:
        super().__init__(Left.UP)
        self.entity = entity


@dataclass(slots=True)
class OfDataclass:
    entity: str
    type: Left = Left.UP


class Named(NamedTuple):
    entity: str
    type: Left = Left.UP


class Model(BaseModel):
    entity: str
    type: Left = Left.UP


Make = Callable[[], Any]
MADE: dict[str, tuple[str, int, Make]] = {
    "event": ("Event(type)", MILLION, lambda: Event(Left.UP)),
    "timed": ("Event(type, timestamp)", MILLION, lambda: Event(Left.UP, 0.0)),
    "slotted": ("subclass of Event with a slot", MILLION, lambda: Slotted("app_1")),
    "dataclass": ("dataclass with slots", MILLION, lambda: OfDataclass("app_1")),
    "named": ("NamedTuple", MILLION, lambda: Named("app_1")),
    "pydantic": ("pydantic model", 300_000, lambda: Model(entity="app_1")),
}
"""By key: the class of the events, how many of them, and how to make one."""


def mixed_tables(settings: Settings) -> list[RateTable]:
    """A table for each kind of handler, and two of events made in the loop."""
    draw = random.Random(1)
    count = settings.count(MILLION)
    events = {key: [Event(draw.choice(types), 0.0) for _ in range(count)] for key, types in TYPES.items()}
    gc.freeze()  # the collector need not look at these in each round
    tables = []
    for key, (what, make, handle_of) in HANDLERS.items():
        rows = [
            Row("bare", "bare loop over a deque (the limit)", count, partial(_bare, events["four"], make, handle_of))
        ]
        for name, premade in events.items():
            run = partial(_dispatched, premade, make)
            rows.append(
                Row(name, f"AsyncDispatcher, {name} type{'s' if name != 'one' else ''}", count, run, per="bare")
            )
        tables.append(RateTable(f"mixed-{key}", f"Events per second: types drawn at random, handlers are {what}", rows))
    rows = []
    for key, (what, made, make) in MADE.items():
        count = settings.count(made)
        rows.append(Row(key, f"AsyncDispatcher, {what}", count, partial(_dispatched_made, make), per=f"{key}-bare"))
        rows.append(Row(f"{key}-bare", f"    bare loop, {what}", count, partial(_bare_made, make)))
        rows.append(Row(f"{key}-alone", f"    making alone, {what}", count, partial(_made, make)))
    tables.append(RateTable("made", "Events per second: made in the loop", rows))
    return tables


def _bare(events: Sequence[Any], make: Callable[[], Any], handle_of: Callable[[Any], Handle], count: int) -> float:
    """It asks for no type: one handler gets all."""
    waiting, handle, share = deque[Any](), handle_of(make()), events[:count]
    append, popleft = waiting.append, waiting.popleft
    started = time.perf_counter()
    for event in share:
        append(event)
    while waiting:
        handle(popleft())
    return time.perf_counter() - started


def _dispatched(events: Sequence[Any], make: Callable[[], Any], count: int) -> float:
    share = events[:count]
    with AsyncDispatcher(config()) as dispatcher:
        for each in (Left, Right):
            dispatcher.register(each, make())
        register_metrics(dispatcher, CollectorRegistry())
        post = dispatcher.event_handler.handle
        started = time.perf_counter()
        for event in share:
            post(event)
        dispatcher.await_drained()
        took = time.perf_counter() - started
        assert dispatcher.stats().handled == count
        return took


def _bare_made(make: Make, count: int) -> float:
    """One by one: a million of them alive at a time would measure the memory."""
    waiting, handle = deque[Any](), Counting().handle
    append, popleft = waiting.append, waiting.popleft
    started = time.perf_counter()
    for _ in range(count):
        append(make())
        handle(popleft())
    return time.perf_counter() - started


def _dispatched_made(make: Make, count: int) -> float:
    with AsyncDispatcher(config()) as dispatcher:
        dispatcher.register(Left, Counting())
        register_metrics(dispatcher, CollectorRegistry())
        post = dispatcher.event_handler.handle
        started = time.perf_counter()
        for _ in range(count):
            post(make())
        dispatcher.await_drained()
        took = time.perf_counter() - started
        assert dispatcher.stats().handled == count
        return took


def _made(make: Make, count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        make()
    return time.perf_counter() - started
