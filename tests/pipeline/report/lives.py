"""Rows of transitions: the lives of small machines."""

from __future__ import annotations

from typing import Any

from ..journal_builder import SECOND

Move = dict[str, Any]

MACHINE = [
    ("M", "NEW", "GO", "RUNNING"),
    ("M", "RUNNING", "WAIT", "WAITING"),
    ("M", "WAITING", "GO", "RUNNING"),
    ("M", "RUNNING", "END", "DONE"),
    ("M", "DONE", "END", "DONE"),
]
"""The transitions that the machine M declares: from NEW to DONE."""


def move(seq: int, entity: str, what: str, at: int = 0, *, machine: str = "M", valid: bool = True) -> Move:
    """A transition. `what`: from_state, event_type and to_state; `at` in seconds."""
    from_state, event_type, to_state = what.split()
    named = {"machine": machine, "from_state": from_state, "event_type": event_type, "to_state": to_state}
    return named | {"seq": seq, "entity": entity, "at": at * SECOND, "valid": valid}


RETURNING = [
    move(1, "h1", "NEW GO RUNNING", at=0),
    move(2, "h1", "RUNNING END DONE", at=10),
    move(3, "h1", "NEW GO RUNNING", at=99),
]
"""A machine that ends, and a new one under its id."""
MIXED = [
    *RETURNING,
    move(4, "b", "NEW GO RUNNING", at=100),
    move(5, "b", "RUNNING PING RUNNING", at=101),
    move(6, "c", "NEW GO RUNNING", at=101),
    move(7, "b", "RUNNING WAIT WAITING", at=104),
    move(8, "c", "RUNNING END DONE", at=105),
    move(9, "b", "WAITING GO RUNNING", at=114),
    move(10, "b", "RUNNING END RUNNING", at=115, valid=False),
    move(11, "b", "RUNNING END DONE", at=120),
    move(12, "h1", "RUNNING WAIT WAITING", at=130),
]
"""Lives that overlap, with a self-transition and a refusal; b and c end, h1 waits."""
