"""The machines' tables against YARN's, and every event in every state."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from statemachines.resourcemanager import FACTORIES

from .builders import EVENT_TYPES, Workshop, declared, event_for

REFERENCE = Path(__file__).resolve().parents[3].parent / "shared" / "reference" / "transitions"
PAIRS = [
    (machine, state.name, event_type.name)
    for machine, factory in FACTORIES.items()
    for state in type(factory.initial_state)
    for event_type in EVENT_TYPES[machine]
]


def yarn(machine: str) -> dict[tuple[str, str], tuple[set[str], str]]:
    """YARN's rows: (to_states, arc) by state and event."""
    path = REFERENCE / f"{machine.lower()}.csv"
    if not path.is_file():
        pytest.skip("no reference tables of YARN beside this checkout")
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["from_state"], row["event"]): (set(row["to_states"].split("|")), row["arc"])
            for row in csv.DictReader(file)
        }


@pytest.mark.parametrize("machine", FACTORIES)
def test_each_row_is_one_of_yarns_with_the_same_kind_of_arc(machine: str) -> None:
    reference = yarn(machine)

    kinds = {(row.from_state.name, row.event.name): row.arc for row in FACTORIES[machine].transitions()}

    assert kinds == {pair: reference[pair][1] for pair in kinds if pair in reference}


@pytest.mark.parametrize("machine", FACTORIES)
def test_each_row_leads_to_states_that_yarns_leads_to(machine: str) -> None:
    reference = yarn(machine)

    surplus = {pair: to - reference[pair][0] for pair, to in declared(machine).items()}

    assert {pair: states for pair, states in surplus.items() if states} == {}


@pytest.mark.parametrize("machine", FACTORIES)
def test_machine_starts_in_new(machine: str) -> None:
    assert FACTORIES[machine].initial_state.name == "NEW"


@pytest.mark.parametrize("machine", FACTORIES)
def test_all_states_are_reachable(machine: str) -> None:
    reached, arcs = {"NEW"}, declared(machine)

    while more := {to for (state, _), tos in arcs.items() if state in reached for to in tos} - reached:
        reached |= more

    assert reached == {state.name for state in type(FACTORIES[machine].initial_state)}


@pytest.mark.parametrize(("machine", "state", "event"), PAIRS)
def test_each_event_in_each_state_makes_a_declared_transition_or_is_refused(
    workshop: Workshop, machine: str, state: str, event: str
) -> None:
    arcs = declared(machine)
    entity = workshop.make(machine, state)

    entity.handle(event_for(entity, event))

    stats = workshop.recorder.machines[machine]
    if (state, event) in arcs:
        assert entity.state.name in arcs[state, event]
        assert (stats.invalid, sum(stats.transitions.values())) == (0, 1)
    else:
        assert entity.state.name == state
        assert (stats.invalid, sum(stats.transitions.values())) == (1, 0)
        assert workshop.posted.events == []
