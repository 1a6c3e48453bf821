"""Export of a factory's table as CSV, Graphviz and Mermaid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statemachines.factory import StateMachineFactory

Factory = StateMachineFactory[Any, Any]


def to_csv(factory: Factory) -> str:
    """Return a CSV table of from_state, event, to_states (sorted, joined by `|`) and arc, one row per pair."""
    lines = ["from_state,event,to_states,arc"]
    for row in factory.transitions():
        to_states = "|".join(sorted(state.name for state in row.to_states))
        lines.append(f"{row.from_state.name},{row.event.name},{to_states},{row.arc}")
    return "\n".join(lines) + "\n"


def to_dot(factory: Factory) -> str:
    """Return a Graphviz digraph. Events between the same two states share an edge."""
    lines = [f'digraph "{factory.name}" {{', "  rankdir=LR;", "  node [shape=box, style=rounded];"]
    for (source, target), events in _edges(factory).items():
        label = "\\n".join(events)
        lines.append(f'  "{source}" -> "{target}" [label="{label}"];')
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(factory: Factory) -> str:
    """Return a Mermaid state diagram. Events between the same two states share an arrow."""
    lines = ["stateDiagram-v2", f"  [*] --> {factory.initial_state.name}"]
    for (source, target), events in _edges(factory).items():
        lines.append(f"  {source} --> {target}: {', '.join(events)}")
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[[Factory], str]] = {"csv": to_csv, "dot": to_dot, "mermaid": to_mermaid}


def _edges(factory: Factory) -> dict[tuple[str, str], list[str]]:
    edges: dict[tuple[str, str], list[str]] = {}
    for row in factory.transitions():
        for target in row.to_states:
            edges.setdefault((row.from_state.name, target.name), []).append(row.event.name)
    return edges
