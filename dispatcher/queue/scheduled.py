"""An event that is posted at a time, or again and again: what the caller of `post_after` and the like gets."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, Protocol

from dispatcher.util.foreign import text_of

WAITING: Final = "waiting"
CLAIMED: Final = "about to be replaced"
FIRED: Final = "fired"
CANCELLED: Final = "cancelled"
LEFT: Final = "left by the stop"


class Owner(Protocol):
    """The schedule of one dispatcher. Any thread."""

    def cancel(self, one: Scheduled) -> bool:
        """Stop it from firing."""

    def claim(self, one: Scheduled) -> bool:
        """Keep it from firing, for a newer one of its key; False: it is done, or another one has claimed it."""

    def give_back(self, one: Scheduled) -> None:
        """The newer one could not be scheduled."""

    def replaced(self, one: Scheduled, by: Scheduled) -> None:
        """It holds its key no longer."""

    def unix_due_s(self, one: Scheduled) -> float | None:
        """When it is due next."""


class Scheduled:
    """An event posted at a time or, with a period, repeatedly. Any thread can use it.

    Of the fields, the schedule's lock guards those that do not say otherwise.
    """

    __slots__ = (
        "_schedule",
        "accepted_seq",
        "context",
        "event",
        "is_left_over",
        "is_queued",
        "is_redelivered",
        "jitter",
        "key",
        "make",
        "next_ns",
        "period_ns",
        "place",
        "replaces",
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
        context: Context | None = None,
        is_redelivered: bool = False,
        is_left_over: bool = False,
    ) -> None:
        # What was scheduled; never changes, but for the event of a key of an earlier run, which comes at the start.
        self._schedule = schedule
        self.is_redelivered = is_redelivered  # an earlier run has scheduled it
        # It holds a key of an earlier run: a rhythm until this run calls `post_every`, an event until the start. It is
        # in no heap, and does not fire.
        self.is_left_over = is_left_over
        self.context = context  # in which it was scheduled, if the event's class keeps it
        self.event = event  # None if `make` makes it
        self.make = make
        self.wall = wall  # it follows the wall clock
        self.period_ns = period_ns  # 0: it fires once
        self.jitter = jitter  # up to this part of the period later
        self.place = place  # whose queue an event of `make` goes to; None: of the schedule's own
        self.key = key  # under which the journal keeps its rhythm; "": it does not

        self.next_ns = next_ns  # when it fires next by its clock, without jitter
        self.status = WAITING
        self.accepted_seq = 0  # in the write-ahead log, of the event or of the line for the next firing; 0: not there
        self.replaces = 0  # the accepted seq of the line that its line takes the place of
        self.is_queued = False  # its last event has not begun to be handled; the firing thread sets it, any resets it

    def cancel(self) -> bool:
        """Stop it from firing, or return False if it has fired for the last time.

        In write-ahead mode, that's in the journal on return, as durable as a post: it doesn't come back after a crash.

        Raises:
            JournalError: it won't fire in this run, but the journal can't be written, so it can after the next start.
            ForkedProcessError: this process is a fork of the one that created the dispatcher.
        """
        return self._schedule.cancel(self)

    def claim(self) -> bool:
        """As Owner.claim."""
        return self._schedule.claim(self)

    def give_back(self) -> None:
        """As Owner.give_back."""
        self._schedule.give_back(self)

    def replaced(self, by: Scheduled) -> None:
        """As Owner.replaced."""
        self._schedule.replaced(self, by)

    @property
    def due(self) -> float | None:
        """Return when it's due next, in Unix seconds, by the clocks as they are now, or None if never again."""
        return self._schedule.unix_due_s(self)

    def is_done(self) -> bool:
        """Whether it won't fire again: it has fired, was cancelled, or the dispatcher has ended."""
        return self.status not in (WAITING, CLAIMED)

    @property
    def is_rhythm(self) -> bool:
        """It is periodic, in this run or as an earlier one has left it."""
        return bool(self.period_ns) or (self.is_left_over and self.event is None and not self.is_redelivered)

    def is_newer_than(self, other: Scheduled) -> bool:
        """Both hold a key, or want to: whether the line of this one is the later one of the two in one log."""
        is_in_one_log = self._schedule is other._schedule
        return self.status is WAITING and is_in_one_log and self.accepted_seq > other.accepted_seq > 0

    def is_of(self, schedule: Owner) -> bool:
        return self._schedule is schedule

    def __repr__(self) -> str:
        what = text_of(self.event) if self.make is None else text_of(self.make)
        again = f" every {self.period_ns / 1e9:g} s" if self.period_ns else ""
        return f"<Scheduled {what}{again}, {self.status}>"
