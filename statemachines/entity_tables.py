"""The current state of every entity, as any thread lists it.

Machines' threads fold the rows of the log into the changes since the last reading, which keep only the last one of each
entity. A reader merges these into the tables, without keeping the machines' threads waiting.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from dispatcher.metrics.entities import EntityNow, EntityPage
from statemachines.changes import GONE, ChangeLog, Row, renew_in_child

_RARE: Final = 4
"""Entities in a state are looked for in all of them, and not in order, if so many times more are in others."""


class EntityTables:
    """The entities of one recorder: a follower of its log. Any thread.

    `ends`: by machine, the states in which an entity is forgotten.
    """

    def __init__(self, log: ChangeLog, ends: Mapping[str, frozenset[str]]) -> None:
        self._log = log
        self._ends = ends
        self._changes: dict[str, _Changes] = {}  # by machine; guarded by the log's lock
        self._reading = threading.Lock()  # before the log's; machines' threads never take it
        self._tables: dict[str, _EntityTable] = {}  # by machine; guarded by _reading
        renew_in_child(self)

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
                _now(name, entity, found)
                for name, table in tables.items()
                if machine in (None, name) and (found := table.states.get(entity)) is not None
            ]

    def _caught_up(self) -> dict[str, _EntityTable]:
        """The tables, up to date. The caller holds `_reading`."""
        with self._log.caught_up():
            changes, self._changes = self._changes, {}
        for machine, changed in changes.items():
            table = self._tables.get(machine)
            if table is None:
                table = self._tables[machine] = _EntityTable()
            table.merge(changed.last)
        return self._tables

    def add(self, rows: Sequence[Row]) -> None:
        """See RowFollower."""
        changes = self._changes
        for row in rows:
            before, after = row[2], row[4]
            if after is None or after == before:
                continue  # refused, or it stayed where it was
            changed = changes.get(row[1])
            if changed is None:
                changed = changes[row[1]] = _Changes(self._ends.get(row[1], frozenset()))
            if after == GONE or after in changed.ends:
                if before not in changed.ends:  # else it went with the transition to that state
                    changed.forget(row[0])
                continue
            # One that went since the last reading is not new: the reader still has to learn that it went.
            if not before and row[0] not in changed.last:
                changed.made.add(row[0])
            changed.last[row[0]] = after, row[5], row[3]

    def after_fork(self) -> None:
        self._reading = threading.Lock()


Since = tuple[str, int, str]
"""A state, the Unix ns at which it began, and the type of the event that led to it; empty if it was made in it."""


def _now(machine: str, entity: str, since: Since) -> EntityNow:
    state, at, event_type = since
    return EntityNow(machine, entity, state, at / 1e9, last_event=event_type or None)


class _Changes:
    """What the reader does not know yet about one machine's entities."""

    __slots__ = ("ends", "last", "made")

    def __init__(self, ends: frozenset[str]) -> None:
        self.ends = ends
        self.last: dict[str, Since | None] = {}  # by entity: its present state; None: it is gone
        self.made: set[str] = set()  # new entities: the reader does not have them

    def forget(self, entity: str) -> None:
        if entity in self.made:  # no reader has to learn of it, and without a reader nothing piles up
            self.made.discard(entity)
            self.last.pop(entity, None)
        else:
            self.last[entity] = None


class _EntityTable:
    """One machine's entities as of the last reading. The owner of `_reading` uses it."""

    def __init__(self) -> None:
        self.states: dict[str, Since] = {}
        self._ids = SortedIds()
        self._counts: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        return {state: count for state, count in self._counts.items() if count}

    def merge(self, changes: Mapping[str, Since | None]) -> None:
        states, counts, new = self.states, self._counts, []
        for entity, since in changes.items():
            before = states.get(entity)
            if before is not None:
                counts[before[0]] -= 1
            if since is not None:
                counts[since[0]] += 1
                states[entity] = since
                if before is None:
                    new.append(entity)
            elif before is not None:
                del states[entity]
                self._ids.remove(entity)
        self._ids.add_all(new)

    def page(self, machine: str, state: str | None, prefix: str, after: str, limit: int) -> EntityPage:
        found: list[EntityNow] = []
        states = self.states
        for entity in self._ids.following(after, prefix) if state is None else self._in_state(state, after, prefix):
            if not entity.startswith(prefix):
                break
            since = states[entity]
            if state is None or since[0] == state:
                if len(found) == limit:
                    return EntityPage(found, True, self._total(state, prefix))
                found.append(_now(machine, entity, since))
        return EntityPage(found, False, self._total(state, prefix))

    def _in_state(self, state: str, after: str, prefix: str) -> Iterable[str]:
        """Ids in order, among them all in this state that follow."""
        if not self._counts[state]:
            return ()
        if self._counts[state] * _RARE > len(self.states):
            return self._ids.following(after, prefix)
        # The walk in order could pass over all others.
        found = [entity for entity, since in self.states.items() if since[0] == state]
        return sorted(entity for entity in found if entity.startswith(prefix) and (entity > after or not after))

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

    def add_all(self, texts: Sequence[str]) -> None:
        """Add texts, none of which may be there yet."""
        if len(texts) * 8 < len(self._firsts) * self._BLOCK:
            for text in texts:
                self.add(text)
        elif texts:
            every = sorted(chain(texts, *self._blocks))
            self._blocks = [every[first : first + self._BLOCK] for first in range(0, len(every), self._BLOCK)]
            self._firsts = [block[0] for block in self._blocks]

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
