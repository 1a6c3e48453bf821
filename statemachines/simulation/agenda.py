"""What will happen when, for a great many things to come: a heap, and no future, lock or mail for each.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Protocol


class Deadlines(Protocol):
    """Something that has to be looked at when its time comes."""

    def next_deadline_ms(self) -> int | None:
        """When it is to be looked at next; None: not for the time being."""

    def expire_due(self) -> None:
        """Do all that is due now."""


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


class VirtualTime:
    """Jumps a clock from one thing to come to the next, whenever nothing else is left to do."""

    def __init__(
        self, clock: VirtualClock, agenda: Agenda, deadlines: tuple[Deadlines, ...], has_work: Callable[[], bool]
    ) -> None:
        """`has_work`: whether something is left to do before time may go on. Only that changes the `deadlines`."""
        self._clock = clock
        self._agenda = agenda
        self._deadlines = deadlines
        self._has_work = has_work

    def jump(self) -> bool:
        """Go on to where there is work to do, and do what is due on the way; False if there never will be any."""
        while True:
            limit_ms, due = self._nearest()
            if self._follow_agenda(limit_ms):
                return True
            if limit_ms is None:
                return False
            self._go_to(limit_ms)
            for each in due:
                each.expire_due()
            if self._has_work():
                return True

    def _nearest(self) -> tuple[int | None, list[Deadlines]]:
        """The next timer's or deadline's time, and whose deadline it is."""
        nearest_ms = self._clock.next_timer_ms()
        due: list[Deadlines] = []
        for each in self._deadlines:
            deadline_ms = each.next_deadline_ms()
            if deadline_ms is None or (nearest_ms is not None and deadline_ms > nearest_ms):
                continue
            if deadline_ms != nearest_ms:
                nearest_ms, due = deadline_ms, []
            due.append(each)
        return nearest_ms, due

    def _follow_agenda(self, limit_ms: int | None) -> bool:
        """Do what is in the agenda before `limit_ms`, until there is work to do; says whether there is."""
        agenda = self._agenda
        while True:
            next_ms = agenda.next_deadline_ms()
            if next_ms is None or (limit_ms is not None and next_ms > limit_ms):
                return False
            self._go_to(next_ms)
            agenda.expire_due()
            if self._has_work():
                return True

    def _go_to(self, time_ms: int) -> None:
        self._clock.advance(max(0, time_ms - self._clock.current_processing_time()))


class VirtualClock(Protocol):
    """What VirtualTime needs of a ManualClock."""

    def current_processing_time(self) -> int: ...

    def next_timer_ms(self) -> int | None: ...

    def advance(self, ms: int) -> None: ...
