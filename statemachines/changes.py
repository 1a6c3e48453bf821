"""Which entities have changed since a follower last looked, for read models.

Handler thread only, except that machines' threads call `Collector.add`. An `add` to a set fetches the set and adds in
one step, unless the operand's `__hash__` is Python code: a set that was handed out changes no more.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

from dispatcher.util.foreign import reraise_interrupt

MOST: Final = 100_000
"""Changed entities that are kept. Beyond that all count as changed, so a follower that never looks costs no more."""


class Changed(NamedTuple):
    """What has changed since the last `Changes.take`."""

    operands: set[Any]
    """Entities that made a transition, or were changed without one. Some may have ended, or be forgotten."""
    routine: set[Any]
    """Entities that handled the routine event without a change of state. Some may be among `operands`, too."""
    forgotten: set[tuple[str, str]]
    """(machine, entity) of those that are no longer kept."""
    is_complete: bool
    """False: there were too many to keep, so anything may have changed."""


class Collector:
    """Entities that have changed, added by a TransitionRecorder.

    They are collected once, however many follow, and handed out when one of these looks.
    """

    __slots__ = ("_followers", "forgotten", "is_complete", "operands", "routine", "routine_type")

    def __init__(self, routine_type: Enum | None) -> None:
        self.routine_type = routine_type  # never changes
        self.operands: set[Any] = set()
        self.routine: set[Any] = set()
        self.forgotten: set[tuple[str, str]] = set()
        self.is_complete = True
        self._followers: list[Changes] = []

    def add(self, operand: Any, event: Any = None, *, is_stay: bool = False) -> bool:
        """An entity has changed; returns whether that was routine. Raises nothing, as its machine has changed."""
        try:
            if is_stay and event.type is self.routine_type:
                self.routine.add(operand)
                return True
            self.operands.add(operand)
        except BaseException as error:  # the event has no type, or the operand no hash
            reraise_interrupt(error)
            self.is_complete = False
        return False

    def keep_within_bounds(self) -> None:
        """Forget what has changed if it is too much."""
        if len(self.operands) + len(self.routine) + len(self.forgotten) > MOST:
            self._begin_anew(is_complete=False)

    def hand_out(self) -> None:
        """Give each follower what has changed since the last call."""
        changed = Changed(self.operands, self.routine, self.forgotten, self.is_complete)
        self._begin_anew(is_complete=True)
        for follower in self._followers:
            follower.add(changed)

    def follow(self) -> Changes:
        self.hand_out()
        follower = Changes(self)
        self._followers.append(follower)
        return follower

    def unfollow(self, follower: Changes) -> bool:
        """Returns whether nobody follows any more. Without effect on the others if it does not follow."""
        if follower in self._followers:
            self._followers.remove(follower)
        return not self._followers

    def _begin_anew(self, is_complete: bool) -> None:
        self.operands, self.routine, self.forgotten, self.is_complete = set(), set(), set(), is_complete


class Changes:
    """What has changed for one follower."""

    __slots__ = ("_changed", "_collector")

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._changed = _nothing()

    def take(self) -> Changed:
        """What has changed since the last call."""
        self._collector.hand_out()
        changed, self._changed = self._changed, _nothing()
        return changed

    def count(self) -> int:
        """How many entities `take` would return as changed or forgotten; more than MOST if not all were kept."""
        mine, shared = self._changed, self._collector
        count = len(mine.operands) + len(mine.forgotten) + len(shared.operands) + len(shared.forgotten)
        return count if mine.is_complete and shared.is_complete else MOST + 1

    def add(self, changed: Changed) -> None:
        """Called by the collector. The sets given may be another follower's, too."""
        mine = self._changed
        mine.operands.update(changed.operands)
        mine.routine.update(changed.routine)
        mine.forgotten.update(changed.forgotten)
        is_complete = mine.is_complete and changed.is_complete
        if len(mine.operands) + len(mine.routine) + len(mine.forgotten) > MOST:
            mine, is_complete = _nothing(), False
        self._changed = mine._replace(is_complete=is_complete)


def _nothing() -> Changed:
    return Changed(set(), set(), set(), True)
