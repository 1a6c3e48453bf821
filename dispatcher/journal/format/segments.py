"""The files of a journal: their names, the segment that is being written, and the manifest of those that are closed.

    JOURNAL/journal.json                    the manifest, replaced as a whole
    JOURNAL/segment-00000001.journal        a closed segment
    JOURNAL/.segment-00000002.journal.open  the one that is being written; a rename closes it
    JOURNAL/.lock                           held by the process that writes

A listing of the folder shows only complete segments. The manifest says which there should be, so that even a last one
that is missing is noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import EncodedRows
from dispatcher.journal.format.frames import ACCEPTED, END, ROWS, START, FrameReader, encode_frame, encode_trailer
from dispatcher.util.files import FileLock, replace_file, sync_folder

FORMAT: Final = 1
MANIFEST: Final = "journal.json"
_NUMBER: Final = re.compile(r"^\.?segment-(\d+)\.journal(\.open)?$")


def segment_path(journal: Path, number: int) -> Path:
    """Where a closed segment is."""
    return journal / f"segment-{number:08d}.journal"


def open_segment_path(journal: Path, number: int) -> Path:
    """Where a segment is while it is written: a name that Spark and `segments` pass over."""
    return journal / f".segment-{number:08d}.journal.open"


def segments(journal: Path) -> list[Path]:
    """The closed segments, oldest first."""
    return sorted((path for path in journal.glob("segment-*.journal") if segment_number(path)), key=segment_number)


def open_segments(journal: Path) -> list[Path]:
    """Segments that a writer has open, or left open when it died; at most one, unless somebody put more there."""
    return sorted(
        (path for path in journal.glob(".segment-*.journal.open") if segment_number(path)), key=segment_number
    )


def segment_number(path: Path) -> int:
    """The number in a segment's name; 0: it has none."""
    match = _NUMBER.match(path.name)
    return int(match.group(1)) if match else 0


class Summary(NamedTuple):
    """What a segment holds. Seqs and accepted seqs are contiguous, from their first on."""

    first_seq: int
    events: int = 0
    transitions: int = 0
    first_accepted: int = 1
    accepted: int = 0
    min_at: int = 0
    """Earliest time of any row; Unix ns in the clock of the run. With `max_at` 0 where there is no row."""
    max_at: int = 0
    frames: int = 0
    """With START and END."""
    closed_at: int = 0
    """Unix ns of real time."""
    recover_from: int = 0
    """The first segment that recovery has to read: the one with the oldest event accepted and not handled."""

    @property
    def next_seq(self) -> int:
        return self.first_seq + self.events

    @property
    def next_accepted(self) -> int:
        return self.first_accepted + self.accepted


def read_summary(segment: Path) -> Summary | None:
    """What a closed segment says of itself, without reading the rest; None: its end is damaged.

    Raises:
        OSError: it cannot be read.
    """
    with FrameReader(segment) as reader:
        frame = reader.last_frame()
    if frame is None:
        return None
    fields = json.loads(frame.payload)
    return Summary(**{name: fields[name] for name in Summary._fields if name in fields})


class Manifest(NamedTuple):
    """Which segments there are: `first` to `last`, none if `last` is less; one more if a crash came between a rename
    and the manifest."""

    first: int = 1
    last: int = 0
    closed: bool = False
    """The writer has ended in good order: nothing comes after `last`."""

    def write(self, journal: Path, *, sync: bool) -> None:
        """Replace the manifest by this one.

        Raises:
            OSError: it cannot be written.
        """
        text = _manifest_text(FORMAT, self)
        replace_file(journal / MANIFEST, text.encode("ascii"), draft=journal / f".{MANIFEST}.new", sync=sync)


def read_manifest(journal: Path) -> tuple[Manifest | None, str | None]:
    """The manifest, and what is wrong with it. No manifest and nothing wrong: there is none.

    Raises:
        JournalError: it is of a format that this version does not know.
    """
    path = journal / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{MANIFEST}: cannot be read: {error.strerror or error}"
    try:
        fields = json.loads(data)
        manifest = Manifest(fields["first"], fields["last"], fields["closed"])
        # Written as it is written here, to the byte: so a change of any byte shows.
        is_sound = data == _manifest_text(fields["format"], manifest).encode("ascii")
    except (ValueError, KeyError, TypeError):
        return None, f"{MANIFEST}: is damaged"
    if not is_sound:
        return None, f"{MANIFEST}: is damaged"
    if fields["format"] != FORMAT:
        raise JournalError(
            f"{journal}: a journal of format {fields['format']}, and this version reads format {FORMAT}. "
            "Read it with the version that wrote it."
        )
    return manifest, None


def _manifest_text(format_: int, manifest: Manifest) -> str:
    fields = {"format": format_, **manifest._asdict()}
    return json.dumps({**fields, "check": f"{crc32(json.dumps(fields).encode('ascii')):08x}"}) + "\n"


def lock_for_writing(journal: Path) -> FileLock:
    """Keep other processes from writing the journal.

    Raises:
        JournalError: another process holds the lock. OSError: the folder cannot be written.
    """
    try:
        return FileLock(journal / ".lock")
    except BlockingIOError as error:
        raise JournalError(
            f"{journal}: is being written by another process, or another writer of this one. Stop that one first."
        ) from error


class SegmentFile:
    """The segment that is being written. Not thread-safe: its writer guards it with a lock.

    Raises (all methods):
        OSError: the disk is full, read-only or gone. What was written of the frame is cut off again; should not even
            that be possible, it is a torn tail, which no reader believes.
    """

    def __init__(self, journal: Path, number: int, summary: Summary) -> None:
        """A new segment, which goes on where `summary`, that of its predecessor, ends."""
        self.number = number
        self._path = open_segment_path(journal, number)
        self._closed_path = segment_path(journal, number)
        if self._closed_path.exists():
            raise FileExistsError(17, "a segment of that number exists", str(self._closed_path))
        self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._identity = _identity(os.fstat(self._file))
        self.size = 0
        self.opened_s = time.monotonic()
        self.summary = Summary(summary.next_seq, first_accepted=summary.next_accepted)
        about = {"format": FORMAT, "segment": number, "first_seq": self.summary.first_seq}
        try:
            self._append(START, json.dumps(about).encode("ascii"))
        except BaseException:
            self.abandon()
            raise

    def append_rows(self, rows: EncodedRows) -> None:
        """Add a ROWS frame, whose first event has the next seq."""
        now = self.summary
        self._append(ROWS, rows.payload, now.next_seq, rows.events, rows.transitions, rows.min_at, rows.max_at)
        if rows.events or rows.transitions:
            has_rows = now.events or now.transitions
            self.summary = self.summary._replace(
                events=now.events + rows.events,
                transitions=now.transitions + rows.transitions,
                min_at=min(now.min_at, rows.min_at) if has_rows else rows.min_at,
                max_at=max(now.max_at, rows.max_at) if has_rows else rows.max_at,
            )

    def append_accepted(self, payload: bytes, events: int, at: int) -> None:
        """Add an ACCEPTED frame, whose first event has the next accepted seq."""
        now = self.summary
        self._append(ACCEPTED, payload, now.next_accepted, events, 0, at, at)
        self.summary = self.summary._replace(accepted=now.accepted + events)

    @property
    def is_empty(self) -> bool:
        """Nothing but its START frame is in it."""
        return self.summary.frames <= 1

    def _append(self, kind: int, payload: bytes, *numbers: int) -> None:
        data = encode_frame(self.number, kind, self.summary.frames, payload, *numbers)
        self._write(data)
        self.summary = self.summary._replace(frames=self.summary.frames + 1)

    def _write(self, data: bytes) -> None:
        self._check_there()
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size += len(data)

    def _check_there(self) -> None:
        """A file whose folder was removed or moved takes all that is written, and nobody ever finds it."""
        if _identity(self._path.stat()) != self._identity:
            raise FileNotFoundError(2, "the segment that was being written is gone", str(self._path))

    def sync(self) -> None:
        """Have it on the disk."""
        os.fdatasync(self._file)

    def close(self, *, sync: bool, recover_from: int) -> Path | None:
        """Add the END frame and give the segment its name; None if it was empty: then it is removed."""
        if self.is_empty:
            self.abandon()
            self._path.unlink()
            return None
        summary = self.summary._replace(
            frames=self.summary.frames + 1, closed_at=time.time_ns(), recover_from=recover_from
        )
        end = encode_frame(self.number, END, self.summary.frames, json.dumps(summary._asdict()).encode("ascii"))
        self._write(end + encode_trailer(self.size))
        if sync:
            os.fsync(self._file)
        self.summary = summary
        self.abandon()
        self._path.rename(self._closed_path)
        return self._closed_path

    def abandon(self) -> None:
        """Leave the segment as it is: one that a crash could have left. Repeating it does nothing."""
        if self._file >= 0:
            with contextlib.suppress(OSError):  # what could not be written still cannot
                os.close(self._file)
            self._file = -1


def close_left_open(path: Path, keep: int, summary: Summary, recover_from: int, *, number: int) -> Path:
    """Close a segment whose writer died: cut it after `keep` bytes, add the END frame, give it its name.

    Repeating it after a crash does no harm. Raises OSError.
    """
    summary = summary._replace(frames=summary.frames + 1, closed_at=time.time_ns(), recover_from=recover_from)
    end = encode_frame(segment_number(path), END, number, json.dumps(summary._asdict()).encode("ascii"))
    with path.open("r+b") as file:
        file.truncate(keep)
        file.seek(keep)
        file.write(end + encode_trailer(keep))
        file.flush()
        os.fsync(file.fileno())
    closed = path.with_name(path.name.removeprefix(".").removesuffix(".open"))
    path.rename(closed)
    sync_folder(path.parent)
    return closed


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
