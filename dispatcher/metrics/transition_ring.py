"""The last transitions of the process, for the history of an entity where there is no journal.

It keeps them in chunks of columns, which take a third of the memory that a tuple for each would: 200,000 of them take
less than 32 MB with ids of 40 characters, even if no two are about the same entity.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

KEPT: Final = 200_000
"""Transitions that a door keeps by default."""


class KeptTransition(NamedTuple):
    """One transition of the ring."""

    number: int
    """Of all transitions added to the ring, from 1."""
    entity: str
    machine: str
    from_state: str
    event_type: str
    to_state: str
    """The same as `from_state` if it is not valid."""
    at: int
    """Unix ns on the run's clock."""
    valid: bool


class KeptHistory(NamedTuple):
    """What the ring has of one entity."""

    transitions: list[KeptTransition]
    """The newest first."""
    has_more: bool
    is_whole: bool
    """The ring has not forgotten any transition, of any entity."""


class _Columns(NamedTuple):
    """Transitions in the order in which they were made, by column. Never changed."""

    entities: Sequence[str]
    machines: Sequence[str]
    from_states: Sequence[str]
    event_types: Sequence[str]
    to_states: Sequence[str | None]
    """None: the event was refused."""
    at: array[int]

    def without_first(self, count: int) -> _Columns:
        return _Columns._make(column[count:] for column in self)


class TransitionRing:
    """Keeps the last transitions that were added, at most `most`; 0 keeps none. Any thread."""

    def __init__(self, most: int = 0) -> None:
        self._lock = threading.Lock()  # leaf lock; nobody waits for anything while holding it
        self._chunks: deque[tuple[int, _Columns]] = deque()  # guarded by _lock; with their first numbers
        self._added = 0  # guarded by _lock
        self._size = 0  # guarded by _lock: transitions in the chunks
        self.most: int = most
        """Set by `resize`, under _lock; any thread reads it."""

    def resize(self, most: int) -> None:
        """Keep at most `most` from now on."""
        with self._lock:
            self.most = most
            self._trim()

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add the rows that have an event type. A ring that is switched off only counts all rows.

        A row: entity, machine, state before, event type, state after, Unix ns; further values are ignored. The state
        after is None if the event was rejected.
        """
        if self.most:
            rows = [row for row in rows if row[3]]
        count = len(rows)
        with self._lock:
            self._added += count
            if count and self.most:
                self._chunks.append((self._added - count + 1, _columns(rows)))
                self._size += count
                self._trim()

    def size(self) -> int:
        return self._size

    def history(
        self,
        entity: str,
        machine: str | None = None,
        *,
        limit: int = 100,
        before: int | None = None,
        changes_only: bool = False,
    ) -> KeptHistory:
        """The transitions of an entity, the newest first, from the one before number `before`.

        `changes_only`: only those from one state into another.

        It walks the whole ring, which takes a few milliseconds.
        """
        with self._lock:
            chunks, is_whole = tuple(self._chunks), self._size == self._added
            forgotten = self._added - min(self._size, self.most)  # the oldest chunk may still hold some of them
        rows = _newest_first(chunks, entity, machine, before)
        found = list(islice((row for row in rows if not changes_only or row.from_state != row.to_state), limit + 1))
        found = [each for each in found if each.number > forgotten]
        return KeptHistory(found[:limit], len(found) > limit, is_whole)

    def _trim(self) -> None:
        """Forget chunks whose transitions are all beyond `most`; cut the chunk of which only some are."""
        while self._chunks and self._size > self.most:
            first, columns = self._chunks[0]
            surplus, count = self._size - self.most, len(columns.at)
            if surplus >= count:
                self._chunks.popleft()
                self._size -= count
            elif surplus * 4 >= count:  # not for a few: each cut copies the rest
                cut = columns.without_first(surplus)
                self._chunks[0] = (first + surplus, cut)
                self._size -= surplus
            else:
                return

    def after_fork(self) -> None:
        """In a forked child: make a new lock, since a thread of the parent may have held the old one."""
        self._lock = threading.Lock()


def _columns(rows: Sequence[tuple[Any, ...]]) -> _Columns:
    # One pass for each column: `zip(*rows)` would make an iterator for each row, and so start the garbage collector.
    entities, machines, from_states, event_types, to_states, at = (map(itemgetter(n), rows) for n in range(6))
    texts = tuple(entities), tuple(machines), tuple(from_states), tuple(event_types), tuple(to_states)
    return _Columns(*texts, array("q", at))


def _newest_first(
    chunks: Sequence[tuple[int, _Columns]], entity: str, machine: str | None, before: int | None
) -> Iterator[KeptTransition]:
    for first, columns in reversed(chunks):
        if before is not None and first >= before:
            continue
        if entity not in columns.entities:  # in C
            continue
        for position in range(len(columns.at) - 1, -1, -1):
            if columns.entities[position] != entity or (before is not None and first + position >= before):
                continue
            if machine is None or columns.machines[position] == machine:
                yield _row(first + position, columns, position)


def _row(number: int, columns: _Columns, position: int) -> KeptTransition:
    from_state, to_state = columns.from_states[position], columns.to_states[position]
    return KeptTransition(
        number,
        columns.entities[position],
        columns.machines[position],
        from_state,
        columns.event_types[position],
        from_state if to_state is None else to_state,
        columns.at[position],
        to_state is not None,
    )


ring: Final = TransitionRing()
"""The ring of the process. A door switches it on."""
os.register_at_fork(after_in_child=ring.after_fork)
