"""Whether what a log says of a machine is what the machine's table says."""

from __future__ import annotations

from functools import lru_cache

from statemachines.conformance import arcs_of, violation
from statemachines.registry import FACTORIES


def is_declared(machine: str) -> bool:
    """Whether there is a table of the machine to hold its transitions against."""
    return machine in FACTORIES


@lru_cache(maxsize=4096)  # a log says the same few things over and over
def mismatch(machine: str, from_state: str, event_type: str, to_state: str, valid: bool) -> str | None:
    """How the table contradicts a transition, in one line; None: it does not, or there is none of this machine.

    `event_type` empty: the log does not say, so any event will do. `valid` false: the machine refused the event, which
    the table has to do as well.
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
