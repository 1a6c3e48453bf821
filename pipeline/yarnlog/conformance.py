"""Whether a log's transitions conform to the machines' tables."""

from __future__ import annotations

from functools import lru_cache

from statemachines.conformance import arcs_of, violation
from statemachines.registry import FACTORIES


def is_declared(machine: str) -> bool:
    """Whether the machine's table is known."""
    return machine in FACTORIES


@lru_cache(maxsize=4096)  # a log repeats the same few transitions
def mismatch(machine: str, from_state: str, event_type: str, to_state: str, valid: bool) -> str | None:
    """How a transition violates the machine's table, in one line; None: it conforms, or the table is unknown.

    An empty `event_type` stands for any event. `valid` false: the machine refused the event, as the table must.
    """
    if not is_declared(machine):
        return None
    if valid:
        return violation(machine, from_state, to_state, event_type or None)
    arcs = arcs_of(machine)
    if from_state not in arcs:
        return f"{machine} has no state {from_state}"
    if event_type in arcs[from_state]:
        return f"{machine}: {from_state} takes {event_type}, which was refused"
    return None
