"""The folder of a partitioned journal: an ordinary journal in each subfolder, and a file that says how many there are.
A restore of entities adds a file of their states (dispatcher.journal.partitioned).

    JOURNAL/partitions.json   the number of partitions, replaced atomically
    JOURNAL/partition-0/      an ordinary journal; its lock is the right to write any partition
    JOURNAL/partition-1/

The file shows a reader that a partition is missing. While events move to other partitions, it also says which of the
two copies of an event counts.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dispatcher.errors import JournalError
from dispatcher.journal.format.segments import checked_json, holds_journal
from dispatcher.util.files import PRIVATE_FILE, read_file, replace_file
from dispatcher.util.terminal import one_line

PARTITIONS: Final = "partitions.json"
_FORMAT: Final = 1
_FOLDER: Final = re.compile(r"partition-(0|[1-9][0-9]{0,8})")
_MOST_BYTES: Final = 1 << 20
"""Enough for a move among 50,000 partitions."""


@dataclass(frozen=True, slots=True)
class Move:
    """Unhandled events are being copied to the partitions that have their keys now."""

    copies_from: tuple[int, ...]
    """By partition: the accepted seq of the first copy. What is outstanding below it is an original."""
    are_copied: bool
    """Every copy is on the disk, and the originals no longer count. Otherwise the copies do not count."""

    def counts(self, partition: int, seq: int) -> bool:
        """Whether the outstanding event of this accepted seq is the one that is to be handled."""
        is_copy = partition < len(self.copies_from) and seq >= self.copies_from[partition]
        return is_copy == self.are_copied


@dataclass(frozen=True, slots=True)
class Partitions:
    """The content of `partitions.json`."""

    count: int = 0
    """Partitions that must exist: a crash may leave more, which are new. It never falls."""
    move: Move | None = None

    def write(self, journal: Path, *, mode: int = PRIVATE_FILE) -> None:
        """Replace the file in the folder, on the disk too. Raises OSError."""
        draft = journal / f".{PARTITIONS}.new"
        replace_file(journal / PARTITIONS, _encode(_FORMAT, self), draft=draft, mode=mode)


def partition_path(journal: Path, number: int) -> Path:
    return journal / f"partition-{number}"


def partition_number(folder: Path) -> int:
    """The number in the name of a partition's folder."""
    return int(folder.name.removeprefix("partition-"))


def partition_folders(journal: Path) -> dict[int, Path]:
    """The partitions that are there, by number, in order. Raises OSError: the folder cannot be listed."""
    try:
        names = [path.name for path in journal.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    numbers = sorted(int(match.group(1)) for match in map(_FOLDER.fullmatch, names) if match)
    return {number: folder for number in numbers if holds_journal(folder := partition_path(journal, number))}


def holds_partitions(journal: Path) -> bool:
    """Whether the folder is of a partitioned journal, sound or damaged.

    Raises:
        JournalError: as `read_partitions`. OSError: it cannot be listed.
    """
    return read_partitions(journal) != (None, None) or bool(partition_folders(journal))


def check_no_other_files(folder: Path) -> None:
    """A journal begins in a new or an empty folder: what it does not hold can then be removed with it.

    Raises:
        JournalError: the folder has other files, and no journal. Hidden ones, and a file system's `lost+found`, do not
            count.
        OSError: it cannot be listed.
    """
    # The names first: another process may begin a journal meanwhile.
    names = sorted({each.name for each in folder.iterdir() if not each.name.startswith(".")} - {"lost+found"})
    if names and not holds_journal(folder) and not holds_partitions(folder):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise JournalError(
            f"{folder}: holds no journal, but {one_line(names[0], 100)}{more}; choose a new or an empty folder"
        )


def read_partitions(journal: Path) -> tuple[Partitions | None, str | None]:
    """The content of the file, or its problem; both None if there is no such file.

    Raises:
        JournalError: this version does not know the file's format.
    """
    try:
        data = read_file(journal / PARTITIONS, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except OSError as error:
        return None, f"{PARTITIONS}: cannot be read: {error.strerror or error}"
    try:
        fields = json.loads(data)
        move = fields["move"]
        move = None if move is None else Move(tuple(move["copies_from"]), move["are_copied"])
        found = Partitions(fields["partitions"], move)
        is_sound = data == _encode(fields["format"], found) and type(found.count) is int
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        return None, f"{PARTITIONS}: is damaged"
    if fields["format"] != _FORMAT:
        raise JournalError(
            f"{journal}: a partitioned journal of format {fields['format']}, but this version reads format {_FORMAT}. "
            "Read it with the version that wrote it."
        )
    return found, None


def _encode(format_: int, partitions: Partitions) -> bytes:
    move = None if partitions.move is None else asdict(partitions.move)
    return checked_json({"format": format_, "partitions": partitions.count, "move": move})
