"""A factory's table as text: `dispatcher graph`."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess

import pytest

from ..kit.commands import run_here
from .test_tables import ABSORBING as MACHINES


def drawn(machine: str, format: str) -> str:
    done = run_here("graph", machine, "--format", format)
    assert (done.code, done.err) == (0, "")
    return done.out


@pytest.mark.parametrize("machine", MACHINES)
def test_each_machine_is_drawn_with_all_its_states_by_its_name_in_any_case(machine: str) -> None:
    table = drawn(machine.lower(), "csv")

    rows = list(csv.DictReader(io.StringIO(table)))
    states = {state for row in rows for state in (row["from_state"], *row["to_states"].split("|"))}
    assert drawn(machine.upper(), "csv") == table
    for format in ("dot", "mermaid"):
        picture = drawn(machine, format)
        assert all(state in picture for state in states)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("machine", MACHINES)
def test_graphviz_takes_each_machine(machine: str) -> None:
    dot = subprocess.run(
        ["dot", "-Tplain"], input=drawn(machine, "dot"), capture_output=True, text=True, timeout=60, check=True
    )

    assert dot.stdout.startswith("graph")


def test_a_machine_of_yours_is_named_by_its_place() -> None:
    wrong = [run_here("graph", place).err for place in ("nowhere:F", "enum:Enum", "enum:nothing", "enum:")]

    assert drawn("statemachines.mapreduce.mrjob:FACTORY", "csv") == drawn("MRJob", "csv")
    assert wrong == [
        "dispatcher: nowhere:F: the module cannot be imported: No module named 'nowhere'\n",
        "dispatcher: enum:Enum: takes a StateMachineFactory, and found an object of EnumType\n",
        "dispatcher: enum:nothing: enum has no factory nothing\n",
        "dispatcher: enum:: give it as MODULE:FACTORY, such as package.module:factory\n",
    ]


def test_an_unknown_machine_is_answered_with_the_known_machines() -> None:
    done = run_here("graph", "rmap")

    assert (done.code, done.out) == (2, "")
    assert done.err == f"dispatcher: no state machine 'rmap'; expected one of {', '.join(MACHINES).lower()}\n"
