"""How a machine without hooks follows a log or a journal."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Observation(NamedTuple):
    """An observed event, and the state to which it led."""

    type: Enum
    to_state: Enum


def as_observed(operand: object, event: Observation) -> Enum:
    """Hook for every multiple arc: choose the observed state. The machine refuses a state that the arc lacks."""
    return event.to_state
