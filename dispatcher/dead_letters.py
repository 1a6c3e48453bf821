"""Dead letters: the events that have failed for good, for `AsyncDispatcher(dead_letters=...)`.

They go to a handler, to another dispatcher, or into a folder. The folder is a journal in write-ahead mode whose events
are never handled there: recovery lists them, and another dispatcher can take them over.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import time, time_ns
from typing import Any, NamedTuple, Protocol

from dispatcher.config import JournalConfig
from dispatcher.errors import DispatcherError, JournalError
from dispatcher.journal.format.event_codec import Marks, marks_of, undeclared_line, with_marks
from dispatcher.journal.format.outstanding import Accepted
from dispatcher.journal.writer import JournalWriter
from dispatcher.util.foreign import class_name, describe, entity_of, fields_of, tell, text_of, type_name, type_of

log = logging.getLogger("dispatcher.async_dispatcher")

_LONGEST_TRACEBACK = 20_000


class DeadLetterType(Enum):
    """The type of a DeadLetter, with which it can be posted to another dispatcher."""

    FAILED = 1


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that has failed for good. Never changes."""

    dispatcher: str
    """The name of the one that handled it."""
    event: Any
    error: BaseException
    attempts: int
    failed_at: float
    """Unix seconds."""
    type: DeadLetterType = field(default=DeadLetterType.FAILED, repr=False)

    @property
    def entity(self) -> str | None:
        return entity_of(self.event)

    @property
    def traceback(self) -> str:
        """Of the error, as Python prints it, cut to its last 20,000 characters."""
        return "".join(traceback.format_exception(self.error))[-_LONGEST_TRACEBACK:]


class Takes(Protocol):
    """A dispatcher that dead letters are posted to."""

    def post_without_waiting(self, event: Any) -> bool: ...


DeadLettersTo = Callable[[DeadLetter], Any] | Takes | Path | str
"""A handler, called on the handler thread; a dispatcher; or a folder."""


class DeadLetters:
    """Where the dead letters of one dispatcher go. Handler thread.

    Raises:
        TypeError: not one of DeadLettersTo.
    """

    def __init__(self, name: str, to: DeadLettersTo, encode: Callable[[Any], bytes]) -> None:
        """`encode(event)` is the event's line in a log; it raises DispatcherError if it cannot have one."""
        self._name = name  # never changes, like all fields that do not say otherwise
        self._encode = encode
        self._folder: Path | str | None = None
        self._journal: JournalWriter | None = None  # in the folder; set by `open`
        if isinstance(to, (str, Path)):
            self._folder = to
            self._put: Callable[[DeadLetter], Any] = self._write
        elif hasattr(to, "post_without_waiting"):
            self._put = self._post_to(to)
        elif callable(to):
            self._put = to
        else:
            raise TypeError(f"dead_letters must be a handler, a dispatcher or a folder, not {text_of(to)}")
        self.count = 0  # handler thread writes, any reads
        self.lost = 0  # those that could not be put there; handler thread writes, any reads

    @property
    def name(self) -> str:
        return f"the dead letters of {self._name}"

    def open(self) -> None:
        """Before the start.

        Raises:
            JournalError: the folder cannot be written, or has another writer.
        """
        if self._folder is not None:
            self._journal = JournalWriter(
                self._folder, JournalConfig(write_ahead=True, durability="sync", history_index=False)
            )
            self._journal.attach(self)

    def add(self, event: Any, error: BaseException, attempts: int) -> None:
        """The event has failed for good. Raises nothing: what cannot be put there is logged and counted.

        A dead letter that has failed itself is not put there again.
        """
        if isinstance(event, DeadLetter):
            return
        self.count += 1
        try:
            self._put(DeadLetter(self._name, event, error, attempts, time()))
        except BaseException as raised:
            self.lost += 1
            message = "%s: the dead letter of %s is lost"
            tell(
                log,
                logging.ERROR,
                message,
                self._name,
                text_of(event),
                error=raised,
                extra=fields_of(self._name, event),
            )

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _post_to(self, other: Any) -> Callable[[DeadLetter], None]:
        def post(letter: DeadLetter) -> None:
            if not other.post_without_waiting(letter):
                raise DispatcherError(f"{text_of(other)} has refused it")

        return post

    def _write(self, letter: DeadLetter) -> None:
        assert self._journal is not None
        self._journal.append_accepted(line_of(letter, self._encode))


def line_of(letter: DeadLetter, encode: Callable[[Any], bytes]) -> bytes:
    """Its line in a folder; `encode` as of DeadLetters."""
    try:
        line = encode(letter.event)
    except DispatcherError:
        event_type = type_of(letter.event)
        line = undeclared_line(class_name(event_type), type_name(event_type), text_of(letter.event))
    died = Died(
        dispatcher=letter.dispatcher,
        entity=letter.entity,
        error=describe(letter.error),
        traceback=letter.traceback,
        attempts=letter.attempts,
        failed_ns=time_ns(),
    )
    return with_marks(line, Marks(died=died._asdict()))


class Died(NamedTuple):
    """What a dead letter's line says of its end."""

    dispatcher: str
    entity: str | None
    error: str
    """Class and message."""
    traceback: str
    attempts: int
    failed_ns: int
    """Unix ns."""


class WrittenLetter(NamedTuple):
    """A dead letter in a folder."""

    accepted_seq: int
    event_class: str
    event_type: str
    event: Any
    """The event's fields, or its repr if its class was not declared."""
    is_declared: bool
    """It can be posted again."""
    died: Died


def read_letters(accepted: Iterator[Accepted] | tuple[Accepted, ...]) -> Iterator[WrittenLetter]:
    """The dead letters among the unhandled events of a journal, oldest first.

    Raises:
        JournalError: a line cannot be read.
    """
    for each in accepted:
        marks = marks_of(each.line)
        if marks.died is None:
            continue
        try:
            said = json.loads(each.line)
            yield WrittenLetter(
                each.seq,
                said["event_class"],
                said["event_type"],
                said["event"],
                bool(said["model"]),
                Died(**marks.died),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise JournalError(f"dead letter {each.seq} cannot be read: {error}") from error
