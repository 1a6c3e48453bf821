"""What a post at a time returns."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, Protocol

from dispatcher.util.foreign import text_of

WAITING: Final = "waiting"
FIRED: Final = "fired"
CANCELLED: Final = "cancelled"
LEFT: Final = "left by the stop"


class Owner(Protocol):
    """The schedule of one dispatcher. Any thread."""

    def cancel(self, one: Scheduled) -> bool: ...

    def unix_due_s(self, one: Scheduled) -> float | None: ...


class Scheduled:
    """An event posted at a time or, with a period, repeatedly. Any thread can use it.

    Of the fields, the schedule's lock guards those that do not say otherwise.
    """

    __slots__ = (
        "_schedule",
        "accepted_seq",
        "context",
        "event",
        "is_queued",
        "jitter",
        "key",
        "make",
        "next_ns",
        "number",
        "period_ns",
        "place",
        "status",
        "wall",
    )

    def __init__(
        self,
        schedule: Owner,
        event: Any,
        *,
        wall: bool,
        next_ns: int,
        period_ns: int = 0,
        make: Callable[[], Any] | None = None,
        jitter: float = 0.0,
        key: str = "",
        place: Callable[[Any], Any] | None = None,
        number: int = 0,
        context: Context | None = None,
    ) -> None:
        # What was scheduled; never changes.
        self._schedule = schedule
        self.context = context  # in which it was scheduled, if the event's class keeps it
        self.event = event  # None if `make` makes it
        self.make = make
        self.wall = wall  # it follows the wall clock
        self.period_ns = period_ns  # 0: it fires once
        self.jitter = jitter  # up to this part of the period later
        self.place = place  # whose queue an event of `make` goes to; None: of the schedule's own
        self.number = number  # of an event that is retrying, and was posted before; 0: it was not
        self.key = key  # under which the journal keeps its rhythm; "": it does not

        self.next_ns = next_ns  # when it fires next by its clock, without jitter
        self.status = WAITING
        self.accepted_seq = 0  # in the write-ahead log, of the event or of the line for the next firing; 0: not there
        self.is_queued = False  # its last event has not begun to be handled; the firing thread sets it, any resets it

    def cancel(self) -> bool:
        """Stop it from firing, or return False if it has fired for the last time.

        In write-ahead mode, that's in the journal with the rows written next.
        """
        return self._schedule.cancel(self)

    @property
    def due(self) -> float | None:
        """Return when it's due next, in Unix seconds, by the clocks as they are now, or None if never again."""
        return self._schedule.unix_due_s(self)

    def is_done(self) -> bool:
        """Whether it won't fire again: it has fired, was cancelled, or the dispatcher has ended."""
        return self.status is not WAITING

    def __repr__(self) -> str:
        what = text_of(self.event) if self.make is None else text_of(self.make)
        again = f" every {self.period_ns / 1e9:g} s" if self.period_ns else ""
        return f"<Scheduled {what}{again}, {self.status}>"
