"""What will happen when, for a great many things to come: a heap, and no future, lock or mail for each.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Protocol


class Actor(Protocol):
    """Somebody with plans."""

    @property
    def stopped(self) -> bool:
        """What it had planned will not happen any more."""


class Errand:
    """An Actor that is to do one thing, unless somebody stops it."""

    __slots__ = ("about", "stopped")

    def __init__(self, about: Any) -> None:
        self.about = about
        self.stopped = False


class Agenda:
    """Calls to be made at their times; those of the same time in the order in which they were entered.

    An entry is not taken back: it is passed over if its actor has been stopped meanwhile.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._order = itertools.count()
        self._heap: list[tuple[int, int, Callable[[Any], None], Actor]] = []

    def at(self, time_ms: int, action: Callable[[Any], None], actor: Actor) -> None:
        """Have `action(actor)` called at `time_ms`; a time that is over is now, once what is under way is done."""
        heapq.heappush(self._heap, (time_ms, next(self._order), action, actor))

    def __len__(self) -> int:
        return len(self._heap)

    def next_deadline_ms(self) -> int | None:
        heap = self._heap
        while heap:
            if not heap[0][3].stopped:
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def expire_due(self) -> None:
        """Make all calls whose time has come, with those that they enter for now."""
        heap, now_ms = self._heap, self._now_ms()
        while heap and heap[0][0] <= now_ms:
            _, _, action, actor = heapq.heappop(heap)
            if not actor.stopped:
                action(actor)
