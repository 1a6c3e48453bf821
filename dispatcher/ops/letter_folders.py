"""The dead letters of folders, read by an app whose users look at them again and again.

Reading 10,000 of them takes a fifth of a second, so a folder is read once, and then only what has been added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from dispatcher.errors import JournalError
from dispatcher.journal.format.frames import Frame
from dispatcher.journal.format.outstanding import NEEDED, Accepted, Outstanding
from dispatcher.journal.format.segments import is_open_segment, segment_number
from dispatcher.journal.read import frames_from, of_kinds
from dispatcher.journal.snapshot import JournalSnapshot, look_at, open_segment, summary_of
from dispatcher.letter_target import is_letter
from dispatcher.web.waiting import KeptResults, Workers

_MOST_KEPT: Final = 64_000_000
"""Bytes of letters that are kept in memory between two looks."""
_READERS: Final = 64
"""More than a page looks into at once: requests share the reading of a folder."""


class FoundLetters(NamedTuple):
    """The dead letters of a folder at one moment."""

    folder: Path
    journal: str
    newest_first: Sequence[Accepted]
    damage: tuple[str, ...]
    """A line for each damaged stretch and each missing file."""


class _FolderChangedError(Exception):
    """The folder is no continuation of what was read."""


class LetterFolder:
    """One folder of dead letters, of which each `read` reads what is new. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal: str | None = None
        self._outstanding: Outstanding | None = None  # None: nothing was read yet
        self._segment = 0  # the number of the next segment to read, or to read on
        self._inode = 0  # of that segment, if it was read in part
        self._offset = 0  # of its next frame
        self._damage: list[str] = []
        self._found: FoundLetters | None = None

    def read(self) -> FoundLetters:
        """Raises JournalError: not a journal, or a file cannot be read."""
        with suppress(_FolderChangedError):
            return self._read()
        self._outstanding = None
        try:
            return self._read()
        except _FolderChangedError:
            raise JournalError(f"{self._folder}: changes faster than it is read; try again") from None

    def size(self) -> int:
        """Bytes of the letters that it holds."""
        return sum(len(letter.line) for letter in self._found.newest_first) if self._found is not None else 0

    def _read(self) -> FoundLetters:
        journal = look_at(self._folder)
        found_id = journal.manifest.journal if journal.manifest is not None else None
        if self._outstanding is None:
            self._begin(journal)
        elif found_id != self._journal:
            raise _FolderChangedError
        self._journal = found_id
        has_changed = self._found is None
        unread = [segment for segment in journal.in_order if segment_number(segment) >= self._segment]
        if self._offset and (not unread or segment_number(unread[0]) != self._segment):
            raise _FolderChangedError
        for segment in unread:
            has_changed |= self._read_segment(segment)
        damage = (*(each.line for each in journal.missing()), *self._damage)
        assert self._outstanding is not None
        if self._found is None or has_changed or damage != self._found.damage:
            letters = [each for each in self._outstanding.accepted() if is_letter(each.line)]
            self._found = FoundLetters(self._folder, self._journal or "", letters[::-1], damage)
        return self._found

    def _begin(self, journal: JournalSnapshot) -> None:
        last = next(filter(None, map(summary_of, reversed(journal.closed))), None)
        self._segment = max(1, last.recover_from if last is not None else 1)
        self._outstanding = Outstanding(journal.path, self._segment)
        self._inode = self._offset = 0
        self._damage, self._found = [], None

    def _read_segment(self, segment: Path) -> bool:
        """Read what is new in it; returns whether something is."""
        assert self._outstanding is not None
        place = segment_number(segment)
        begun = self._offset if place == self._segment else 0
        with open_segment(segment) as reader:
            if reader is None or (begun and (reader.inode != self._inode or reader.size < begun)):
                raise _FolderChangedError
            is_open = is_open_segment(reader.path)
            if is_open and begun == reader.size:
                return False
            found = list(frames_from(reader, of_kinds(*NEEDED), is_open=is_open, start=begun))
            self._inode = reader.inode
        end = next((each.end for each in reversed(found) if isinstance(each, Frame)), begun)
        damage = self._outstanding.add(place, found, None if is_open else summary_of(reader.path), is_open=is_open)
        self._damage += (each.line for each in damage if each.is_problem and not each.is_consequence)
        self._segment, self._offset = (place, end) if is_open else (place + 1, 0)
        return bool(found)


class LetterFolders:
    """The folders of dead letters that an app has looked into. One loop's thread."""

    def __init__(self) -> None:
        self._workers = Workers(most=_READERS)
        self._kept: dict[Path, tuple[LetterFolder, int]] = {}  # with its bytes; the last one used is the last
        self._readings: KeptResults[FoundLetters] = KeptResults(0.0)

    async def read(self, folder: Path) -> FoundLetters:
        """The letters that are there now; requests that come meanwhile share one reading.

        Raises:
            JournalError: the folder cannot be read. Refusal: that takes too long.
        """
        return await self._readings.make(folder, lambda: self._read(folder))

    async def _read(self, folder: Path) -> FoundLetters:
        # Out of `_kept` meanwhile: a reading that is given up still goes on with it.
        kept = self._kept.pop(folder, None)
        one = kept[0] if kept is not None else LetterFolder(folder)
        found, size = await self._workers.run(lambda: (one.read(), one.size()))
        self._kept[folder] = one, size
        while sum(bytes_kept for _, bytes_kept in self._kept.values()) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return found
