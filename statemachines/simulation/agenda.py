"""What will happen when, for a great many things to come: a heap, and no future, lock or mail for each.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.util.heap import Stoppable, TimedHeap


class Errand:
    """An actor that is to do one thing, unless it is stopped."""

    __slots__ = ("about", "stopped")

    def __init__(self, about: Any) -> None:
        self.about = about
        self.stopped = False


class Agenda:
    """Calls to be made at their times; those of the same time in the order in which they were entered.

    An entry is not taken back: it is skipped if its actor has been stopped meanwhile.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._calls: TimedHeap[Callable[[Any], None]] = TimedHeap()

    def at(self, time_ms: int, action: Callable[[Any], None], actor: Stoppable) -> None:
        """Have `action(actor)` called at `time_ms`; a time that is over is now, once what is under way is done."""
        self._calls.push(time_ms, action, actor)

    def __len__(self) -> int:
        return len(self._calls)

    def next_deadline_ms(self) -> int | None:
        return self._calls.next_time()

    def expire_due(self) -> None:
        """Make all calls whose time has come, with those that they enter for now."""
        pop_due, now_ms = self._calls.pop_due, self._now_ms()
        while (entry := pop_due(now_ms)) is not None:
            entry[2](entry[3])
