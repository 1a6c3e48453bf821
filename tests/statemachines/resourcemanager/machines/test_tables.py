"""Every event in every state of the resource manager's machines."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from statemachines import TransitionRecorder

from ..builders import EVENT_TYPES, Workshop, declared, event_for
from ..inner import FACTORIES

STATES = [(machine, state.name) for machine, factory in FACTORIES.items() for state in type(factory.initial_state)]


class Written(NamedTuple):
    machine: str
    entity: str
    from_state: str
    event_type: str
    to_state: str
    valid: bool


class Journal:
    """Stands in for a journal: keeps the transitions."""

    def __init__(self) -> None:
        self.transitions: list[Written] = []

    def origin(self, *, is_made: bool = False) -> Journal:
        return self

    def add_transition(
        self,
        machine: str,
        entity: str,
        from_state: str,
        event_type: str,
        to_state: str,
        *,
        valid: bool,
        data: str | None = None,
    ) -> None:
        self.transitions.append(Written(machine, entity, from_state, event_type, to_state, valid))


def counted(recorder: TransitionRecorder, machine: str, metric: str) -> float:
    """A metric of the machine, over all its other labels."""
    samples = [sample for family in recorder.collect("RM") for sample in family.samples if sample.name == metric]
    return sum(sample.value for sample in samples if sample.labels["machine"] == machine)


@pytest.mark.parametrize(("machine", "state"), STATES)
def test_each_event_makes_a_declared_transition_or_is_refused(machine: str, state: str) -> None:
    table = declared(machine)
    for event_type in EVENT_TYPES[machine]:
        check(machine, state, event_type.name, table.get((state, event_type.name)))


def check(machine: str, state: str, event: str, allowed: set[str] | None) -> None:
    workshop, journal = Workshop(), Journal()
    workshop.recorder = workshop.context.recorder = TransitionRecorder(journal)  # type: ignore[arg-type]
    entity: Any = workshop.make(machine, state)
    journal.transitions.clear()

    entity.handle(event_for(entity, event))

    to_state = entity.state.name
    assert to_state in (allowed if allowed is not None else {state}), event
    own = [written for written in journal.transitions if written.entity == entity.entity]
    assert own == [Written(machine, entity.entity, state, event, to_state, valid=allowed is not None)]
    made, refused = (1, 0) if allowed is not None else (0, 1)
    assert counted(workshop.recorder, machine, "statemachine_transitions_total") == made, event
    assert counted(workshop.recorder, machine, "statemachine_invalid_transitions_total") == refused, event
    if allowed is None:
        assert workshop.posted.events == [], event
