"""Reading a journal without Spark. Rows of whole frames only: what is damaged is passed over and told.

Readers take no lock and may run beside a writer: they see closed segments, which do not change any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import decode_rows, row_dicts
from dispatcher.journal.format.frames import END, ROWS, Frame, FrameReader
from dispatcher.journal.format.schema import EVENTS, Table
from dispatcher.journal.format.segments import (
    MANIFEST,
    open_segments,
    read_manifest,
    segment_number,
    segment_path,
    segments,
)

log = logging.getLogger(__name__)

_MANY: Final = 1000
"""Missing segments that are not listed one by one."""


def check_journal(path: Path | str) -> Path:
    """The path, if it is a journal's.

    Raises:
        JournalError: there is no such folder, or it is not a journal.
    """
    path = Path(path)
    if not path.is_dir():
        raise JournalError(f"{path}: no such journal folder")
    if not ((path / MANIFEST).exists() or segments(path) or open_segments(path)):
        raise JournalError(f"{path}: not a journal: it has neither {MANIFEST} nor segment-*.journal")
    return path


def read_rows(
    path: Path | str,
    table: Table,
    *,
    include_open: bool = False,
    on_damage: Callable[[str], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """A table's rows in the order of their seq; a null is a missing key.

    `include_open`: with what is whole in the segment that is being written, or was when its writer died.
    `on_damage` gets a line for each stretch, and each missing segment, that is passed over; None: it is logged.

    Raises:
        JournalError: not a journal, or a file cannot be read.
    """
    path = check_journal(path)
    tell = on_damage or (lambda line: log.warning("%s: %s", path, line))
    left_open, closed = _listed(path)
    for line in missing_segments(path, closed):
        tell(line)
    for segment in closed + (left_open if include_open else []):
        for frame in _rows_frames(path, segment, tell):
            yield from _dicts(frame, table)


def tail(path: Path | str, count: int = 10) -> list[dict[str, Any]]:
    """The last `count` events, those of an open segment included as far as they are whole.

    Raises:
        JournalError: as `read_rows`.
    """
    path = check_journal(path)
    rows: list[dict[str, Any]] = []
    left_open, closed = _listed(path)
    for segment in reversed(closed + left_open):
        frames = list(_rows_frames(path, segment, lambda line: log.warning("%s: %s", path, line)))
        for frame in reversed(frames):
            rows = [*_dicts(frame, EVENTS), *rows]
            if len(rows) >= count:
                return rows[-count:] if count else []
    return rows


def missing_segments(path: Path, listed: list[Path]) -> list[str]:
    """A line for each segment that the manifest, or a gap in the numbers, says should be among `listed`."""
    manifest, _ = read_manifest(path)
    numbers = list(map(segment_number, listed))
    first = manifest.first if manifest is not None else min(numbers, default=1)
    last = max(max(numbers, default=0), manifest.last if manifest is not None else 0)
    lines = []
    for number in (*numbers, last + 1):
        lines += _missing_between(path, first, number - 1)
        first = max(first, number + 1)
    return lines


def _missing_between(path: Path, first: int, last: int) -> list[str]:
    if last - first >= _MANY:
        return [f"{segment_path(path, first).name} to {segment_path(path, last).name}: are missing"]
    # One that is gone by now because retention has removed it since is not missing.
    return [
        f"{segment_path(path, number).name}: is missing"
        for number in range(first, last + 1)
        if not segment_path(path, number).exists() and not is_retired(path, number)
    ]


def is_retired(path: Path, number: int) -> bool:
    """Whether retention has removed a segment."""
    manifest, _ = read_manifest(path)
    return manifest is not None and number < manifest.first


def _listed(path: Path) -> tuple[list[Path], list[Path]]:
    """The segments left open, or being written, and the closed ones."""
    # In this order, so that one that is closed meanwhile is found.
    left_open, closed = open_segments(path), segments(path)
    last = segment_number(closed[-1]) if closed else 0
    return [segment for segment in left_open if segment_number(segment) > last], closed


def _rows_frames(path: Path, segment: Path, tell: Callable[[str], None]) -> Iterator[Frame]:
    number = segment_number(segment)
    is_open = segment.name.startswith(".")
    try:
        reader = open_frames(segment)
    except FileNotFoundError:
        if not is_retired(path, number):
            tell(f"{segment.name}: is missing")
        return
    except OSError as error:
        raise JournalError(f"{segment}: cannot be read: {error.strerror or error}") from error
    with reader:
        try:
            has_end = False
            for found in reader.frames(lambda header: header.kind == ROWS, check_all=True):
                if isinstance(found, Frame):
                    has_end = found.header.kind == END
                    if found.header.kind == ROWS:
                        yield found
                elif not (is_open and found.at_end):
                    tell(str(found))
            if not (has_end or is_open):
                tell(f"{segment.name}: has no end")
        except OSError as error:
            raise JournalError(f"{segment}: cannot be read: {error.strerror or error}") from error


def open_frames(segment: Path) -> FrameReader:
    """The reader of a segment, also of an open one that its writer has closed since it was listed."""
    try:
        return FrameReader(segment)
    except FileNotFoundError:
        closed = segment_path(segment.parent, segment_number(segment))
        if closed == segment:
            raise
        return FrameReader(closed)


def _dicts(frame: Frame, table: Table) -> Iterator[dict[str, Any]]:
    return row_dicts(decode_rows(frame.payload), table, frame.header.first_seq)
