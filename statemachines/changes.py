"""Which entities have changed since a follower last looked, for read models.

Handler thread only, except that machines' threads call `Collector.add` and `forget`. These take no lock:

    machine's thread   adds to the sets that are collected, then   looks whether they still are
    handler thread     begins new sets, then                       copies those it hands out, for each follower

Each set has a lock of its own, so if the copy lacks what was added, the machine's thread finds the new sets, and adds
to them as well.
"""

from __future__ import annotations

import threading
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

    __slots__ = ("_followers", "_handing_out", "now", "routine_type")

    def __init__(self, routine_type: Enum | None) -> None:
        self.routine_type = routine_type  # never changes
        self._handing_out = threading.RLock()  # leaf lock; re-entrant, for a signal handler
        self.now = _Collected()  # replaced under the lock; any thread adds to it
        self._followers: list[Changes] = []  # handler thread

    def add(self, operand: Any, event: Any = None, *, is_stay: bool = False) -> bool:
        """An entity has changed; returns whether that was routine. Raises nothing, as its machine has changed."""
        now = self.now
        is_routine = False
        try:
            if is_stay and event.type is self.routine_type:
                is_routine = True
                now.routine.add(operand)
            else:
                now.operands.add(operand)
        except BaseException as error:  # the event has no type, or the operand no hash
            reraise_interrupt(error)
            now.lost.add(None)
        if now is not self.now:
            self.add(operand, event, is_stay=is_stay)
        return is_routine

    def forget(self, machine: str, entity: str) -> None:
        """An entity is no longer kept."""
        now = self.now
        now.forgotten.add((machine, entity))
        if now is not self.now:
            self.forget(machine, entity)

    def keep_within_bounds(self) -> None:
        """Forget what has changed if it is too much."""
        if self.now.count() > MOST:
            with self._handing_out:
                if self.now.count() > MOST:
                    self.now = _Collected()
                    self.now.lost.add(None)

    def hand_out(self) -> None:
        """Give each follower what has changed since the last call."""
        with self._handing_out:
            before, self.now = self.now, _Collected()
        changed = before.changed()
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


class _Collected:
    """What has changed since the last handing out. Any thread adds, each with one call."""

    __slots__ = ("forgotten", "lost", "operands", "routine")

    def __init__(self) -> None:
        self.operands: set[Any] = set()  # any thread
        self.routine: set[Any] = set()  # any thread
        self.forgotten: set[tuple[str, str]] = set()  # any thread
        self.lost: set[None] = set()  # not empty: not all could be kept; any thread

    def count(self) -> int:
        return len(self.operands) + len(self.routine) + len(self.forgotten)

    def changed(self) -> Changed:
        """For followers to copy."""
        return Changed(self.operands, self.routine, self.forgotten, not self.lost.copy())


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
        mine, shared = self._changed, self._collector.now
        count = len(mine.operands) + len(mine.forgotten) + len(shared.operands) + len(shared.forgotten)
        return count if mine.is_complete and not shared.lost else MOST + 1

    def add(self, changed: Changed) -> None:
        """Called by the collector. The sets given may be another follower's, too."""
        mine = self._changed
        # Each of these is one call, which takes the locks of both sets.
        mine.operands.update(changed.operands)
        mine.routine.update(changed.routine)
        mine.forgotten.update(changed.forgotten)
        is_complete = mine.is_complete and changed.is_complete
        if len(mine.operands) + len(mine.routine) + len(mine.forgotten) > MOST:
            mine, is_complete = _nothing(), False
        self._changed = mine._replace(is_complete=is_complete)


def _nothing() -> Changed:
    return Changed(set(), set(), set(), True)
