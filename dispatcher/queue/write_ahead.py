"""Write-ahead: events are in the journal before their posts are accepted, and are redelivered after a crash."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any, NamedTuple

from dispatcher.errors import EventNotDeclaredError, InvalidTypeError, JournalError
from dispatcher.journal.format.event_codec import (
    NO_EVENT,
    Current,
    EventCodec,
    Marks,
    in_order_of_acceptance,
    with_marks,
)
from dispatcher.journal.segment_log import ReentrantAppendError
from dispatcher.journal.turns import LaterAppend
from dispatcher.journal.writer import JournalWriter
from dispatcher.util.foreign import text_of

log = logging.getLogger("dispatcher.async_dispatcher")


class RecoveredEvent(NamedTuple):
    """An event of an earlier run that was not handled."""

    accepted_seq: int
    event: Any
    marks: Marks
    order: float
    """Its place among the accepted seqs."""


class WriteAhead:
    """The log of accepted events of one dispatcher, if `is_on`. Any thread, except `take_recovered`."""

    def __init__(self, name: str, journal: JournalWriter | None) -> None:
        """Raises TypeError: `journal` is no JournalWriter."""
        if journal is not None and not isinstance(journal, JournalWriter):
            raise InvalidTypeError(
                f"{name}: journal must be a JournalWriter, not {text_of(journal)}; only a MultiDispatcher takes a "
                "PartitionedJournal"
            )
        self._name = name
        self._journal = journal
        self._codec = EventCodec(name)
        self.journal_path = journal.path if journal is not None else None  # never changes
        self.is_on = journal is not None and journal.config.write_ahead  # never changes
        self.waits_for_disk = (
            self.is_on and journal is not None and journal.config.durability == "sync"
        )  # never changes
        # The events that are on their way into the log and that no thread waits for; any thread reads it.
        self.under_way: Collection[object] = journal.under_way if journal is not None else ()
        # Of an earlier run; read when they are asked for, by one thread at a time, before the start.
        self._recovered: list[Current] | None = None

    def declare(self, event_type: type[Enum], classes: Iterable[type]) -> None:
        """As EventCodec.declare."""
        self._codec.declare(event_type, classes)

    def hold(self) -> None:
        """Accept no event before `release`: posts raise JournalError. Called before a class is declared."""
        self._codec.hold()

    def release(self) -> None:
        self._codec.release()

    def decode(self, line: bytes) -> Any:
        """As EventCodec.decode."""
        return self._codec.decode(line)

    def accept(self, event: Any, marks: Marks | None = None) -> int:
        """Log an event on its producer's thread, which may wait for the disk. Returns its accepted seq; 0: refused.

        Raises:
            EventNotDeclaredError: the class of the event was not declared. JournalError: it cannot be kept, or not yet.
            ReentrantAppendError: the post has interrupted its own thread's use of the journal.
        """
        return self._append(self.encode(event, marks))

    def accept_tick(self, marks: Marks) -> int:
        """As `accept`, for the line of a `post_every` with a key."""
        return self._append(with_marks(NO_EVENT, marks))

    def _append(self, line: bytes) -> int:
        assert self._journal is not None
        try:
            return self._journal.append_accepted(line)
        except ReentrantAppendError:
            raise
        except JournalError:
            return 0  # whatever the failure policy is: an event is accepted only if it is in the log

    def encode(self, event: Any, marks: Marks | None = None) -> bytes:
        """The event's line for `append_later`. Raises as `accept`, but not ReentrantAppendError."""
        try:
            line = self._codec.encode(event)
            return line if marks is None else with_marks(line, marks)
        except AttributeError as error:  # the event has no type
            raise EventNotDeclaredError(self._name, event) from error

    def append_later(self, later: LaterAppend, *, wait: bool) -> None:
        """As JournalWriter.append_later."""
        assert self._journal is not None
        self._journal.append_later(later, wait=wait)

    def is_failed(self) -> bool:
        """The disk has failed, and the journal has ended."""
        return self._journal is not None and self._journal.is_failed

    def settle(self, accepted_seq: int) -> None:
        """Record that the logged event will never be handled; 0: it was not logged."""
        if accepted_seq and self._journal is not None:
            self._journal.settle(accepted_seq)

    def settle_now(self, accepted_seq: int) -> None:
        """As `settle`; on return, that is as durable as a post.

        Raises:
            JournalError: it cannot be recorded.
        """
        if accepted_seq and self._journal is not None:
            self._journal.settle_now(accepted_seq)

    def is_writing_here(self) -> bool:
        """Whether the caller's thread writes a batch of events, so that it must not wait for one of them."""
        return self._journal is not None and self._journal.is_writing_here()

    def next_order(self) -> float:
        """The place of an event that is due now, among the accepted seqs: behind all events that were accepted."""
        return self._journal.log.next_accepted - 0.5 if self.is_on and self._journal is not None else 0

    def recovered(self) -> list[Current]:
        """Before the start: the lines that an earlier run has left, in the order in which it has accepted their events.

        Raises:
            JournalError: they cannot be read, or may still move to other partitions.
        """
        if self._recovered is None:
            self._codec.check_released()
            found = self._journal.recovered if self.is_on and self._journal is not None else ()
            self._recovered = in_order_of_acceptance(found)
        return self._recovered

    def take_recovered(self) -> list[RecoveredEvent]:
        """Before the start, once: the unhandled events of an earlier run, in the order in which it has accepted them.

        Raises:
            JournalError: the class of an event was not declared, or has changed.
        """
        if self._journal is None:
            return []
        current = self.recovered()
        for seq in {each.seq for each in self._journal.recovered} - {each.accepted.seq for each in current}:
            self.settle(seq)
        recovered = [
            RecoveredEvent(accepted.seq, self.decode(accepted.line), marks, order)
            for accepted, marks, order in current
            if marks.has_event
        ]
        self._journal.forget_recovered()
        self._recovered = []
        return recovered
