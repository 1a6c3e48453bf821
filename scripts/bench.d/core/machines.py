"""State machine transitions per second, and bytes per machine: a door that opens and closes, with a hook that counts.

The machine written by hand has a table in a dict, looked up by state and event type, and a clear error.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from enum import Enum
from typing import Any

from core.jvm import Hadoop
from load import Counting
from measure import Figures, RatePart, RateTable, Row, Settings, Spread, print_table
from statemachine import State
from statemachine import StateMachine as PythonStateMachine
from transitions import Machine

from dispatcher import Event
from statemachines import StateMachineFactory


class Door(Enum):
    OPEN = "OPEN"
    CLOSED = "CLOSED"


class DoorEvent(Enum):
    OPEN = "OPEN"
    CLOSE = "CLOSE"


Fire = Callable[[Any], Any]
Hook = Callable[[Counting, Any], None]


def count(operand: Counting, event: Any) -> None:
    """The hook of every machine."""
    operand.handled += 1


FACTORY = (
    StateMachineFactory[Door, Counting](Door.OPEN)
    .add_transition(Door.OPEN, Door.CLOSED, DoorEvent.CLOSE, count)
    .add_transition(Door.CLOSED, Door.OPEN, DoorEvent.OPEN, count)
    .install_topology()
)


def ours(transitions: int) -> float:
    hinge = Counting()
    return _move(FACTORY.make(hinge).do_transition, hinge, transitions)


class HandWritten:
    """A table of (state, event type) to (new state, hook)."""

    TABLE: dict[tuple[Door, DoorEvent], tuple[Door, Hook | None]] = {
        (Door.OPEN, DoorEvent.CLOSE): (Door.CLOSED, count),
        (Door.CLOSED, DoorEvent.OPEN): (Door.OPEN, count),
    }

    def __init__(self, operand: Counting) -> None:
        self.state = Door.OPEN
        self._operand = operand

    def do_transition(self, event_type: DoorEvent, event: Any) -> Door:
        try:
            state, hook = self.TABLE[self.state, event_type]
        except KeyError:
            raise ValueError(f"no transition from {self.state.name} on {event_type.name}") from None
        if hook is not None:
            hook(self._operand, event)
        self.state = state
        return state


def hand_written(transitions: int) -> float:
    hinge = Counting()
    return _move(HandWritten(hinge).do_transition, hinge, transitions)


def _move(do_transition: Callable[[DoorEvent, Any], Any], hinge: Counting, transitions: int) -> float:
    close, open_ = Event(DoorEvent.CLOSE, 0.0), Event(DoorEvent.OPEN, 0.0)
    started = time.perf_counter()
    for _ in range(transitions // 2):
        do_transition(close.type, close)
        do_transition(open_.type, open_)
    took = time.perf_counter() - started
    assert hinge.handled == transitions
    return took


def transitions_door(hinge: Counting) -> Machine:
    machine = Machine(states=["open", "closed"], initial="open", auto_transitions=False)
    machine.add_transition("shut", "open", "closed", before=lambda event: count(hinge, event))
    machine.add_transition("unshut", "closed", "open", before=lambda event: count(hinge, event))
    return machine


def transitions_machine(transitions: int) -> float:
    """By its trigger methods, which are faster than `trigger` with a name."""
    hinge = Counting()
    machine = transitions_door(hinge)
    return _alternate(machine.shut, machine.unshut, hinge, transitions)


class _PythonDoor(PythonStateMachine):
    opened = State(initial=True)
    closed = State()
    shut = opened.to(closed, on="count")
    unshut = closed.to(opened, on="count")

    def __init__(self, hinge: Counting) -> None:
        self.hinge = hinge
        super().__init__()

    def count(self, event_data: Any) -> None:
        count(self.hinge, event_data)


def python_statemachine(transitions: int) -> float:
    hinge = Counting()
    door = _PythonDoor(hinge)
    return _alternate(door.shut, door.unshut, hinge, transitions)


def _alternate(shut: Fire, unshut: Fire, hinge: Counting, transitions: int) -> float:
    close, open_ = Event(DoorEvent.CLOSE, 0.0), Event(DoorEvent.OPEN, 0.0)
    started = time.perf_counter()
    for _ in range(transitions // 2):
        shut(close)
        unshut(open_)
    took = time.perf_counter() - started
    assert hinge.handled == transitions
    return took


def bytes_each(make: Callable[[Counting], Any], machines: int) -> float:
    """What that many live machines of a kind take beyond their operands, by tracemalloc; each has made a transition."""
    hinges = [Counting() for _ in range(machines)]
    kept: list[Any] = [None] * machines
    tracemalloc.start()
    try:
        kept[:] = map(make, hinges)
        return tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()


def _closed(hinge: Counting) -> Any:
    machine = FACTORY.make(hinge)
    machine.do_transition(DoorEvent.CLOSE, None)
    return machine


def _closed_by_hand(hinge: Counting) -> Any:
    machine = HandWritten(hinge)
    machine.do_transition(DoorEvent.CLOSE, None)
    return machine


def _closed_of_transitions(hinge: Counting) -> Any:
    machine = transitions_door(hinge)
    machine.shut(None)
    return machine


def _closed_of_python_statemachine(hinge: Counting) -> Any:
    door = _PythonDoor(hinge)
    door.shut(None)
    return door


class Machines(RatePart):
    """The rates, and the memory: that is the same in each run, so it is measured once, in the report."""

    def __init__(self, settings: Settings, rates: RateTable) -> None:
        super().__init__(rates)
        self._settings = settings

    def report(self) -> Figures:
        figures = super().report()
        million, thousand = self._settings.count(1_000_000), self._settings.count(1_000)
        each = {
            f"StateMachine, {million:,} of them": bytes_each(_closed, million),
            f"written by hand over a dict, {million:,}": bytes_each(_closed_by_hand, million),
            f"transitions, {thousand:,}": bytes_each(_closed_of_transitions, thousand),
            f"python-statemachine, {thousand:,}": bytes_each(_closed_of_python_statemachine, thousand),
        }
        title = "Bytes per live machine beyond its operand, by tracemalloc, lower is better"
        print_table(title, {name: Spread.of([size]) for name, size in each.items()}, digits=1)
        return figures | {"machine.bytes": next(iter(each.values()))}


def machines(settings: Settings, hadoop: Hadoop | None) -> Machines:
    rows = [
        Row("ours", "StateMachine", settings.count(1_000_000), ours),
        Row("hand", "written by hand over a dict", settings.count(1_000_000), hand_written),
        Row("transitions", "transitions", settings.count(50_000), transitions_machine),
        Row("python-statemachine", "python-statemachine", settings.count(5_000), python_statemachine),
    ]
    if hadoop is not None:
        million = settings.count(1_000_000)
        rows.append(hadoop.row("hadoop", "Hadoop's StateMachineFactory (JVM)", "machine", million))
    return Machines(settings, RateTable("machine", "Transitions per second: two states, a hook that counts", rows))
