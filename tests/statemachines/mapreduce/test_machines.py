"""The tables of a MapReduce application master, followed by machines."""

from __future__ import annotations

import itertools
from enum import Enum
from typing import Any

import pytest

from statemachines import InvalidStateTransitionError
from statemachines.mapreduce import (
    FACTORIES,
    JobEventType,
    Observation,
    TaskAttemptEventType,
    TaskEventType,
)

EVENT_TYPES: dict[str, type[Enum]] = {
    "MRJob": JobEventType,
    "MRTask": TaskEventType,
    "MRTaskAttempt": TaskAttemptEventType,
}
STATES = [
    pytest.param(machine, state, id=f"{machine}-{state.name}")
    for machine, factory in FACTORIES.items()
    for state in type(factory.initial_state)
]


@pytest.mark.parametrize(("machine", "state"), STATES)
def test_each_event_is_followed_to_what_the_table_declares_and_else_refused(machine: str, state: Any) -> None:
    factory = FACTORIES[machine]
    declared = {(row.from_state, row.event): (row.arc, row.to_states) for row in factory.transitions()}

    for event_type, seen in itertools.product(EVENT_TYPES[machine], type(state)):
        arc, targets = declared.get((state, event_type), ("none", ()))
        follower = factory.make("entity", state)
        if arc == "single" or seen in targets:  # a single arc has one post state, whatever was observed
            assert follower.do_transition(event_type, Observation(event_type, seen)) in targets, event_type
        else:
            with pytest.raises(InvalidStateTransitionError):
                follower.do_transition(event_type, Observation(event_type, seen))
            assert follower.current_state is state


@pytest.mark.parametrize("machine", FACTORIES)
def test_each_event_type_is_taken_somewhere(machine: str) -> None:
    assert {row.event for row in FACTORIES[machine].transitions()} == set(EVENT_TYPES[machine])
