"""Write-ahead: events are in the journal before their posts are accepted, and are redelivered after a crash."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any, NamedTuple

from dispatcher.errors import EventNotDeclaredError, InvalidTypeError, JournalError
from dispatcher.journal.format.event_codec import NO_EVENT, EventCodec, Marks, current_marks, marks_of, with_marks
from dispatcher.journal.segment_log import ReentrantAppendError
from dispatcher.journal.turns import LaterAppend
from dispatcher.journal.writer import JournalWriter
from dispatcher.util.foreign import set_on, tell, text_of

log = logging.getLogger("dispatcher.async_dispatcher")


class RecoveredEvent(NamedTuple):
    """An event of an earlier run that was not handled."""

    accepted_seq: int
    event: Any
    marks: Marks


class Tick(NamedTuple):
    """When a `post_every` with a key is due next. Times are Unix ns."""

    accepted_seq: int
    due_ns: int
    fired_ns: int
    """The latest time for which its event is in the log; 0: none is."""


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
        # The events that are on their way into the log and that no thread waits for; any thread reads it.
        self.under_way: Collection[object] = journal.under_way if journal is not None else ()
        # By key; read from the log when one is asked for; any thread takes them, in single steps.
        self._ticks: dict[str, Tick] | None = None
        self._keeps_ticks = False  # set before the start

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

    def accept(self, event: Any, marks: Marks | None = None, *, alone: bool = False) -> int:
        """Log an event on its producer's thread, which may wait for the disk. Returns its accepted seq; 0: refused.

        `alone`: the caller holds a lock of the queue, so it must not wait for other producers.

        Raises:
            EventNotDeclaredError: the class of the event was not declared. JournalError: it cannot be kept, or not yet.
            ReentrantAppendError: the post has interrupted its own thread's use of the journal.
        """
        return self._append(self.encode(event, marks), alone=alone)

    def accept_tick(self, marks: Marks) -> int:
        """As `accept`, for the line of a `post_every` with a key."""
        return self._append(with_marks(NO_EVENT, marks))

    def _append(self, line: bytes, *, alone: bool = False) -> int:
        assert self._journal is not None
        try:
            return self._journal.append_accepted(line, alone=alone)
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

    def take_tick(self, key: str) -> Tick | None:
        """When an earlier run would have posted next for the key; None: unknown. The answer is given once."""
        if self._ticks is None:
            self._ticks = self._read_ticks()
        return self._ticks.pop(key, None)

    def keep_ticks(self) -> None:
        """Before the start: another program, whose keys they are, will ask for those that this one does not."""
        self._keeps_ticks = True

    def forget_ticks(self) -> None:
        """At the end of a run: drop the rhythm of keys that the program did not ask for. They would keep segments."""
        while self._ticks and not self._keeps_ticks:
            with contextlib.suppress(KeyError):  # another thread takes it
                key, tick = self._ticks.popitem()
                self.settle(tick.accepted_seq)
                message = "%s: post_every(key=%r) was not called in this run; its rhythm is forgotten"
                tell(log, logging.INFO, message, self._name, key, extra={"dispatcher": self._name})

    def put_tick(self, key: str, tick: Tick) -> None:
        """Have `take_tick` return this for the key."""
        self._ticks = self._ticks or {}
        self._ticks[key] = tick

    def _read_ticks(self) -> dict[str, Tick]:
        ticks: dict[str, Tick] = {}
        fired: dict[str, int] = {}
        for accepted in self._journal.recovered if self.is_on and self._journal is not None else ():
            marks = marks_of(accepted.line)
            if not marks.has_event:
                ticks[marks.key] = Tick(accepted.seq, marks.due_ns, 0)  # a later line replaces an earlier one
            elif marks.key:
                fired[marks.key] = max(fired.get(marks.key, 0), marks.fired_ns)
        return {key: tick._replace(fired_ns=fired.get(key, 0)) for key, tick in ticks.items()}

    def take_recovered(self) -> list[RecoveredEvent]:
        """Before the start, once: the unhandled events of an earlier run, oldest first.

        Raises:
            JournalError: the class of an event was not declared, or has changed.
        """
        if self._journal is None:
            return []
        if self._ticks is None:
            self._ticks = self._read_ticks()
        current = current_marks(self._journal.recovered)
        recovered = []
        for accepted in self._journal.recovered:
            marks = current.get(accepted.seq)
            if marks is None:
                self.settle(accepted.seq)
            elif marks.has_event:
                recovered.append(RecoveredEvent(accepted.seq, self.decode(accepted.line), marks))
        for _, event, _ in recovered:
            set_on(event, "redelivered", True)
        self._journal.forget_recovered()
        return recovered
