"""Transitions from a log, checked against the tables."""

from __future__ import annotations

import pytest

from statemachines.conformance import violation
from statemachines.registry import FACTORIES, UnknownMachineError


@pytest.mark.parametrize("machine", FACTORIES)
def test_only_declared_transitions_are_allowed(machine: str) -> None:
    factory = FACTORIES[machine]
    declared = {(row.from_state, row.event, to_state) for row in factory.transitions() for to_state in row.to_states}
    states = list(type(factory.initial_state))
    event_types = list(type(next(factory.transitions()).event))

    allowed = {
        (from_state, event_type, to_state)
        for from_state in states
        for event_type in event_types
        for to_state in states
        if violation(machine, from_state.name, to_state.name, event_type.name) is None
    }

    assert allowed == declared


@pytest.mark.parametrize("machine", FACTORIES)
def test_without_an_event_any_that_leads_there_will_do(machine: str) -> None:
    factory = FACTORIES[machine]
    moves = {(row.from_state, to_state) for row in factory.transitions() for to_state in row.to_states}
    states = list(type(factory.initial_state))

    allowed = {(one, other) for one in states for other in states if violation(machine, one.name, other.name) is None}

    assert allowed == moves


@pytest.mark.parametrize("machine", ["MRTask", "mrtask", "MRTASK"])
def test_machine_is_known_in_upper_and_lower_case(machine: str) -> None:
    assert violation(machine, "NEW", "SCHEDULED", "T_SCHEDULE") is None
    assert violation(machine, "NEW", "RUNNING", "T_SCHEDULE") is not None


@pytest.mark.parametrize(
    ("from_state", "to_state", "event", "why"),
    [
        ("NEWISH", "RUNNING", "T_KILL", "MRTask has no state NEWISH"),
        ("NEW", "DONE", None, "MRTask has no state DONE"),
        ("NEW", "KILLED", "T_STOP", "MRTask: NEW does not accept T_STOP, only T_KILL, T_RECOVER, T_SCHEDULE"),
        ("NEW", "KILLED", "T_SCHEDULE", "MRTask: T_SCHEDULE does not lead from NEW to KILLED, only to SCHEDULED"),
        (
            "SUCCEEDED",
            "KILLED",
            None,
            "MRTask: no event leads from SUCCEEDED to KILLED, only to FAILED, SCHEDULED, SUCCEEDED",
        ),
    ],
)
def test_violation_names_the_transitions_that_the_table_allows(
    from_state: str, to_state: str, event: str | None, why: str
) -> None:
    assert violation("MRTask", from_state, to_state, event) == why


def test_unknown_machine_is_refused() -> None:
    with pytest.raises(UnknownMachineError, match="no state machine 'mrtusk'; expected one of rmapp,"):
        violation("mrtusk", "NEW", "SCHEDULED")
