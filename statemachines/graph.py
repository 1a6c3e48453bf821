"""Export of a factory's table as CSV, Graphviz and Mermaid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statemachines.declared import Transition
from statemachines.factory import StateMachineFactory

Factory = StateMachineFactory[Any, Any]


def to_csv(factory: Factory) -> str:
    """Return a CSV table of from_state, event, to_states (sorted, joined by `|`) and arc, one row per arc.

    If the table has guards or timeouts, further columns are guard (its name, or empty) and after_s (the state's timeout
    with this event in seconds, or empty).
    """
    rows = list(factory.transitions())
    has_more = any(row.guard or row.after_s is not None for row in rows)
    lines = ["from_state,event,to_states,arc" + (",guard,after_s" if has_more else "")]
    for row in rows:
        to_states = "|".join(sorted(state.name for state in row.to_states))
        line = f"{row.from_state.name},{row.event.name},{to_states},{row.arc}"
        if has_more:
            line += f",{row.guard}," + ("" if row.after_s is None else f"{row.after_s:g}")
        lines.append(line)
    return "\n".join(lines) + "\n"


def to_dot(factory: Factory) -> str:
    """Return a Graphviz digraph. Events between the same two states share an edge."""
    lines = [f'digraph "{factory.name}" {{', "  rankdir=LR;", "  node [shape=box, style=rounded];"]
    for state, hooks in _hooks(factory).items():
        label = "\\n".join((state, *hooks))
        lines.append(f'  "{state}" [label="{label}"];')
    for (source, target), events in _edges(factory).items():
        label = "\\n".join(events)
        lines.append(f'  "{source}" -> "{target}" [label="{label}"];')
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(factory: Factory) -> str:
    """Return a Mermaid state diagram. Events between the same two states share an arrow."""
    lines = ["stateDiagram-v2", f"  [*] --> {factory.initial_state.name}"]
    for (source, target), events in _edges(factory).items():
        lines.append(f"  {source} --> {target}: {', '.join(events)}")
    for state, hooks in _hooks(factory).items():
        lines += [f"  note right of {state}", *(f"    {hook}" for hook in hooks), "  end note"]
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[[Factory], str]] = {"csv": to_csv, "dot": to_dot, "mermaid": to_mermaid}


def _edges(factory: Factory) -> dict[tuple[str, str], list[str]]:
    edges: dict[tuple[str, str], list[str]] = {}
    for row in factory.transitions():
        for target in row.to_states:
            edges.setdefault((row.from_state.name, target.name), []).append(_label(row))
    return edges


def _label(row: Transition) -> str:
    """The event, as in UML with its guard: `TIMED_OUT after 30 s [is_idle]`."""
    after = "" if row.after_s is None else f" after {row.after_s:g} s"
    return f"{row.event.name}{after}" + (f" [{row.guard}]" if row.guard else "")


def _hooks(factory: Factory) -> dict[str, list[str]]:
    """The entry and exit hooks of each state, as in UML: `entry / light_up`."""
    hooks: dict[str, list[str]] = {}
    for each in factory.hooks():
        hooks.setdefault(each.state.name, []).append(f"{each.kind} / {each.name}")
    return hooks
