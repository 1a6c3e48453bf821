"""A snapshot of a journal's folder, for verification, the readers and a report.

Readers take no lock and may run while a writer appends: closed segments do not change, and retention removes only
the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from dispatcher.config import JournalConfig
from dispatcher.errors import JournalError
from dispatcher.journal.format.frames import Damage, FrameReader
from dispatcher.journal.format.partitions import (
    PARTITIONS,
    holds_partitions,
    partition_folders,
    partition_number,
    partition_path,
    read_partitions,
)
from dispatcher.journal.format.segments import (
    MANIFEST,
    Manifest,
    holds_journal,
    misnamed_segments,
    open_segment_path,
    open_segments,
    read_manifest,
    read_summary,
    segment_number,
    segment_path,
    segments,
)
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.identity import identify
from dispatcher.util.files import Permissions
from dispatcher.util.functions import path_of

_ATTEMPTS: Final = 100
"""More than enough to find a moment at which the writer closes no segment."""
_MANY: Final = 1000
"""From this number on, missing segments are reported as one range: a manifest can name two billion."""


OF_ONE_PARTITION: Final = "a partitioned journal counts seqs in each partition; name the folder of one, or a time"
"""What is wrong with a seq as a place in a partitioned journal."""


class ClosedSegment(NamedTuple):
    """A closed segment and the summary at its end."""

    path: Path
    size: int
    """In bytes."""
    summary: Summary | None
    """None: its end is damaged, or the segment is gone."""
    is_gone: bool = False
    """It was removed after it was listed."""
    partition: int | None = None
    """The number of its partition, if it is read as a part of a partitioned journal."""


@dataclass(frozen=True)
class JournalSnapshot:
    """A journal's manifest and segments at one moment, consistent even while a writer appends."""

    path: Path
    manifest: Manifest | None
    problem: str | None
    """What is wrong with the manifest. Both None: the journal has no manifest."""
    closed: tuple[Path, ...]
    """Closed segments, oldest first."""
    left_open: tuple[Path, ...]
    """Segments that are being written, or were when their writer died."""
    odd: tuple[str, ...] = ()
    """A line for each file that a writer would not have left, and a copy of another state of the journal would. No row
    is only there."""
    foreign: tuple[str, ...] = ()
    """A line for each segment of another journal, open or closed."""

    @cached_property
    def summarized(self) -> tuple[ClosedSegment, ...]:
        """The closed segments with their summaries, read on first access. Raises JournalError as `summarize`."""
        return tuple(summarize(self.closed))

    @property
    def open_at_end(self) -> tuple[Path, ...]:
        """Open segments that follow all closed ones."""
        last = segment_number(self.closed[-1]) if self.closed else 0
        return tuple(segment for segment in self.left_open if segment_number(segment) > last)

    @property
    def in_order(self) -> tuple[Path, ...]:
        """The segments that readers read, oldest first."""
        return (*self.closed, *self.open_at_end)

    def missing(self) -> list[Damage]:
        """The closed segments that are absent according to the manifest or the numbers of the others, or that are of
        another journal."""
        numbers = list(map(segment_number, self.closed))
        first = self.manifest.first if self.manifest is not None else min(numbers, default=1)
        last = max(max(numbers, default=0), self.manifest.last if self.manifest is not None else 0)
        found = [damage for gap in gaps(numbers, first, last) for damage in gone_between(self.path, *gap)]
        return [*(damage for damage in found if damage.is_problem), *map(about_file, self.foreign)]


@dataclass(frozen=True)
class Parts:
    """The journals that a folder holds: the partitions of a partitioned journal, or else itself alone."""

    path: Path
    folders: tuple[Path, ...]
    """Of the partitions in the order of their numbers, or `path`."""
    is_partitioned: bool = False
    missing: tuple[str, ...] = ()
    """The names of missing partitions."""
    problem: str | None = None
    """What is wrong with the file that tells their number."""

    @property
    def problems(self) -> list[str]:
        """A line for each missing partition, and for the file."""
        return [*([] if self.problem is None else [self.problem]), *(f"{name}: is missing" for name in self.missing)]

    def named(self, folder: Path, line: str) -> str:
        """A line about one of the folders, which names it if there are several."""
        return f"{folder.name}/{line}" if self.is_partitioned else line

    def naming(self, folder: Path, report: Callable[[str], object]) -> Callable[[str], object]:
        """`report`, for lines about one of the folders."""
        return lambda line: report(self.named(folder, line))

    def number_of(self, folder: Path) -> int | None:
        """The number of the partition in one of the folders; None: there are no partitions."""
        return partition_number(folder) if self.is_partitioned else None


def parts_of(path: Path | str) -> Parts:
    """The journals of a folder, which may be no journal at all.

    Raises:
        JournalError: it cannot be listed, or is partitioned in another format.
    """
    path = path_of(path)
    try:
        found, problem = read_partitions(path)
        if (found, problem) == (None, None) and (read_manifest(path) != (None, None) or not holds_partitions(path)):
            return Parts(path, (path,))
        there = partition_folders(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if found is None and problem is None:
        problem = f"{PARTITIONS}: is missing"
    count = max((0 if found is None else found.count, *there))
    missing = tuple(partition_path(path, number).name for number in range(count) if number not in there)
    return Parts(path, tuple(there.values()), True, missing, problem)


def permissions_of(journal: Path) -> Permissions:
    """The permissions with which the files of a journal, partitioned or not, were made. Raises JournalError."""
    return Permissions.of_file(journal / (PARTITIONS if parts_of(journal).is_partitioned else MANIFEST))


def config_to_continue(journal: Path) -> JournalConfig:
    """The configuration of a writer that changes a journal in the daemon's place. Raises as `permissions_of`."""
    return JournalConfig(write_ahead=True, durability="sync", permissions=permissions_of(journal).name)


def look_at(path: Path | str) -> JournalSnapshot:
    """Take a snapshot.

    Raises:
        JournalError: the folder does not exist, is not a journal, or has another format.
    """
    path = Path(path)
    if not path.is_dir():
        raise JournalError(f"{path}: no such journal folder")
    try:
        for _ in range(_ATTEMPTS):
            manifest, problem = read_manifest(path)
            # Open ones first: a segment closed in between is then in both lists, not in neither.
            left_open, closed = open_segments(path), segments(path)
            if read_manifest(path) == (manifest, problem):
                break
        is_journal = holds_journal(path)
        # A rename closes a segment: one that is still open after it was seen closed is another file.
        stale = {segment_number(segment) for segment in open_segments(path)} & set(map(segment_number, closed))
        misnamed = misnamed_segments(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if not is_journal:
        if parts_of(path).is_partitioned:
            raise JournalError(f"{path}: a partitioned journal; name one of its partitions, such as {path}/partition-0")
        raise JournalError(f"{path}: not a journal: it has neither {MANIFEST} nor segment-*.journal")
    numbers = set(map(segment_number, closed))
    still_open = [segment for segment in left_open if segment_number(segment) not in numbers]
    identity = identify(manifest, (*closed, *still_open))
    if identity.manifest_problem is not None:
        manifest, problem = None, identity.manifest_problem
    odd = [
        *(
            f"{open_segment_path(path, number).name}: is stale: {segment_path(path, number).name} is closed"
            for number in sorted(stale)
        ),
        *(f"{segment.name}: is not a segment's name: not read" for segment in misnamed),
    ]
    return JournalSnapshot(
        path,
        manifest,
        problem,
        tuple(segment for segment in closed if segment not in identity.foreign),
        tuple(segment for segment in still_open if segment not in identity.foreign),
        tuple(odd),
        tuple(f"{segment.name}: is of another journal, {id}: not read" for segment, id in identity.foreign.items()),
    )


def unreadable(path: Path, error: OSError) -> JournalError:
    """A folder or a segment cannot be read."""
    return JournalError(f"{path}: cannot be read: {error.strerror or error}")


def check_journal(path: Path | str) -> Path:
    """Return the path, if the folder is a journal, partitioned or not. Raises JournalError as `look_at`."""
    parts = parts_of(path)
    for folder in parts.folders:
        look_at(folder)
    return parts.path


def summarize(closed: Sequence[Path]) -> list[ClosedSegment]:
    """The segments with their summaries; only their ends are read.

    Raises:
        JournalError: a segment cannot be read.
    """
    return list(map(_summarized, closed))


def summary_of(segment: Path) -> Summary | None:
    """The summary of a closed segment; None: its end is damaged, or it is gone. Raises JournalError as `summarize`."""
    return _summarized(segment).summary


def _summarized(segment: Path) -> ClosedSegment:
    try:
        return ClosedSegment(segment, segment.stat().st_size, read_summary(segment))
    except FileNotFoundError:
        return ClosedSegment(segment, 0, None, is_gone=True)
    except OSError as error:
        raise unreadable(segment, error) from error


@contextmanager
def open_segment(segment: Path, *, keeps_interpreter: bool = False) -> Iterator[FrameReader | None]:
    """A reader of the segment, also if it was listed as open and its writer has closed it since. None: it is gone.

    Raises JournalError: the segment cannot be read, here or in the block.
    """
    with ExitStack() as opened:
        try:
            reader = None
            for path in dict.fromkeys((segment, segment_path(segment.parent, segment_number(segment)))):
                with suppress(FileNotFoundError):
                    reader = opened.enter_context(FrameReader(path, keeps_interpreter=keeps_interpreter))
                    break
            yield reader
        except OSError as error:
            raise unreadable(segment, error) from error


def about_file(line: str) -> Damage:
    """Damage of a whole file. The line begins with the file's name and a colon."""
    return Damage(line.partition(":")[0], line)


def gone(segment: Path) -> Damage:
    """A segment that does not exist."""
    manifest, _ = read_manifest(segment.parent)
    retired = manifest is not None and segment_number(segment) < manifest.first
    line = f"{segment.name}: {'was removed by retention before it was read' if retired else 'is missing'}"
    return Damage(segment.name, line, is_gone=True, is_retired=retired)


def gaps(numbers: Iterable[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """The first and the last number of each stretch between `first` and `last` that has none of the sorted numbers."""
    for number in (*numbers, last + 1):
        if first < number:
            yield first, number - 1
        first = max(first, number + 1)


def gone_between(path: Path, first: int, last: int) -> Iterator[Damage]:
    """The segments from `first` to `last` that do not exist. Of many, one or two items name the whole range."""
    if last - first < _MANY:
        yield from (
            gone(segment) for number in range(first, last + 1) if not (segment := segment_path(path, number)).exists()
        )
        return
    manifest, _ = read_manifest(path)
    kept = first if manifest is None else max(first, min(manifest.first, last + 1))
    for begin, end, is_retired in ((first, kept - 1, True), (kept, last, False)):
        if begin <= end:
            name = f"{segment_path(path, begin).name} to {segment_path(path, end).name}"
            line = f"{name}: {'were removed by retention before they were read' if is_retired else 'are missing'}"
            yield Damage(name, line, is_gone=True, is_retired=is_retired)
