"""An event that is posted at a time, or again and again: what the caller of `post_after` and the like gets."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, Protocol

from dispatcher.queue.rules import Every, FiringRule
from dispatcher.util.foreign import text_of

WAITING: Final = "waiting"
CLAIMED: Final = "about to be replaced"
FIRED: Final = "fired"
CANCELLED: Final = "cancelled"
LEFT: Final = "left by the stop"


class ScheduledOwner(Protocol):
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

    def unix_last_s(self, one: Scheduled) -> float | None:
        """When it was due when it was posted last."""


class Scheduled:
    """An event posted at a time or, with a rule, repeatedly: a ScheduledEvent. Any thread can use it.

    Of the fields, the schedule's lock guards those that do not say otherwise.
    """

    __slots__ = (
        "accepted_seq",
        "context",
        "delay_ns",
        "event",
        "is_left_over",
        "is_queued",
        "is_redelivered",
        "key",
        "last_ns",
        "line",
        "makes",
        "next_ns",
        "order",
        "place",
        "repeats",
        "replaces",
        "schedule",
        "status",
        "wall",
    )

    def __init__(
        self,
        schedule: ScheduledOwner,
        event: Any,
        *,
        wall: bool,
        next_ns: int,
        repeats: FiringRule | None = None,
        makes: bool = False,
        key: str = "",
        line: bytes = b"",
        place: Callable[[Any], Any] | None = None,
        context: Context | None = None,
        is_redelivered: bool = False,
        is_left_over: bool = False,
    ) -> None:
        # What was scheduled; never changes, but for the event of a key of an earlier run, which comes at the start.
        self.schedule: ScheduledOwner = schedule
        self.is_redelivered: bool = is_redelivered  # an earlier run has scheduled it
        # It holds a key of an earlier run: an event until the start, and a rhythm whose event is not known until this
        # run calls `post_every`. It is in no heap, and does not fire.
        self.is_left_over: bool = is_left_over
        self.context: Context | None = context  # in which it was scheduled, if the event's class keeps it
        self.event: Any = event  # or the factory that makes it; None: that is not known
        self.makes: bool = makes  # `event` is a factory
        self.wall: bool = wall  # it follows the wall clock
        self.repeats: FiringRule | None = repeats  # when it fires; None: once, or an earlier release has not written it
        self.place: Callable[[Any], Any] | None = place  # whose queue an event of a factory goes to
        self.key: str = key  # under which the journal keeps it; "": only until it has fired
        self.line: bytes = line  # of a rhythm in the write-ahead log, without its marks

        self.next_ns: int = next_ns  # when it fires next by its clock
        self.delay_ns: int = 0  # for how long that is delayed
        self.last_ns: int = 0  # the time, by its clock, that it has posted last; 0: none
        self.order: int = -1  # of its entry in the heap
        self.status: str = WAITING
        self.accepted_seq: int = 0  # in the write-ahead log, of the event or of the line for the next firing; 0: none
        self.replaces: int = 0  # the accepted seq of the line that its line takes the place of
        self.is_queued: bool = False  # its last event waits; the firing thread sets it, any resets it

    def cancel(self) -> bool:
        """Stop it from firing, or return False if it has fired for the last time.

        In write-ahead mode, that's in the journal on return, as durable as a post: it doesn't come back after a crash.

        Raises:
            JournalError: it won't fire in this run, but the journal can't be written, so it can after the next start.
            ForkedProcessError: this process is a fork of the one that created the dispatcher.
        """
        return self.schedule.cancel(self)

    @property
    def due(self) -> float | None:
        """Return when it's due next, in Unix seconds, by the clocks as they are now, or None if never again."""
        return self.schedule.unix_due_s(self)

    @property
    def last_fired(self) -> float | None:
        """Return the last time that was posted, in Unix seconds, also by an earlier run, or None if none was."""
        return self.schedule.unix_last_s(self)

    @property
    def rule(self) -> dict[str, Any]:
        """Return the arguments of `post_every` that say when it fires, or {} if it fires once."""
        return self.repeats.arguments() if self.repeats is not None else {}

    def is_done(self) -> bool:
        """Whether it won't fire again: it has fired, was cancelled, or the dispatcher has ended."""
        return self.status not in (WAITING, CLAIMED)

    @property
    def is_rhythm(self) -> bool:
        """It is periodic, in this run or as an earlier one has left it."""
        return self.repeats is not None or (self.is_left_over and not self.is_redelivered)

    def has_rhythm_of(self, rule: FiringRule) -> bool:
        """Whether a newer one with this rule goes on with it."""
        if self.repeats is None:  # earlier releases had periods only, and did not write them
            return self.is_rhythm and isinstance(rule, Every)
        return self.repeats.rhythm == rule.rhythm

    @property
    def is_logged(self) -> bool:
        """It is a rhythm that has a line in the write-ahead log."""
        return bool(self.line)

    def is_newer_than(self, other: Scheduled) -> bool:
        """Both hold a key, or want to: whether the line of this one is the later one of the two in one log."""
        is_in_one_log = self.schedule is other.schedule
        return self.status is WAITING and is_in_one_log and self.accepted_seq > other.accepted_seq > 0

    def __repr__(self) -> str:
        again = f" {self.repeats}" if self.repeats is not None else ""
        return f"<Scheduled {text_of(self.event)}{again}, {self.status}>"
