"""Time that jumps from one deadline to the next, whenever nothing else is left to do.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Deadlines(Protocol):
    """Something that has to be looked at when its time comes."""

    def next_deadline_ms(self) -> int | None:
        """When it is to be looked at next; None: not for the time being."""

    def expire_due(self) -> None:
        """Do all that is due now."""


class VirtualClock(Protocol):
    """What VirtualTime needs of a ManualClock."""

    def current_processing_time(self) -> int: ...

    def next_timer_ms(self) -> int | None: ...

    def advance(self, ms: int) -> None: ...


class VirtualTime:
    """Jumps a clock to the next timer or deadline."""

    def __init__(self, clock: VirtualClock, deadlines: tuple[Deadlines, ...], has_work: Callable[[], bool]) -> None:
        """`has_work`: whether something is left to do before time may go on. Only that changes the `deadlines`."""
        self._clock = clock
        self._agenda: Deadlines | None = None
        self._deadlines = deadlines
        self._has_work = has_work

    def follow(self, agenda: Deadlines) -> None:
        """Do what is in `agenda` from now on, before timers and deadlines of the same time."""
        self._agenda = agenda

    def jump(self) -> bool:
        """Go on to where there is work to do, and do what is due on the way; False if there never will be any."""
        while True:
            limit_ms, due = self._nearest()
            if self._agenda is not None and self._do_agenda(self._agenda, limit_ms):
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

    def _do_agenda(self, agenda: Deadlines, limit_ms: int | None) -> bool:
        """Do what is in the agenda until `limit_ms`, or until there is work to do; returns whether there is."""
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
