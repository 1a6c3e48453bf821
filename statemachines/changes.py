"""Which entities have changed since someone last looked, for a read model. Handler thread only."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

MOST: Final = 100_000
"""Changed entities that are kept. Beyond that all count as changed, so a follower that never looks costs no more."""


class Changed(NamedTuple):
    """What has changed since the last `Changes.take`."""

    operands: set[Any]
    """Entities that made a transition, or were changed without one. Some may have ended, or be forgotten."""
    forgotten: set[tuple[str, str]]
    """(machine, entity) of those that are no longer kept."""
    is_complete: bool
    """False: there were too many to keep, so anything may have changed."""


class Changes:
    """Entities that have changed, added by a TransitionRecorder, which reads and writes the fields itself."""

    __slots__ = ("_is_complete", "forgotten", "operands", "routine")

    def __init__(self, routine: Enum | None) -> None:
        self.routine = routine  # never changes
        self.operands: set[Any] = set()
        self.forgotten: set[tuple[str, str]] = set()
        self._is_complete = True

    def keep_within_bounds(self) -> None:
        """Forget what has changed if it is too much."""
        if len(self.operands) + len(self.forgotten) > MOST:
            self.operands.clear()
            self.forgotten.clear()
            self._is_complete = False

    def take(self) -> Changed:
        """What has changed since the last call."""
        changed = Changed(self.operands, self.forgotten, self._is_complete)
        self.operands, self.forgotten, self._is_complete = set(), set(), True
        return changed
