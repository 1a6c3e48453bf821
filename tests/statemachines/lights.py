"""A traffic light: states, event types, and a diary of what machines do."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from statemachines import StateMachineFactory


class Light(Enum):
    RED = auto()
    GREEN = auto()
    YELLOW = auto()


class Press(Enum):
    GO = auto()
    STOP = auto()
    WAIT = auto()


class Other(Enum):
    GO = auto()
    RED = auto()


Factory = StateMachineFactory[Light, Any]
S, E = Light, Press


class Diary:
    """A listener and hooks that record their calls in order."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []

    def pre_transition(self, operand: Any, before: Enum, event: Any) -> None:
        self.notes.append(("pre", operand, before, event))

    def post_transition(self, operand: Any, before: Enum, after: Enum, event: Any) -> None:
        self.notes.append(("post", operand, before, after, event))

    def hook(self, operand: Any, event: Any) -> None:
        self.notes.append(("hook", operand, event))

    def failing(self, operand: Any, event: Any) -> None:
        self.notes.append(("hook", operand, event))
        raise KeyError("boom")
