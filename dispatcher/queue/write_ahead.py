"""Write-ahead: events are in the journal before their posts are accepted, and are redelivered after a crash."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import Context, ContextVar
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatcher.errors import EventNotDeclaredError, InvalidTypeError, InvalidValueError, JournalError
from dispatcher.journal.format.marks import Marks
from dispatcher.journal.turns import LaterAppend, ReentrantAppendError
from dispatcher.util.foreign import class_name, register_call, tell, text_of, type_of
from dispatcher.util.functions import require_kind

if TYPE_CHECKING:
    from pathlib import Path

    from dispatcher.journal.format.event_codec import Current, EventCodec
    from dispatcher.journal.writer import JournalWriter

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

_PLAIN: Final = Marks()
_MOST_CARRIED: Final = 16
_LONGEST_TEXT: Final = 1024

Values = list[list[str]]
"""Pairs of a context variable's name and its value."""


class RecoveredEvent(NamedTuple):
    """An event of an earlier run that was not handled."""

    accepted_seq: int
    event: Any
    marks: Marks
    order: float
    """Its place among the accepted seqs."""


class Carried:
    """The context variables whose values go into the log with an event, and come back with it. Any thread."""

    def __init__(self, name: str, variables: Iterable[ContextVar[str]]) -> None:
        """
        Raises:
            TypeError: not all of them are ContextVars. ValueError: there are too many, or two have the same name.
        """
        self._name = name  # never changes
        self._variables: dict[str, ContextVar[str]] = {}  # by name; never changes
        self._warned: set[str] = set()  # variables whose value was left out; any thread adds
        require_kind(variables, "carry", ContextVar, Iterable)
        for each in (variables,) if isinstance(variables, ContextVar) else variables:
            if not isinstance(each, ContextVar):
                raise InvalidTypeError(f"{name}: carry is a list of ContextVars, and has {text_of(each)}")
            if each.name in self._variables:
                raise InvalidValueError(
                    f"{name}: carry has two variables named {each.name}; the journal tells them apart by their names"
                )
            self._variables[each.name] = each
        if len(self._variables) > _MOST_CARRIED:
            raise InvalidValueError(
                f"{name}: carry has {len(self._variables)} variables, and {_MOST_CARRIED} are the maximum"
            )

    def values_in(self, context: Context) -> Values | None:
        """The values of a post's context that are logged; None if the post has none."""
        if not self._variables:
            return None
        found = [[name, value] for name, each in self._variables.items() if (value := context.get(each)) is not None]
        return [pair for pair in found if self._fits(*pair)] or None

    def _fits(self, name: str, value: object) -> bool:
        if type(value) is str and len(value) <= _LONGEST_TEXT:
            return True
        if name not in self._warned:
            self._warned.add(name)
            what = f"a str of {len(value):,} characters" if type(value) is str else f"of the type {class_name(value)}"
            message = "%s: the journal doesn't carry %s, which is %s; it carries a str of up to %d characters"
            tell(log, logging.WARNING, message, self._name, name, what, _LONGEST_TEXT, extra={"dispatcher": self._name})
        return False

    def context_of(self, values: Values | None) -> Context | None:
        """A context in which the variables have these values, or None without values."""
        if not values or not self._variables:
            return None
        context = Context()
        for name, value in values:
            if (variable := self._variables.get(name)) is not None:
                context.run(variable.set, value)
        return context


class WriteAhead:
    """The log of accepted events of one dispatcher, if `is_on`. Any thread, except `take_recovered`."""

    def __init__(self, name: str, journal: JournalWriter | None, carry: Iterable[ContextVar[str]] = ()) -> None:
        """Raises TypeError: `journal` is no JournalWriter. TypeError, ValueError: Carried rejects `carry`."""
        self._name = name
        self._carried = Carried(name, carry)  # never changes
        self._journal = journal
        if journal is not None:
            from dispatcher.journal.writer import JournalWriter

            if not isinstance(journal, JournalWriter):
                raise InvalidTypeError(
                    f"{name}: journal must be a JournalWriter, not {text_of(journal)}; only a MultiDispatcher takes a "
                    "PartitionedJournal"
                )
        self.journal_path: Path | None = journal.path if journal is not None else None  # never changes
        self.is_on: bool = journal is not None and journal.config.write_ahead  # never changes
        self.waits_for_disk: bool = (
            self.is_on and journal is not None and journal.config.durability == "sync"
        )  # never changes
        # The events that are on their way into the log and that no thread waits for; any thread reads it.
        self.under_way: Collection[object] = journal.under_way if journal is not None else ()
        # Enum classes whose events are not logged; replaced by one thread at a time, any thread reads.
        self._passing: frozenset[type] = frozenset()
        # No class is excluded, so a post need not look at its event's class. One thread at a time writes, any reads.
        self.keeps_all: bool = self.is_on
        # A shortcut for posts: the cached property `_codec` costs each of them two look-ups. None without a log, where
        # only dead letters are encoded.
        self._encode: Callable[[Any], bytes] | None = self._codec.encode if self.is_on else None  # never changes
        # Of an earlier run; read when they are asked for, by one thread at a time, before the start.
        self._recovered: list[Current] | None = None

    @cached_property
    def _codec(self) -> EventCodec:
        from dispatcher.journal.format.event_codec import EventCodec

        # Of threads that come here at once, all get the first one's.
        codec: EventCodec = self.__dict__.setdefault("_codec", EventCodec(self._name))
        return codec

    def declare(self, event_type: type[Enum], classes: Sequence[type], *, is_durable: bool) -> None:
        """Declare the event classes of an Enum class, before a handler is registered for it.

        Raises:
            TypeError: EventCodec.declare rejects a class.
            ValueError: EventCodec.declare rejects a class. Or its events are to be logged, and none of their classes
                is declared.
        """
        if classes:
            self._codec.declare(event_type, classes)
        if self.is_on and is_durable and not self._codec.is_declared(event_type):
            enum = event_type.__name__
            raise InvalidValueError(
                f"{self._name}: the journal stores accepted events, and the registration of {enum} does not say of "
                f"which classes they are. Call {register_call(enum, ', events=YourEvent')} with pydantic models or "
                "dataclasses, or with durable=False if its events need not survive a crash."
            )

    def set_durable(self, event_type: type, is_durable: bool) -> None:
        """From the next post on, log the events of the class, or not. One thread at a time."""
        others = self._passing - {event_type}
        self._passing = others if is_durable else others | {event_type}
        self.keeps_all = self.is_on and not self._passing

    def keeps(self, event: Any) -> bool:
        """Whether a post of the event logs it. Always if `keeps_all`, which the hot path reads to avoid this call."""
        return self.is_on and not (self._passing and type(type_of(event)) in self._passing)

    def hold(self) -> None:
        """Accept no event before `release`: posts raise JournalError. Called before a class is declared."""
        self._codec.hold()

    def release(self) -> None:
        self._codec.release()

    def decode(self, line: bytes) -> Any:
        """The event of a line."""
        return self._codec.decode(line)

    def marked(self, context: Context | None, marks: Marks = _PLAIN) -> Marks:
        """The marks with what is carried of the context of a post; None: its class keeps none."""
        if context is None:
            return marks
        carried = self._carried.values_in(context)
        return marks if carried is None else marks._replace(carried=carried)

    def context_of(self, marks: Marks) -> Context | None:
        """The context of a post, as far as its line has it; None: not at all."""
        return self._carried.context_of(marks.carried)

    def accept(self, event: Any, marks: Marks | None = None) -> int:
        """Log an event on its producer's thread, which may wait for the disk. Returns its accepted seq; 0: refused.

        Raises:
            EventNotDeclaredError: the class of the event was not declared. JournalError: it cannot be kept, or not yet.
            ReentrantAppendError: the post has interrupted its own thread's use of the journal.
        """
        return self._append(self.encode(event, marks))

    def accept_line(self, line: bytes, marks: Marks) -> int:
        """Log the line that says when a `post_every` is due next. Waits and raises as `accept`."""
        from dispatcher.journal.format.event_codec import with_marks

        return self._append(with_marks(line, marks))

    def accept_lines(self, lines: Iterable[tuple[bytes, Marks]]) -> list[int]:
        """Log many such lines, which need not be on the disk yet. Returns nothing if the journal has ended."""
        assert self._journal is not None
        from dispatcher.journal.format.event_codec import with_marks

        try:
            return self._journal.append_lines([with_marks(line, marks) for line, marks in lines])
        except JournalError:
            return []

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
            line = (self._encode or self._codec.encode)(event)
            if marks is None or marks is _PLAIN:
                return line
            from dispatcher.journal.format.event_codec import with_marks

            return with_marks(line, marks)
        except AttributeError as error:  # the event has no type
            raise EventNotDeclaredError(self._name, event) from error

    def append_later(self, later: LaterAppend, *, wait: bool) -> None:
        """Have the event logged, and `later` notified. `wait`: block while too many are in flight."""
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
        """Record that the logged event will never be handled; on return, that is as durable as a post.

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
        if self._journal is None:
            return []
        if self._recovered is None:
            self._codec.check_released()
            from dispatcher.journal.format.event_codec import in_order_of_acceptance

            found = self._journal.recovered if self.is_on else ()
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
