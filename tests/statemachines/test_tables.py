"""All machines: their names, and their tables compared with Hadoop's."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from statemachines import StateMachineFactory
from statemachines.registry import FACTORIES, HADOOP_CLASSES

from ..kit.commands import run_here

REFERENCE = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "transitions"
ABSORBING = {  # of all machines, in the order of the registry
    "RMApp": {"FINISHED", "FAILED", "KILLED"},
    "RMAppAttempt": {"FINISHED", "FAILED", "KILLED"},
    "RMContainer": {"COMPLETED", "EXPIRED", "RELEASED", "KILLED"},
    "RMNode": {"DECOMMISSIONED", "LOST", "REBOOTED", "SHUTDOWN"},
    "MRJob": {"ERROR", "REBOOT"},
    "MRTask": {"FAILED", "KILLED"},
    "MRTaskAttempt": {"FAILED", "KILLED"},
    "NMApplication": {"FINISHED"},
    "NMContainer": {"DONE"},
    "LocalizedResource": {"LOCALIZED", "FAILED"},
}


class Row(NamedTuple):
    from_state: str
    event: str
    to_states: str
    """Sorted, joined by `|`."""
    arc: str


def exported(machine: str) -> str:
    return run_here("graph", machine, "--format", "csv").out


def rows(text: str) -> list[Row]:
    read = csv.DictReader(io.StringIO(text))
    assert read.fieldnames == list(Row._fields)
    return [Row(**row)._replace(to_states="|".join(sorted(row["to_states"].split("|")))) for row in read]


def differences(ours: list[Row], theirs: list[Row]) -> str:
    """A line for each pair of state and event that differs."""
    one, other = ({row[:2]: row for row in table} for table in (ours, theirs))
    lines = []
    for pair in sorted(one.keys() | other.keys()):
        if one.get(pair) != other.get(pair):
            has, wanted = (f"{t[pair].to_states} ({t[pair].arc})" if pair in t else "no row" for t in (one, other))
            lines.append(f"{pair[0]} on {pair[1]}: {has}, Hadoop: {wanted}")
    return "\n".join(lines)


def absorbing(factory: StateMachineFactory[Any, Any]) -> set[str]:
    """The states that no row leaves."""
    leaving = {row.from_state for row in factory.transitions() if set(row.to_states) != {row.from_state}}
    return {state.name for state in set(type(factory.initial_state)) - leaving}


@pytest.mark.parametrize("machine", FACTORIES)
def test_exported_table_is_hadoops_row_for_row(machine: str) -> None:
    path = REFERENCE / f"{machine.lower()}.csv"
    if not path.is_file():
        pytest.skip("no reference tables of Hadoop beside this checkout")

    ours, theirs = rows(exported(machine)), rows(path.read_text(encoding="utf-8"))

    assert differences(ours, theirs) == ""
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("machine", FACTORIES)
def test_machine_starts_in_new_or_a_resource_in_init_and_no_row_leads_out_of_an_end(machine: str) -> None:
    assert FACTORIES[machine].initial_state.name == ("INIT" if machine == "LocalizedResource" else "NEW")
    assert absorbing(FACTORIES[machine]) == ABSORBING[machine]


@pytest.mark.parametrize("machine", FACTORIES)
def test_exported_table_reads_back_as_the_rows_of_its_machine(machine: str) -> None:
    read = list(csv.DictReader(io.StringIO(exported(machine))))

    assert [(row["from_state"], row["event"], set(row["to_states"].split("|")), row["arc"]) for row in read] == [
        (row.from_state.name, row.event.name, {state.name for state in row.to_states}, row.arc)
        for row in FACTORIES[machine].transitions()
    ]
    states = [state.name for state in type(FACTORIES[machine].initial_state)]
    places = [states.index(row["from_state"]) for row in read]
    assert places == sorted(places), "in the order of the states"


# -- names -----------------------------------------------------------------------------------------------------------


def test_all_machines_are_there_by_the_name_that_their_factory_has() -> None:
    assert list(FACTORIES) == list(ABSORBING)
    assert [factory.name for factory in FACTORIES.values()] == list(FACTORIES)


def test_each_machine_has_the_class_of_hadoop_that_logs_its_transitions() -> None:
    assert set(HADOOP_CLASSES.values()) == set(FACTORIES)
    assert {
        name: HADOOP_CLASSES[name] for name in ("ContainerImpl", "Container", "ApplicationImpl", "Application")
    } == {
        "ContainerImpl": "NMContainer",
        "Container": "NMContainer",  # in Hadoop 2
        "ApplicationImpl": "NMApplication",
        "Application": "NMApplication",
    }
