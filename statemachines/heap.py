"""A heap that skips superseded entries when they reach the top, instead of removing them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_SUPERSEDED_KEPT = 64
"""The number of superseded entries that is not worth a clean-up."""


class LazyHeap(Generic[T]):
    """Items by their `key`, the least first. Each operation costs amortized O(log n).

    The heap notices a key that has grown; after one has become less, the caller must call `lessened`.
    """

    __slots__ = ("_entries", "_key", "_tie", "_valid")

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = key
        self._tie = 0  # of the last entry: items are not compared
        self._entries: list[tuple[Any, int, T]] = []
        self._valid: dict[T, tuple[Any, int, T]] = {}  # the current entry of each item

    def __len__(self) -> int:
        return len(self._valid)

    def __iter__(self) -> Iterator[T]:
        return iter(self._valid)

    def __contains__(self, item: T) -> bool:
        return item in self._valid

    def add(self, item: T) -> None:
        """Add an item, or note that its key has become less."""
        key = self._key(item)
        before = self._valid.get(item)
        if before is not None and before[0] <= key:
            return
        self._tie += 1
        entry = self._valid[item] = (key, self._tie, item)
        heapq.heappush(self._entries, entry)
        if len(self._entries) > 2 * len(self._valid) + _SUPERSEDED_KEPT:
            self._drop_superseded()

    lessened = add

    def discard(self, item: T) -> None:
        """Remove an item; nothing if it is not there."""
        self._valid.pop(item, None)
        if not self._valid:
            self._entries.clear()
        elif len(self._entries) > 2 * len(self._valid) + _SUPERSEDED_KEPT:
            self._drop_superseded()

    def first(self) -> T | None:
        """The item with the least key; None if the heap is empty."""
        if len(self._valid) == 1:
            return next(iter(self._valid))  # whatever its key
        entry = self.least()
        return entry[2] if entry is not None else None

    def least(self) -> tuple[Any, int, T] | None:
        """The entry of the first item: its key comes first, the item last."""
        entries, valid = self._entries, self._valid
        while entries:
            entry = entries[0]
            item = entry[2]
            if valid.get(item) is not entry:
                heapq.heappop(entries)  # the item is gone, or has a newer entry
                continue
            key = self._key(item)
            if key == entry[0]:
                return entry
            self._tie += 1
            entry = valid[item] = (key, self._tie, item)
            heapq.heapreplace(entries, entry)
        return None

    def _drop_superseded(self) -> None:
        """Keep the heap's size in proportion to its items, however often they change."""
        self._entries[:] = self._valid.values()
        heapq.heapify(self._entries)
