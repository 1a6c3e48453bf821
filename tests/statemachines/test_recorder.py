"""Counting and journaling of transitions."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum, auto
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import Metric

from statemachines import InvalidStateTransitionError, StateMachineFactory, TransitionRecorder

from ..kit import in_threads


class S(Enum):
    NEW = auto()
    UP = auto()
    DOWN = auto()


class E(Enum):
    START = auto()
    STOP = auto()


class Event:
    def __init__(self, type: Enum) -> None:
        self.type = type


FACTORY: StateMachineFactory[S, Any] = (
    StateMachineFactory[S, Any](S.NEW, "Thing")
    .add_transition(S.NEW, S.UP, E.START)
    .add_transition(S.UP, S.UP, E.START)
    .add_transition(S.UP, S.DOWN, E.STOP)
)


class Thing:
    """An operand with the attributes that the recorder reads."""

    def __init__(self, recorder: TransitionRecorder, entity: str = "thing_1", machine: str = "Thing") -> None:
        self.machine = machine
        self.entity = entity
        self.state_machine = FACTORY.make(self, listener=recorder)

    def handle(self, type: Enum) -> None:
        with contextlib.suppress(InvalidStateTransitionError):
            self.state_machine.do_transition(type, Event(type))


@pytest.fixture
def recorder() -> TransitionRecorder:
    return TransitionRecorder()


def samples(metrics: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """By the sample's name and its labels' values."""
    return {(s.name, *s.labels.values()): s.value for metric in metrics for s in metric.samples}


def test_a_machine_that_is_made_in_another_state_is_counted_in_it(recorder: TransitionRecorder) -> None:
    """The first machine's state was taken for the initial one, and all others were counted in it."""
    factory = recorder.recorded(FACTORY)
    up, _ = (
        factory.make(SimpleNamespace(machine="Thing", entity=f"thing_{state.name}"), state, recorder)
        for state in (S.UP, S.NEW)
    )

    up.do_transition(E.STOP, Event(E.STOP))

    assert recorder.machines["Thing"].entities() == {"NEW": 1, "UP": 0, "DOWN": 1}
    assert recorder.initial_state("Thing") == "NEW"


def test_state_is_never_counted_below_zero_while_machines_are_made_and_moved(recorder: TransitionRecorder) -> None:
    """Machine counts were read before transition counts: a scrape in between returned -1."""
    Thing(recorder).handle(E.START)
    stats = recorder.machines["Thing"]

    class Busy(defaultdict[tuple[str, str], int]):
        def copy(self) -> Busy:
            content = Busy(int, self)
            stats.here().created += 1
            stats.tell("NEW", "UP")
            return content

    stats.here().others = Busy(int, stats.here().others)

    assert min(stats.entities().values()) >= 0


def test_metrics_tell_transitions_invalid_ones_and_kept_entities(recorder: TransitionRecorder) -> None:
    things = [Thing(recorder, f"thing_{number}") for number in range(3)]
    things[0].handle(E.START)
    things[1].handle(E.START)
    things[2].handle(E.STOP)
    recorder.forgotten("Thing", S.UP)

    families = list(recorder.collect("RM"))

    assert recorder.machines["Thing"].entities() == {"NEW": 1, "UP": 2}, "it still counts, and is not kept"

    assert [(family.name, family.type) for family in families] == [
        ("statemachine_transitions", "counter"),
        ("statemachine_invalid_transitions", "counter"),
        ("statemachine_entities", "gauge"),
    ]
    assert samples(families) == {
        ("statemachine_transitions_total", "RM", "Thing", "NEW", "UP"): 2,
        ("statemachine_invalid_transitions_total", "RM", "Thing"): 1,
        ("statemachine_entities", "RM", "Thing", "NEW"): 1,
        ("statemachine_entities", "RM", "Thing", "UP"): 1,
    }
    labels = {s.name: tuple(s.labels) for family in families for s in family.samples}
    assert labels == {
        "statemachine_transitions_total": ("dispatcher", "machine", "from", "to"),
        "statemachine_invalid_transitions_total": ("dispatcher", "machine"),
        "statemachine_entities": ("dispatcher", "machine", "state"),
    }


def test_machines_of_several_threads_are_counted_exactly(recorder: TransitionRecorder) -> None:
    """Without a GIL, two threads that counted the same transition at one moment counted it once."""
    factory, rounds = recorder.recorded(FACTORY), 2_000
    changes = recorder.follow()

    def live() -> None:
        for number in range(rounds):
            thing = SimpleNamespace(machine="Thing", entity=f"{get_ident()}-{number}")
            machine = factory.make(thing, None, recorder)
            machine.do_transition(E.START, Event(E.START))
            recorder.changed(thing.entity)
            if number % 100 == 0:
                assert min(recorder.machines["Thing"].entities().values()) >= 0

    in_threads(live, live, live)

    stats = recorder.machines["Thing"]
    assert (stats.created, stats.invalid, stats.transitions) == (3 * rounds, 0, {("NEW", "UP"): 3 * rounds})
    assert stats.entities() == {"NEW": 0, "UP": 3 * rounds}
    assert len(changes.take().operands) >= 3 * rounds


def test_a_machine_that_moves_to_another_thread_is_counted_there(recorder: TransitionRecorder) -> None:
    factory = recorder.recorded(FACTORY)
    machine = factory.make(SimpleNamespace(machine="Thing", entity="thing"), None, recorder)
    machine.do_transition(E.START, Event(E.START))

    in_threads(lambda: machine.do_transition(E.START, Event(E.START)))
    machine.do_transition(E.STOP, Event(E.STOP))

    assert recorder.machines["Thing"].transitions == {("NEW", "UP"): 1, ("UP", "UP"): 1, ("UP", "DOWN"): 1}
