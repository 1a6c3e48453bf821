"""Dead letters in a folder: list them, look at one, post them again, discard them.

They're the events that still failed after their last attempt, in the folder that you named with
`AsyncDispatcher(dead_letters=folder)`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.errors import InvalidTypeError, InvalidValueError, JournalError
from dispatcher.groups import MultiDispatcher
from dispatcher.journal.read import Unhandled, read_unhandled
from dispatcher.journal.snapshot import config_to_continue, parts_of
from dispatcher.journal.writer import JournalWriter
from dispatcher.letter_target import DeadLetter, DeadLetterType, StoredLetter, post_letters, read_letters
from dispatcher.posting_service import core_of
from dispatcher.service import ServiceState
from dispatcher.util.foreign import text_of
from dispatcher.view import dispatchers

__all__ = ["DeadLetter", "DeadLetterType", "DeadLetters", "RedeliveredLetters", "StoredLetter"]

log: logging.Logger = logging.getLogger(__name__)


class RedeliveredLetters(NamedTuple):
    """The outcome of a redelivery. Letters go by their names, such as `17` or `1/17`."""

    posted: tuple[str, ...]
    """The dispatcher accepted these. They've left the folder."""
    refused: dict[str, str]
    """Why these can't be posted. They stay."""
    left: tuple[str, ...]
    """These found no room, or the dispatcher was stopping. They stay."""


class DeadLetters:
    """The dead letters in a folder. Any thread can use it, and any number of processes.

    Reading takes no lock, so it works while a daemon writes the folder. `redeliver` and `discard` write to it. If a
    dispatcher of this process has the folder, it writes for them. If another process does, they raise JournalError.

    `on_damage` is called with a line about each damaged stretch and each missing file. By default these are logged.

    Raises (each method):
        JournalError: the folder doesn't exist, can't be read, or holds something other than dead letters.
    """

    def __init__(self, folder: Path | str, *, on_damage: Callable[[str], object] | None = None) -> None:
        if not isinstance(folder, Path | str):
            raise InvalidTypeError(f"DeadLetters takes a folder, as a Path or a str, not {text_of(folder)}")
        self.folder: Path = Path(folder)
        self._on_damage = on_damage if on_damage is not None else log.warning

    def __iter__(self) -> Iterator[StoredLetter]:
        """Iterate over the letters that are there now, oldest first."""
        parts = parts_of(self.folder)
        for name in parts.missing:
            self._on_damage(f"{name}: is missing")
        found: list[StoredLetter] = []
        for folder in parts.folders:
            unhandled = read_unhandled(folder, parts.naming(folder, self._on_damage))
            found += letters_in(folder, unhandled, parts.number_of(folder))
        return iter(sorted(found, key=lambda letter: letter.failed_ns))

    def count(self) -> int:
        """Count the letters that are there now."""
        return sum(1 for _ in self)

    def look(self, name: str | int) -> StoredLetter:
        """Return the letter of that name, such as `17`, or `1/17` for number 17 of partition 1.

        Raises:
            JournalError: there's no such letter.
        """
        found = next((letter for letter in self if letter.name == str(name)), None)
        if found is None:
            raise JournalError(f"{self.folder}: no dead letter {name}; it may have been redelivered or discarded")
        return found

    def redeliver(
        self, dispatcher: AsyncDispatcher | MultiDispatcher, letters: Iterable[StoredLetter | str | int] | None = None
    ) -> RedeliveredLetters:
        """Post letters to a started dispatcher: all, or those whose letters or names you pass.

        Each accepted event leaves the folder, and is handled as its first attempt, with `is_redelivering()` true. The
        call waits for the disk, but not for room: a letter that finds none stays. If the process crashes meanwhile,
        letters can stay whose events were posted.

        Raises:
            JournalError: as above, or another process writes the folder. Letters of other partitions may be posted.
            TypeError: `dispatcher` is neither an AsyncDispatcher nor a MultiDispatcher.
            ValueError: it isn't started.
        """
        if not isinstance(dispatcher, AsyncDispatcher | MultiDispatcher):
            raise InvalidTypeError(
                f"redeliver takes an AsyncDispatcher or a MultiDispatcher, not {text_of(dispatcher)}"
            )
        if not dispatcher.in_state(ServiceState.STARTED):
            raise InvalidValueError(
                f"{dispatcher.name}: redeliver takes a dispatcher that is STARTED, and it is {dispatcher.state.name}"
            )
        codec = core_of(dispatcher, None).queue.write_ahead
        posted: list[str] = []
        refused: dict[str, str] = {}
        left: list[str] = []
        for folder, chosen in self._chosen(letters).items():
            with _writer_of(folder) as journal:
                found = post_letters(
                    journal, chosen, codec, lambda event, *how: core_of(dispatcher, event).queue.post_with(event, *how)
                )
            posted += (chosen[number].name for number in found.posted)
            refused |= {chosen[number].name: reason for number, reason in found.refused.items()}
            left += (each.name for number, each in chosen.items() if number not in {*found.posted, *found.refused})
        return RedeliveredLetters(tuple(posted), refused, tuple(left))

    def discard(self, letters: Iterable[StoredLetter | str | int]) -> int:
        """Remove these letters, on the disk, and return how many of them were still there.

        Raises:
            JournalError: as above, or another process writes the folder. Letters of other partitions may be discarded.
        """
        count = 0
        for folder, chosen in self._chosen(letters).items():
            with _writer_of(folder) as journal:
                there = {letter.number for letter in letters_in(folder, read_unhandled(folder))}
                journal.settle_on_disk(chosen.keys() & there)
            count += len(chosen.keys() & there)
        return count

    def _chosen(self, letters: Iterable[StoredLetter | str | int] | None) -> dict[Path, dict[int, StoredLetter]]:
        """Those that are there, by folder and number. A StoredLetter of a folder that was since replaced is not."""
        if isinstance(letters, str):
            raise InvalidTypeError(f"letters is a list of dead letters or of their names, not {letters!r}")
        wanted = None if letters is None else {_told_apart(each) for each in letters}
        chosen: dict[Path, dict[int, StoredLetter]] = {}
        for each in self:
            if wanted is None or each.name in wanted or _told_apart(each) in wanted:
                chosen.setdefault(each.folder, {})[each.number] = each
        return chosen


def _told_apart(letter: StoredLetter | str | int) -> object:
    """What tells a letter apart from others, or its name. Raises TypeError: it is neither."""
    if isinstance(letter, StoredLetter):
        return letter.name, letter.failed_ns
    if isinstance(letter, str | int) and not isinstance(letter, bool):
        return str(letter)
    raise InvalidTypeError(f"a dead letter is a StoredLetter or its name, not {text_of(letter)}")


def letters_in(folder: Path, unhandled: Unhandled, partition: int | None = None) -> Iterator[StoredLetter]:
    """The dead letters of one dispatcher's folder, oldest first.

    Raises:
        JournalError: it holds no dead letters but a journal's events.
    """
    letters = list(read_letters(unhandled.events, folder, partition))
    if not letters and unhandled.first_line is not None and not unhandled.is_of_letters:
        raise JournalError(
            f"{folder}: holds the journal of a dispatcher, not dead letters. Name the folder that is its dead_letters."
        )
    return iter(letters)


@contextlib.contextmanager
def _writer_of(folder: Path) -> Iterator[JournalWriter]:
    """A writer of the folder: the one of the dispatcher that has it in this process, or else a new one.

    Raises:
        JournalError: another process writes the folder.
    """
    for view in dispatchers():
        target = view.dead_letters
        if target is not None and target.writes(folder):
            with target.writing() as journal:
                yield journal
            return
    with contextlib.closing(JournalWriter(folder, config_to_continue(folder))) as journal:
        yield journal
