"""What happens to the machines of one recorder: a log that any number of followers keep up with.

Machines' threads append, without a lock: a row for each transition, and the operand of each entity that has changed.
After 256 of them the log hands all over to its followers, each of which keeps what it needs: the state of every entity
(EntityTables), the last transitions (TransitionRing), or which entities have changed (ChangedEntities). A machine's
thread never waits for a follower: while another thread hands over, it goes on appending. A follower that is read has
the rest handed over first, so it also sees what a hanging handler has done.

No follower has a position in the log: it gets each change once, from the moment at which it follows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from dispatcher.errors import InvalidValueError
from dispatcher.util.registry import Registry

HAND_OVER_EVERY: Final = 256
"""Rows, or operands."""
MOST: Final = 100_000
"""Changed entities that are kept. Beyond that all count as changed, so a follower that never looks costs no more."""
GONE: Final = ""
"""The state of an entity that is no longer kept."""

Row = tuple[str, str, str, str, "str | None", int]
"""Entity, machine, state before, event type, state after, Unix ns.

The event type is empty if it is no transition: the entity was made (no state before) or is no longer kept (GONE). A
rejected event has no state after it.
"""


class RowFollower(Protocol):
    def add(self, rows: Sequence[Row]) -> None:
        """Take the next rows. The caller holds the log's lock, so no foreign code may run, and nothing is waited for.

        After an interrupt in the middle, the same rows come again.
        """


class ChangeLog:
    """The changes of one recorder's machines. Machines' threads append and call `look`; any thread calls the rest."""

    def __init__(self) -> None:
        # Four lists: any thread appends without a lock; the owner of _lock takes from the front. Each is one step in C.
        self.rows: list[Row] = []  # any thread
        self.operands: list[Any] = []  # any thread; of entities that have changed, by a transition or without one
        self.routine: list[Any] = []  # any thread; of entities that stayed in their state on the routine event
        self.forgotten: list[tuple[str, str]] = []  # any thread; (machine, entity) of those that are no longer kept
        self.look_at: int = HAND_OVER_EVERY  # items of a list that make a machine's thread `look`; machines' threads
        self.is_followed: bool = False  # by a ChangedEntities; handler thread writes, machines' threads read
        self.routine_type: Enum | None = None  # handler thread writes, machines' threads read
        self.row_followers: tuple[RowFollower, ...] = ()  # set before the first row
        self._entity_followers: tuple[ChangedEntities, ...] = ()  # guarded by _lock
        self._lock = threading.Lock()  # leaf lock; machines' threads only try it
        renew_in_child(self)

    def look(self) -> None:
        """Hand over, unless another thread does."""
        if self._lock.acquire(blocking=False):
            try:
                _dropped = self._hand_over()
            finally:
                self._lock.release()
            self.look_at = HAND_OVER_EVERY
        else:
            self.look_at += HAND_OVER_EVERY

    @contextmanager
    def caught_up(self) -> Iterator[None]:
        """Hand over all changes so far, and let nothing be handed over in the block."""
        with self._lock:
            _dropped = self._hand_over()
            yield

    def follow(self, routine_type: Enum | None) -> ChangedEntities:
        """See TransitionRecorder.follow. Handler thread, as is `unfollow`."""
        if self.is_followed and self.routine_type is not routine_type:
            raise InvalidValueError(f"changes are followed with {self.routine_type} as routine already: {routine_type}")
        follower = ChangedEntities(self)
        with self.caught_up():
            self._entity_followers = (*self._entity_followers, follower)
        self.routine_type, self.is_followed = routine_type, True
        return follower

    def unfollow(self, follower: ChangedEntities) -> None:
        with self.caught_up():
            self._entity_followers = tuple(each for each in self._entity_followers if each is not follower)
        if not self._entity_followers:
            self.routine_type, self.is_followed = None, False

    def _hand_over(self) -> object:
        """The caller holds `_lock`, and what this returns until it has released that.

        It may be all that refers to some operands. Their finalizers are foreign, and may want the lock.
        """
        # Copies: other threads append meanwhile. They are removed at the end, so an interrupt loses nothing.
        rows, operands = self.rows.copy(), self.operands.copy()
        routine, forgotten = self.routine.copy(), self.forgotten.copy()
        if rows:
            for follower in self.row_followers:
                follower.add(rows)
        dropped = [each.add(operands, routine, forgotten) for each in self._entity_followers]
        del self.rows[: len(rows)], self.operands[: len(operands)]
        del self.routine[: len(routine)], self.forgotten[: len(forgotten)]
        return operands, routine, dropped

    def after_fork(self) -> None:
        self._lock = threading.Lock()


class Changed(NamedTuple):
    """What has changed since the last `ChangedEntities.take`. By id(), so it neither hashes nor compares operands."""

    operands: dict[int, Any]
    """Entities that made a transition, or were changed without one. Some may have ended, or be forgotten."""
    routine: dict[int, Any]
    """Entities that handled the routine event without a change of state. Some may also be among `operands`."""
    forgotten: set[tuple[str, str]]
    """(machine, entity) of those that are no longer kept."""
    is_complete: bool
    """False: there were too many to keep, so anything may have changed."""


class ChangedEntities:
    """Which entities have changed since they were last taken. Any thread."""

    __slots__ = ("_changed", "_log")

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._changed = _nothing()  # guarded by the log's lock

    def take(self) -> Changed:
        """What has changed since the last call."""
        with self._log.caught_up():
            changed, self._changed = self._changed, _nothing()
        return changed

    def count(self) -> int:
        """How many entities `take` would return as changed or forgotten; more than MOST if not all were kept."""
        with self._log.caught_up():
            changed = self._changed
            return len(changed.operands) + len(changed.forgotten) if changed.is_complete else MOST + 1

    def add(
        self, operands: Sequence[Any], routine: Sequence[Any], forgotten: Sequence[tuple[str, str]]
    ) -> Changed | None:
        """Keep these; return what is dropped, if they are too many.

        The caller holds the log's lock, so no foreign code may run: `id` calls none.
        """
        changed = self._changed
        changed.operands.update(zip(map(id, operands), operands, strict=True))
        changed.routine.update(zip(map(id, routine), routine, strict=True))
        changed.forgotten.update(forgotten)
        if len(changed.operands) + len(changed.routine) + len(changed.forgotten) > MOST:
            self._changed = _nothing()._replace(is_complete=False)
            return changed
        return None


def _nothing() -> Changed:
    return Changed({}, {}, set(), is_complete=True)


class _OwnsLocks(Protocol):
    def after_fork(self) -> None:
        """In a forked child: make new locks, since a thread of the parent may have held the old ones."""


_owners: Registry[_OwnsLocks] = Registry()


def renew_in_child(owner: _OwnsLocks) -> None:
    """Call the owner's `after_fork` in each forked child."""
    _owners.add(owner)


def _after_fork() -> None:
    for owner in _owners.all():
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)
