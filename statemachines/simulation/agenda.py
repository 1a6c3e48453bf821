"""Scheduled calls by the million: a heap, without a future, lock or mail for each.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatcher.util.heap import TimedHeap


@dataclass(slots=True, eq=False)
class ScheduledCall:
    """The actor of one call, which it makes unless it is stopped."""

    about: Any
    stopped: bool = False


class Agenda(TimedHeap[Callable[[Any], None]]):
    """Calls by time; calls of the same time in the order of their insertion.

    An entry is never removed: it is skipped if its actor has been stopped.
    """

    __slots__ = ("_now_ms", "must_wait")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._now_ms = now_ms
        self.must_wait: Callable[[], bool] | None = None
        """Asked before each call; while it says so, due calls wait. None: they never do."""

    at = TimedHeap.push
    """`at(time_ms, action, actor)` schedules `action(actor)`; a past time means now."""

    next_deadline_ms = TimedHeap.next_time

    def expire_due(self) -> None:
        """Make all due calls that need not wait, including those that they schedule for now."""
        entries, now_ms, must_wait = self._entries, self._now_ms(), self.must_wait
        while entries and entries[0][0] <= now_ms:  # as pop_due, without a call for each
            if must_wait is not None and must_wait():
                return
            _, _, action, actor = heapq.heappop(entries)
            if not actor.stopped:
                action(actor)
