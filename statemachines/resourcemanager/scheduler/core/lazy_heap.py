"""A heap of items whose keys change while they are in it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LazyHeap(Generic[T]):
    """Items by their `key`, the least first. Each operation costs the logarithm of the size, over a course of them.

    A key that has grown is noticed by itself; after one that has become less, `lessened` must be called.
    """

    __slots__ = ("_entries", "_key", "_tie", "_valid")

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = key
        self._tie = 0  # of the last entry: items are not compared
        self._entries: list[tuple[Any, int, T]] = []
        self._valid: dict[T, tuple[Any, int, T]] = {}  # of the entries of each item, the one that counts

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

    lessened = add

    def discard(self, item: T) -> None:
        self._valid.pop(item, None)
        if not self._valid:
            self._entries.clear()

    def first(self) -> T | None:
        """The item with the least key; None: there is none."""
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
                heapq.heappop(entries)  # it has gone, or has another entry
                continue
            key = self._key(item)
            if key == entry[0]:
                return entry
            self._tie += 1
            entry = valid[item] = (key, self._tie, item)
            heapq.heapreplace(entries, entry)
        return None
