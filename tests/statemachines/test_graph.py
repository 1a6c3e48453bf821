"""A factory's table as text."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import pytest

from statemachines import StateMachineFactory
from statemachines.graph import FORMATS, to_csv, to_dot, to_mermaid
from statemachines.registry import FACTORIES


class S(Enum):
    NEW = auto()
    UP = auto()
    DOWN = auto()


class E(Enum):
    START = auto()
    RESTART = auto()
    CHECK = auto()


def choose(operand: Any, event: Any) -> S:
    return S.UP


@pytest.fixture
def factory() -> StateMachineFactory[S, Any]:
    factory: StateMachineFactory[S, Any] = StateMachineFactory(S.NEW, "Thing")
    return factory.add_transition(S.NEW, S.UP, [E.START, E.RESTART]).add_transition(
        S.UP, {S.UP, S.DOWN}, E.CHECK, choose
    )


def test_csv_has_a_row_per_pair_with_sorted_targets(factory: StateMachineFactory[S, Any]) -> None:
    assert to_csv(factory) == (
        "from_state,event,to_states,arc\nNEW,START,UP,single\nNEW,RESTART,UP,single\nUP,CHECK,DOWN|UP,multiple\n"
    )


def test_dot_has_an_edge_per_pair_of_states(factory: StateMachineFactory[S, Any]) -> None:
    assert to_dot(factory) == (
        'digraph "Thing" {\n'
        "  rankdir=LR;\n"
        "  node [shape=box, style=rounded];\n"
        '  "NEW" -> "UP" [label="START\\nRESTART"];\n'
        '  "UP" -> "UP" [label="CHECK"];\n'
        '  "UP" -> "DOWN" [label="CHECK"];\n'
        "}\n"
    )


def test_mermaid_has_an_arrow_per_pair_of_states(factory: StateMachineFactory[S, Any]) -> None:
    assert to_mermaid(factory) == (
        "stateDiagram-v2\n  [*] --> NEW\n  NEW --> UP: START, RESTART\n  UP --> UP: CHECK\n  UP --> DOWN: CHECK\n"
    )


def test_formats_name_them_all() -> None:
    assert dict(FORMATS) == {"csv": to_csv, "dot": to_dot, "mermaid": to_mermaid}


@pytest.mark.parametrize("machine", FACTORIES)
def test_csv_of_each_machine_reads_back_as_its_rows(machine: str) -> None:
    factory = FACTORIES[machine]

    read = list(csv.DictReader(io.StringIO(to_csv(factory))))

    assert [(row["from_state"], row["event"], set(row["to_states"].split("|")), row["arc"]) for row in read] == [
        (row.from_state.name, row.event.name, {state.name for state in row.to_states}, row.arc)
        for row in factory.transitions()
    ]


@pytest.mark.parametrize("machine", FACTORIES)
@pytest.mark.parametrize("draw", [to_dot, to_mermaid])
def test_each_machine_is_drawn_with_all_its_states(
    machine: str, draw: Callable[[StateMachineFactory[Any, Any]], str]
) -> None:
    factory = FACTORIES[machine]

    drawn = draw(factory)

    states = {state for row in factory.transitions() for state in (row.from_state, *row.to_states)}
    assert all(state.name in drawn for state in states)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("machine", FACTORIES)
def test_graphviz_takes_each_machine(machine: str) -> None:
    dot = subprocess.run(
        ["dot", "-Tplain"], input=to_dot(FACTORIES[machine]), capture_output=True, text=True, timeout=60, check=True
    )

    assert dot.stdout.startswith("graph")
