"""Looking at a heap without changing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


def in_order(heap: Sequence[T]) -> Iterator[T]:
    """The items of a heap from the smallest on: the first few cost no more than themselves, however long it is.

    No two items are equal in their first two parts.

    >>> list(in_order([(1, 0), (3, 1), (2, 2), (4, 3)]))
    [(1, 0), (2, 2), (3, 1), (4, 3)]
    """
    places: list[tuple[Any, int]] = [(heap[0][:2], 0)] if heap else []
    while places:
        _, place = heappop(places)
        yield heap[place]
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heappush(places, (heap[child][:2], child))
