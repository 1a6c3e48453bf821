"""Scheduled calls by the million, without a future, lock or mail for each.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Actor(Protocol):
    """Something that makes scheduled calls until it is stopped."""

    @property
    def stopped(self) -> bool: ...


@dataclass(slots=True, eq=False)
class ScheduledCall:
    """The actor of one call, which it makes unless it is stopped."""

    about: Any
    stopped: bool = False


class Agenda:
    """Calls by time; calls of the same time in the order of their insertion.

    No call is removed before its time: it is skipped if its actor has been stopped. Thousands of calls have the same
    time, as nodes send their heartbeats in a few phases, so the heap has each time once, and no entry for each call.
    """

    __slots__ = ("_calls", "_now_ms", "_times", "must_wait")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._times: list[int] = []  # a heap
        self._calls: dict[int, list[tuple[Callable[[Any], None], Actor]]] = {}  # by time, as in _times
        self.must_wait: Callable[[], bool] | None = None
        """Asked before each call; while it says so, due calls wait. None: they never do."""

    def at(self, time_ms: int, action: Callable[[Any], None], actor: Actor) -> None:
        """Schedule `action(actor)`; a past time means now."""
        calls = self._calls.get(time_ms)
        if calls is not None:
            calls.append((action, actor))
        else:
            self._calls[time_ms] = [(action, actor)]
            heapq.heappush(self._times, time_ms)

    def next_deadline_ms(self) -> int | None:
        """The time of the first call whose actor has not been stopped; None if there is no such call."""
        times, calls = self._times, self._calls
        while times:
            time_ms = times[0]
            for _, actor in calls[time_ms]:
                if not actor.stopped:
                    return time_ms
            del calls[heapq.heappop(times)]
        return None

    def expire_due(self) -> None:
        """Make all due calls that need not wait, including those that they schedule for now."""
        times, now_ms = self._times, self._now_ms()
        while times and times[0] <= now_ms and self._make_calls(times[0]):
            pass

    def _make_calls(self, time_ms: int) -> bool:
        """Make the calls of the first time, until one of them has scheduled an earlier call; False: the rest must wait.

        An action may raise: its call has been made then.
        """
        times, must_wait = self._times, self.must_wait
        # Taken out while they are made. What they schedule for this time goes into another list, which comes next.
        due = self._calls.pop(heapq.heappop(times))
        made = 0
        try:
            for action, actor in due:
                if must_wait is not None and must_wait():
                    return False
                made += 1
                if not actor.stopped:
                    action(actor)
                    if times and times[0] < time_ms:
                        break
        finally:
            if made < len(due):
                if time_ms not in self._calls:
                    heapq.heappush(times, time_ms)
                self._calls[time_ms] = due[made:] + self._calls.get(time_ms, [])
        return True
