"""The current state of every entity, published by the handler thread and read by any thread.

The handler thread appends a row for each transition. At most four times a second it folds the new rows into the changes
since the last reading, which keep only the last one of each entity. It never waits for a reader. A reader folds the
remaining rows itself and merges the changes into its own tables, so it also sees what a hanging handler has done.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from time import perf_counter_ns
from typing import Final, NamedTuple

from dispatcher.metrics.entities import EntityNow, EntityPage
from dispatcher.metrics.transition_ring import TransitionColumns, TransitionRing
from dispatcher.util.registry import Registry

PUBLISH_EVERY_NS: Final = 250_000_000
_LOOK_EVERY: Final = 256
"""Rows between two looks at the clock."""
GONE: Final = ""
"""The state of an entity that is no longer kept."""

Row = tuple[str, str, str, str, "str | None", int]
"""Entity, machine, state before ("": it was made), event type, state after (None: refused), Unix ns."""


class EntityLog:
    """The entities of one recorder. The handler thread appends rows and calls `look`; any thread calls the rest.

    `ends`: by machine, the states in which an entity is forgotten. `ring`: also gets the transitions; None: they are
    not kept.
    """

    def __init__(
        self,
        ends: Mapping[str, frozenset[str]],
        ring: TransitionRing | None,
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._ends = ends
        self._ring = ring
        self._clock_ns = clock_ns
        # The handler thread appends without a lock; the owner of _lock takes from the front. Each is one step in C.
        self.rows: list[Row] = []
        self.look_at = _LOOK_EVERY  # rows that make the handler thread `look`; handler thread
        self._publish_at_ns = 0  # handler thread
        self._lock = threading.Lock()  # leaf lock; the handler thread only tries it
        self._changes: dict[str, _Changes] = {}  # by machine; guarded by _lock
        self._reading = threading.Lock()  # before _lock; the handler thread never takes it
        self._tables: dict[str, _Table] = {}  # by machine; guarded by _reading
        _logs.add(self)

    def look(self) -> None:
        """Fold the rows unless that was done less than 250 ms ago. Handler thread."""
        now_ns = self._clock_ns()
        if now_ns >= self._publish_at_ns and self._lock.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._lock.release()
            self._publish_at_ns = now_ns + PUBLISH_EVERY_NS
        self.look_at = len(self.rows) + _LOOK_EVERY

    def skips_stays(self) -> bool:
        """Whether transitions that leave the state as it was need no row: only the ring keeps them. Handler thread."""
        return self._ring is None or not self._ring.most

    def is_end(self, machine: str, state: str) -> bool:
        """Whether an entity is forgotten with the transition to this state."""
        return state in self._ends.get(machine, ())

    # -- any thread ------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Move all transitions so far into the ring."""
        with self._lock:
            self._fold()

    def counts(self) -> dict[str, dict[str, int]]:
        """The entities in each state, by machine."""
        with self._reading:
            return {machine: table.counts() for machine, table in self._caught_up().items()}

    def page(self, machine: str, state: str | None, prefix: str, after: str, limit: int) -> EntityPage:
        with self._reading:
            table = self._caught_up().get(machine)
            return EntityPage((), False, 0) if table is None else table.page(machine, state, prefix, after, limit)

    def find(self, entity: str, machine: str | None) -> list[EntityNow]:
        with self._reading:
            tables = self._caught_up()
            return [
                EntityNow(name, entity, found.state, found.at / 1e9)
                for name, table in tables.items()
                if machine in (None, name) and (found := table.states.get(entity)) is not None
            ]

    def _caught_up(self) -> dict[str, _Table]:
        """The tables, up to date. The caller holds `_reading`."""
        with self._lock:
            self._fold()
            changes, self._changes = self._changes, {}
        for machine, changed in changes.items():
            table = self._tables.get(machine)
            if table is None:
                table = self._tables[machine] = _Table()
            table.merge(changed.last)
        return self._tables

    def _fold(self) -> None:
        """Move the rows into the ring and the changes. The caller holds `_lock`; no foreign code runs in here."""
        count = len(self.rows)
        if not count:
            return
        rows = self.rows[:count]
        del self.rows[:count]
        changes = self._changes
        for row in rows:
            after = row[4]
            if after is None or after == row[2]:
                continue  # refused, or it stayed where it was
            changed = changes.get(row[1])
            if changed is None:
                changed = changes[row[1]] = _Changes(self._ends.get(row[1], frozenset()))
            if after in changed.ends:
                changed.forget(row[0])
                continue
            # One that went since the last reading is not new: the reader still has to learn that it went.
            if not row[2] and row[0] not in changed.last:
                changed.made.add(row[0])
            changed.last[row[0]] = row
        ring = self._ring
        if ring is not None and ring.most:
            columns = _columns([row for row in rows if row[2] and row[4] != GONE])
            if columns is not None:
                ring.add(columns)

    def after_fork(self) -> None:
        """In a forked child: make new locks, since a thread of the parent may have held the old ones."""
        self._lock, self._reading = threading.Lock(), threading.Lock()


_logs: Registry[EntityLog] = Registry()


def _after_fork() -> None:
    for log in _logs.all():
        log.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _columns(rows: list[Row]) -> TransitionColumns | None:
    if not rows:
        return None
    # Each by itself: `zip(*rows)` makes an iterator for each row, and so starts the collector among them all.
    entities, machines, from_states, event_types, to_states, at = (map(itemgetter(n), rows) for n in range(6))
    texts = tuple(entities), tuple(machines), tuple(from_states), tuple(event_types), tuple(to_states)
    return TransitionColumns(*texts, array("q", at))


class _Changes:
    """What the reader does not know yet about one machine's entities."""

    __slots__ = ("ends", "last", "made")

    def __init__(self, ends: frozenset[str]) -> None:
        self.ends = ends | {GONE}
        self.last: dict[str, Row | None] = {}  # by entity: the last change; None: it is gone
        self.made: set[str] = set()  # new entities: the reader does not have them

    def forget(self, entity: str) -> None:
        if entity in self.made:  # no reader has to learn of it, and without a reader nothing piles up
            self.made.discard(entity)
            self.last.pop(entity, None)
        else:
            self.last[entity] = None


class _Since(NamedTuple):
    state: str
    at: int
    """Unix ns."""


class _Table:
    """One machine's entities as of the last reading. The owner of `_reading` uses it."""

    def __init__(self) -> None:
        self.states: dict[str, _Since] = {}
        self._ids = SortedIds()
        self._counts: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        return {state: count for state, count in self._counts.items() if count}

    def merge(self, changes: Mapping[str, Row | None]) -> None:
        states, counts = self.states, self._counts
        for entity, row in changes.items():
            before = states.get(entity)
            if before is not None:
                counts[before.state] -= 1
            if row is not None:
                state = str(row[4])
                counts[state] += 1
                states[entity] = _Since(state, row[5])
                if before is None:
                    self._ids.add(entity)
            elif before is not None:
                del states[entity]
                self._ids.remove(entity)

    def page(self, machine: str, state: str | None, prefix: str, after: str, limit: int) -> EntityPage:
        found: list[EntityNow] = []
        for entity in self._ids.following(after, prefix):
            if not entity.startswith(prefix):
                break
            since = self.states[entity]
            if state is None or since.state == state:
                if len(found) == limit:
                    return EntityPage(found, True, self._total(state, prefix))
                found.append(EntityNow(machine, entity, since.state, since.at / 1e9))
        return EntityPage(found, False, self._total(state, prefix))

    def _total(self, state: str | None, prefix: str) -> int | None:
        if prefix:
            return None
        return len(self.states) if state is None else self._counts[state]


class SortedIds:
    """Sorted texts in blocks: adding or removing one moves the rest of its block, not all that follow."""

    _BLOCK: Final = 1000

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []
        self._firsts: list[str] = []  # the first text of each block

    def add(self, text: str) -> None:
        """Add a text, which must not be there yet."""
        if not self._blocks:
            self._blocks, self._firsts = [[text]], [text]
            return
        number = max(0, bisect_right(self._firsts, text) - 1)
        block = self._blocks[number]
        insort(block, text)
        self._firsts[number] = block[0]
        if len(block) > 2 * self._BLOCK:
            rest = block[self._BLOCK :]
            del block[self._BLOCK :]
            self._blocks.insert(number + 1, rest)
            self._firsts.insert(number + 1, rest[0])

    def remove(self, text: str) -> None:
        """Remove a text, which must be there."""
        number = bisect_right(self._firsts, text) - 1
        block = self._blocks[number]
        del block[bisect_left(block, text)]
        if block:
            self._firsts[number] = block[0]
        else:
            del self._blocks[number], self._firsts[number]

    def following(self, after: str, least: str) -> Iterator[str]:
        """The texts greater than `after` and not less than `least`, in order. An empty `after` excludes none."""
        start = max(after, least)
        number = max(0, bisect_right(self._firsts, start) - 1)
        for block in self._blocks[number:]:
            for text in block[bisect_left(block, start) :]:
                if text != after or not after:
                    yield text
