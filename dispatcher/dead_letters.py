"""Dead letters: the events that have failed for good, for `AsyncDispatcher(dead_letters=...)`.

They go to a handler, to another dispatcher, or into a folder. The folder is a journal in write-ahead mode whose events
are never handled there: recovery lists them, and another dispatcher can take them over.
"""

from __future__ import annotations

import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import time, time_ns
from typing import Any, Final, NamedTuple, Protocol

from dispatcher.config import JournalConfig
from dispatcher.errors import DispatcherError, ForkedProcessError, InvalidTypeError, JournalError, QueueFullError
from dispatcher.journal.format.event_codec import Marks, marks_of, undeclared_line, with_marks
from dispatcher.journal.format.outstanding import Accepted
from dispatcher.journal.format.partitions import Partitions, partition_folders, read_partitions
from dispatcher.journal.format.segments import holds_journal, read_manifest
from dispatcher.journal.unhandled import read_unhandled
from dispatcher.journal.writer import JournalWriter
from dispatcher.queue.entry import Delivery
from dispatcher.queue.write_ahead import WriteAhead
from dispatcher.util.files import explain, make_folder
from dispatcher.util.foreign import class_name, describe, entity_of, fields_of, tell_of, text_of, type_name, type_of
from dispatcher.util.functions import require_plain

log = logging.getLogger("dispatcher.async_dispatcher")

MOST_AT_ONCE: Final = 500
"""Letters in one request to a daemon, so that it is answered in time: each may be a write to the disk."""
_LONGEST_TRACEBACK: Final = 20_000


class DeadLetterType(Enum):
    """The type of a DeadLetter, with which it can be posted to another dispatcher."""

    FAILED = 1


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that failed for good. Immutable."""

    dispatcher: str
    """Name of the dispatcher that handled it."""
    event: Any
    error: BaseException
    attempts: int
    failed_at: float
    """In Unix seconds."""
    type: DeadLetterType = field(default=DeadLetterType.FAILED, repr=False)

    @property
    def entity(self) -> str | None:
        """Entity of the event, if it has one."""
        return entity_of(self.event)

    @property
    def traceback(self) -> str:
        """Traceback of the error, as Python prints it, cut to its last 20,000 characters."""
        return "".join(traceback.format_exception(self.error))[-_LONGEST_TRACEBACK:]


class Takes(Protocol):
    """A dispatcher that dead letters are posted to."""

    def post_nowait(self, event: Any) -> bool: ...


DeadLettersTo = Callable[[DeadLetter], Any] | Takes | Path | str
"""A handler, called on the handler thread; a dispatcher; or a folder."""


class DeadLetters:
    """Where the dead letters of one dispatcher go. Handler thread, but for `redeliver`.

    Raises:
        TypeError: not one of DeadLettersTo, or a function whose call runs nothing.
    """

    def __init__(
        self, name: str, to: DeadLettersTo, codec: WriteAhead, post: Callable[[Any, Delivery, bool], bool]
    ) -> None:
        """`post(event, delivery, wait)` posts to the dispatcher, or to the partition that has the event's key; it waits
        for the disk and, if told to, for room."""
        self._name = name  # never changes, like all fields that do not say otherwise
        self._codec = codec
        self.post = post  # changed before the start only
        self._redelivering = threading.Lock()  # one call at a time
        self._folder: Path | str | None = None
        self._journal: JournalWriter | None = None  # in the folder; `open` sets it, before any other thread reads it
        if isinstance(to, (str, Path)):
            self._folder = to
            self._put: Callable[[DeadLetter], Any] = self._write
        elif hasattr(to, "post_nowait"):
            self._put = self._post_to(to)
        elif callable(to):
            self._put = require_plain(to, "dead_letters", "takes a DeadLetter")
        else:
            raise InvalidTypeError(f"dead_letters must be a handler, a dispatcher or a folder, not {text_of(to)}")
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
            message, fields = "the dead letter of %s is lost", fields_of(self._name, event)
            tell_of(log, logging.ERROR, self._name, message, text_of(event), error=raised, **fields)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _post_to(self, other: Any) -> Callable[[DeadLetter], None]:
        core_of = getattr(other, "core_of", None)  # a test's dispatcher has none

        def post(letter: DeadLetter) -> None:
            # Not post_nowait: the letter has to be in the other's journal before this one says that the event failed.
            is_taken = other.post_nowait(letter) if core_of is None else core_of(letter).queue.post_if_room(letter)
            if not is_taken:
                raise DispatcherError(f"{text_of(other)} has refused it")

        return post

    def _write(self, letter: DeadLetter) -> None:
        assert self._journal is not None
        self._journal.append_accepted(line_of(letter, self._codec))

    def redeliver(self, numbers: Sequence[int], journal_id: str) -> Redelivered:
        """Post letters of the folder again, while the dispatcher runs: those that it accepts leave the folder.

        `numbers`: their accepted seqs. `journal_id`: of the folder in which they were chosen. Any thread that may wait
        for the disk. A crash amid the call may leave letters in the folder whose events were posted.

        Raises:
            LettersElsewhereError: they are not in a folder, or not in that one. JournalError: the folder cannot be read
                or written. ForkedProcessError: as a post.
        """
        journal = self._journal
        if journal is None or self._folder is None:
            raise LettersElsewhereError(f"{self._name}: its dead letters are not in a folder")
        manifest, _ = read_manifest(Path(self._folder))
        if manifest is None or manifest.journal != journal_id:
            raise LettersElsewhereError(f"{self._name}: its dead letters are in another folder: {self._folder}")
        with self._redelivering:
            letters = {each.seq: each.line for each in read_unhandled(Path(self._folder)).events}
            posted: list[int] = []
            refused: dict[int, str] = {}
            try:
                for number in numbers:
                    line = letters.get(number)
                    if line is None or marks_of(line).died is None:
                        refused[number] = "no such dead letter"
                        continue
                    try:
                        event = self._codec.decode(line)
                    except JournalError as error:
                        refused[number] = str(error)
                        continue
                    try:
                        if not self.post(event, Delivery(is_redelivered=True), False):
                            break
                    except (QueueFullError, ForkedProcessError):
                        raise
                    except Exception as error:  # `coalesce_by` can raise any
                        refused[number] = describe(error)
                        continue
                    posted.append(number)
            except QueueFullError:
                pass
            finally:
                journal.settle_on_disk(posted)
            return Redelivered(posted, refused)


def note_partitions(folder: Path, count: int) -> None:
    """Note in the dead letters' folder of a MultiDispatcher that it has `count` partitions or more.

    Raises:
        JournalError: the folder cannot be written, or has the dead letters of a dispatcher without partitions.
    """
    folder = folder.absolute()
    try:
        make_folder(folder)
        if holds_journal(folder):
            raise JournalError(
                f"{folder}: holds the dead letters of a dispatcher without partitions. Choose another folder for those "
                "of a MultiDispatcher."
            )
        found, _ = read_partitions(folder)
        known = found.count if found is not None else 0
        count = max(count, known, *(number + 1 for number in partition_folders(folder)))
        if found is None or known < count:
            Partitions(count).write(folder)
    except OSError as error:
        raise JournalError(f"{folder}: the dead letters cannot be written: {explain(error, folder)}") from error


class Redelivered(NamedTuple):
    """What became of dead letters that were to be posted again. Those in neither found no room."""

    posted: list[int]
    refused: dict[int, str]
    """Why they cannot be posted."""


class LettersElsewhereError(DispatcherError):
    """A dispatcher's dead letters are not where the caller says."""


def line_of(letter: DeadLetter, codec: WriteAhead) -> bytes:
    """The line of a dead letter in a folder."""
    try:
        line = codec.encode(letter.event)
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
