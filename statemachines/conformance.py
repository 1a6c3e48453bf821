"""Checks transitions against the machines' tables, by the names that logs, journals and DataFrames hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from statemachines.registry import factory_of

Arcs = Mapping[str, Mapping[str, frozenset[str]]]
"""Post states by state and event. Every state of the machine has an entry."""


@cache  # bounded by the number of machines: an unknown name raises
def arcs_of(machine: str) -> Arcs:
    """The table of a machine; its name is case-insensitive.

    Raises:
        UnknownMachineError: no machine has this name.
    """
    factory = factory_of(machine)
    arcs: dict[str, dict[str, frozenset[str]]] = {factory.initial_state.name: {}}
    for row in factory.transitions():
        to_states = frozenset(state.name for state in row.to_states)
        arcs.setdefault(row.from_state.name, {})[row.event.name] = to_states
        for state in to_states:
            arcs.setdefault(state, {})
    return arcs


@lru_cache(maxsize=4096)  # a log repeats the same few transitions
def violation(machine: str, from_state: str, to_state: str, event: str | None = None) -> str | None:
    """Explain in one line why the table of `machine` forbids the transition; None if it allows it. Any thread.

    `event`: None matches any event, for logs that do not name it.

    Raises:
        UnknownMachineError: no machine has this name.
    """
    name, arcs = factory_of(machine).name, arcs_of(machine.lower())
    for state in (from_state, to_state):
        if state not in arcs:
            return f"{name} has no state {state}"
    leaving = arcs[from_state]
    if event is None:
        reachable = frozenset[str]().union(*leaving.values())
        if to_state in reachable:
            return None
        return f"{name}: no event leads from {from_state} to {to_state}, only to {_listed(reachable)}"
    if event not in leaving:
        return f"{name}: {from_state} does not accept {event}, only {_listed(leaving)}"
    if to_state not in leaving[event]:
        return f"{name}: {event} does not lead from {from_state} to {to_state}, only to {_listed(leaving[event])}"
    return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
