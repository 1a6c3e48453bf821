"""How a machine that is only a table follows what a log says happened."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Observation(NamedTuple):
    """An event that was seen, and the state that it led to."""

    type: Enum
    to_state: Enum


def as_observed(operand: object, event: Observation) -> Enum:
    """Hook of every multiple arc: takes the state that the log tells. One that the arc does not declare is refused."""
    return event.to_state
