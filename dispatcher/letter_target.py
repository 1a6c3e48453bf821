"""Dead letters: the events that failed after their last attempt, for `AsyncDispatcher(dead_letters=...)`.

They go to a handler, to another dispatcher, or into a folder. The folder is a journal in write-ahead mode whose events
are never handled there: recovery lists them, and another dispatcher can take them over.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import time, time_ns
from typing import Any, Final, NamedTuple, Protocol

from dispatcher.config import JournalConfig
from dispatcher.errors import DispatcherError, ForkedProcessError, InvalidTypeError, JournalError, QueueFullError
from dispatcher.event import unscoped
from dispatcher.journal.format.event_codec import marks_of, undeclared_line, with_marks
from dispatcher.journal.format.marks import EVENT, Marks
from dispatcher.journal.format.outstanding import Accepted
from dispatcher.journal.format.partitions import Partitions, partition_folders, read_partitions
from dispatcher.journal.format.segments import holds_journal, read_manifest
from dispatcher.journal.read import read_unhandled
from dispatcher.journal.writer import JournalWriter
from dispatcher.queue.entry import Delivery
from dispatcher.queue.write_ahead import WriteAhead
from dispatcher.util.files import explain, make_folder
from dispatcher.util.foreign import (
    class_name,
    describe,
    entity_of,
    fields_of,
    reraise_interrupt,
    tell_of,
    text_of,
    type_name,
    type_of,
)
from dispatcher.util.functions import require_plain

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

MOST_AT_ONCE: Final = 500
"""Letters in one request to a daemon, so that it is answered in time: each may be a write to the disk."""
_LONGEST_TRACEBACK: Final = 20_000


class DeadLetterType(Enum):
    """The type of a DeadLetter, with which it can be posted to another dispatcher."""

    FAILED = 1


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that still failed after its last attempt. Immutable."""

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
        """Traceback of the error, as Python prints it, cut to its last 20,000 characters.

        If Python cannot print it, such as where the error's `__cause__` raises, the error's class and message.
        """
        try:
            return "".join(traceback.format_exception(self.error))[-_LONGEST_TRACEBACK:]
        except BaseException as raised:
            reraise_interrupt(raised)
            return f"{describe(self.error)}\n(no traceback: {describe(raised)})\n"


class Takes(Protocol):
    """A dispatcher that dead letters are posted to."""

    def post_nowait(self, event: Any) -> bool: ...


DeadLettersTo = Callable[[DeadLetter], Any] | Takes | Path | str
"""A handler, called on the handler thread; a dispatcher; or a folder."""


class LetterFate:
    """What becomes of the event of a redelivered letter. The thread that ends the event writes, any reads."""

    on_its_way: Any = None  # as of an ask, whose place it takes in the event's entry

    def __init__(self) -> None:
        self.error: str = ""  # class and message, if it has failed again
        self.outcome: str = ""  # why the event has ended, such as `handled` or `failed`; "": it has not

    def ended(self, outcome: str, value: Any, error: Any) -> None:
        """The event has ended. Raises nothing."""
        if outcome == "failed":
            self.error = describe(error)
        self.outcome = outcome


PostAgain = Callable[[Any, Delivery, bool, LetterFate], bool]
"""`post(event, delivery, wait, fate)` posts to a dispatcher; it waits for the disk and, with `wait`, for room."""


class LetterTarget:
    """Where the dead letters of one dispatcher go. Handler thread, unless a method says otherwise.

    Raises:
        TypeError: not one of DeadLettersTo, or a function whose call runs nothing.
    """

    def __init__(self, name: str, to: DeadLettersTo, codec: WriteAhead, post: PostAgain) -> None:
        """`post`: to the dispatcher, or to the partition that has the event's key."""
        self._name = name  # never changes, like all fields that do not say otherwise
        self._codec = codec
        self.post = post  # changed before the start only
        self._changing = threading.Lock()  # one `writing` at a time
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
        self.count: int = 0  # handler thread writes, any reads
        self.lost: int = 0  # those that could not be put there; handler thread writes, any reads

    @property
    def name(self) -> str:
        return f"the dead letters of {self._name}"

    def open(self) -> None:
        """Before the start.

        Raises:
            JournalError: the folder cannot be written, or has another writer.
        """
        if self._folder is not None:
            self._journal = JournalWriter(self._folder, JournalConfig(write_ahead=True, durability="sync"))
            self._journal.attach(self)

    def add(self, event: Any, error: BaseException, attempts: int) -> None:
        """The event has failed for good. Raises nothing: what cannot be put there is logged and counted.

        A dead letter that has failed itself is not put there again.
        """
        if isinstance(unscoped(event), DeadLetter):
            return
        self.count += 1
        whole = event if self._folder is not None else unscoped(event)  # a folder stores the scope
        try:
            self._put(DeadLetter(self._name, whole, error, attempts, time()))
        except BaseException as raised:
            self.lost += 1
            message, fields = "the dead letter of %s is lost", fields_of(self._name, event)
            tell_of(log, logging.ERROR, self._name, message, text_of(event), error=raised, **fields)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    @property
    def folder(self) -> Path | None:
        """Where they are, if in a folder. Any thread."""
        return None if self._folder is None else Path(self._folder)

    def _post_to(self, other: Any) -> Callable[[DeadLetter], None]:
        core_of = getattr(other, "_core_of", None)  # a test's dispatcher has none

        def post(letter: DeadLetter) -> None:
            # Not post_nowait: the letter has to be in the other's journal before this one says that the event failed.
            is_taken = other.post_nowait(letter) if core_of is None else core_of(letter).queue.post_if_room(letter)
            if not is_taken:
                raise DispatcherError(f"{text_of(other)} has rejected it")

        return post

    def _write(self, letter: DeadLetter) -> None:
        assert self._journal is not None
        self._journal.append_accepted(line_of(letter, self._codec))

    def writes(self, folder: Path) -> bool:
        """Whether it writes that folder now. Any thread."""
        journal = self._journal
        return journal is not None and not journal.log.is_closed and journal.path.resolve() == folder.resolve()

    @contextlib.contextmanager
    def writing(self) -> Iterator[JournalWriter]:
        """The writer of its folder, to settle letters with. Any thread that may wait for the disk, one at a time.

        Raises:
            LettersElsewhereError: they are not in a folder.
        """
        if self._journal is None:
            raise LettersElsewhereError(f"{self._name}: its dead letters are not in a folder")
        with self._changing:
            yield self._journal

    def redeliver(self, numbers: Sequence[int], journal_id: str) -> LetterOutcomes:
        """Post letters of the folder again, while the dispatcher runs: those that it accepts leave the folder.

        `numbers`: their accepted seqs. `journal_id`: of the folder in which they were chosen. Any thread that may wait
        for the disk. A crash during the call may leave letters in the folder whose events were posted.

        Raises:
            LettersElsewhereError: they are not in a folder, or not in that one. JournalError: the folder cannot be read
                or written. ForkedProcessError: as a post.
        """
        with self._writing_of(journal_id) as journal:
            return post_letters(journal, numbers, self._codec, self.post)

    def discard(self, numbers: Sequence[int], journal_id: str) -> set[int]:
        """Remove letters from the folder, on the disk; returns those that were there.

        `redeliver` says what the arguments are, which threads may call it, and what it raises.
        """
        with self._writing_of(journal_id) as journal:
            there = {letter.seq for letter in read_unhandled(journal.path).events if is_letter(letter.line)}
            found = there.intersection(numbers)
            journal.settle_on_disk(found)
            return found

    @contextlib.contextmanager
    def _writing_of(self, journal_id: str) -> Iterator[JournalWriter]:
        """Lock the folder as `writing` does, for letters that were chosen in the folder of that journal."""
        with self.writing() as journal:
            manifest, _ = read_manifest(journal.path)
            if manifest is None or manifest.journal != journal_id:
                raise LettersElsewhereError(f"{self._name}: its dead letters are in another folder: {journal.path}")
            if journal.log.is_closed:
                raise LettersElsewhereError(f"{self._name}: has ended, and no longer writes {journal.path}")
            yield journal


def post_letters(journal: JournalWriter, numbers: Iterable[int], codec: WriteAhead, post: PostAgain) -> LetterOutcomes:
    """Post letters of a folder, by their accepted seqs: those that are accepted leave the folder.

    Raises:
        JournalError: the folder cannot be read or written. ForkedProcessError: as a post.
    """
    letters = {each.seq: each.line for each in read_unhandled(journal.path).events}
    posted: dict[int, LetterFate] = {}
    refused: dict[int, str] = {}
    try:
        for number in dict.fromkeys(numbers):
            line = letters.get(number)
            marks = marks_of(line) if line is not None else None
            if line is None or marks is None or marks.died is None:
                refused[number] = "no such dead letter"
                continue
            try:
                event = codec.decode(line)
            except JournalError as error:
                refused[number] = str(error)
                continue
            fate = LetterFate()
            try:
                if not post(event, Delivery(context=codec.context_of(marks), is_redelivered=True), False, fate):
                    break
            except (QueueFullError, ForkedProcessError):
                raise
            except Exception as error:  # `coalesce_by` can raise any
                refused[number] = describe(error)
                continue
            posted[number] = fate
    except QueueFullError:
        pass
    finally:
        journal.settle_on_disk(posted)
    return LetterOutcomes(posted, refused)


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


class LetterOutcomes(NamedTuple):
    """What became of redelivered dead letters. Those in neither found no room."""

    posted: dict[int, LetterFate]
    """What becomes of their events."""
    refused: dict[int, str]
    """Why they cannot be posted."""


class LettersElsewhereError(DispatcherError):
    """A dispatcher's dead letters are not where the caller says."""


_DIED: Final = b'"died":{'
"""In the marks of a dead letter, and in no other line: JSON escapes quotation marks."""


def is_letter(line: bytes) -> bool:
    """Whether a line of a folder is a dead letter, without reading its marks."""
    return _DIED in line.partition(EVENT)[0]


def line_of(letter: DeadLetter, codec: WriteAhead) -> bytes:
    """The line of a dead letter in a folder. The caller runs in the context of the event's post, if that was kept."""
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
    return with_marks(line, codec.marked(copy_context(), Marks(died=died._asdict())))


class Died(NamedTuple):
    """What a dead letter's line says of its end."""

    dispatcher: str
    entity: str | None
    error: str
    traceback: str
    attempts: int
    failed_ns: int


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter in a folder. Immutable."""

    folder: Path
    """Folder of the dispatcher's or, if it has several, of the partition's letters."""
    partition: int | None
    """None: the dispatcher has no partitions."""
    number: int
    """Its number in that folder. Each partition counts by itself."""
    dispatcher: str
    """Name of the dispatcher that handled the event."""
    event_class: str
    """Name of the event's Enum class."""
    event_type: str
    """Name of the Enum member."""
    entity: str | None
    """Entity of the event, if it has one."""
    failed_ns: int
    """In Unix nanoseconds."""
    attempts: int
    error: str
    """Class and message of the error."""
    traceback: str
    event: Any
    """Fields of the event as JSON has them, or its repr if its class wasn't declared."""
    is_declared: bool
    """Whether its class was declared, so that it can be redelivered."""

    @property
    def name(self) -> str:
        """The number, with the partition if there are several: `17`, `1/17`."""
        return str(self.number) if self.partition is None else f"{self.partition}/{self.number}"


def read_letters(accepted: Iterable[Accepted], folder: Path, partition: int | None = None) -> Iterator[StoredLetter]:
    """The dead letters among the unhandled events of a journal, oldest first.

    Raises:
        JournalError: a line cannot be read.
    """
    for each in accepted:
        marks = marks_of(each.line)
        if marks.died is None:
            continue
        try:
            said, died = json.loads(each.line), Died(**marks.died)
            yield StoredLetter(
                folder=folder,
                partition=partition,
                number=each.seq,
                event_class=said["event_class"],
                event_type=said["event_type"],
                event=said["event"],
                is_declared=bool(said["model"]),
                **died._asdict(),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise JournalError(f"dead letter {each.seq} cannot be read: {error}") from error
