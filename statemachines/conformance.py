"""Whether what a log says happened is what a machine's table allows.

All by names, as logs, journals and DataFrames have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from statemachines.registry import factory_of

Arcs = Mapping[str, Mapping[str, frozenset[str]]]
"""The states to which a state's events lead, by state and event; every state of the machine has an entry."""


@cache  # as many entries as there are machines: an unknown name raises
def arcs_of(machine: str) -> Arcs:
    """The table of the machine of that name, in upper or lower case.

    Raises:
        UnknownMachineError: there is no such machine.
    """
    factory = factory_of(machine)
    arcs: dict[str, dict[str, frozenset[str]]] = {factory.initial_state.name: {}}
    for row in factory.transitions():
        to_states = frozenset(state.name for state in row.to_states)
        arcs.setdefault(row.from_state.name, {})[row.event.name] = to_states
        for state in to_states:
            arcs.setdefault(state, {})
    return arcs


@lru_cache(maxsize=4096)  # a log says the same few things over and over
def violation(machine: str, from_state: str, to_state: str, event: str | None = None) -> str | None:
    """Why the table of `machine` does not allow the transition, in one line; None: it does.

    `event` None: the log does not say, so any event will do. Cheap enough for each line of a long log; any thread.

    Raises:
        UnknownMachineError: there is no such machine.
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
        return f"{name}: {from_state} does not take {event}, only {_listed(leaving)}"
    if to_state not in leaving[event]:
        return f"{name}: {event} does not lead from {from_state} to {to_state}, only to {_listed(leaving[event])}"
    return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
