"""Virtual time, which jumps to the next deadline when the dispatcher is idle.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dispatcher.mailbox import ManualClock


class Deadlines(Protocol):
    """A component with deadlines."""

    def next_deadline_ms(self) -> int | None:
        """The next deadline; None: none is set."""

    def expire_due(self) -> None:
        """Do everything that is due now."""


class VirtualTime:
    def __init__(self, clock: ManualClock, deadlines: tuple[Deadlines, ...], has_work: Callable[[], bool]) -> None:
        """`has_work`: whether work is left at the current time. Only such work changes the `deadlines`."""
        self._clock = clock
        self._agenda: Deadlines | None = None
        self._deadlines = deadlines
        self._has_work = has_work

    def follow(self, agenda: Deadlines) -> None:
        """Process `agenda` as well, before timers and deadlines of the same time."""
        self._agenda = agenda

    def jump(self) -> bool:
        """Advance until there is work, processing deadlines on the way; False if no deadline is left."""
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
        """The time of the next timer or deadline, and the monitors that have that deadline."""
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
        """Process the agenda up to `limit_ms`, or until there is work; returns whether there is."""
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
