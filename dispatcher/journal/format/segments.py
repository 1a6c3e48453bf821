"""The files of a journal: their names, the open segment, and the manifest of the closed ones.

    JOURNAL/journal.json                    the manifest, replaced atomically
    JOURNAL/segment-00000001.journal        a closed segment
    JOURNAL/.segment-00000002.journal.open  the open segment; a rename closes it
    JOURNAL/.lock                           held by the writing process
    JOURNAL/NAME.aside                      what recovery has taken out of the journal; nothing reads it

A listing of the folder shows only complete segments. The manifest records which segments should exist, so that even a
missing last one is noticed. The manifest and the start of each segment carry the journal's id.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import EncodedRows
from dispatcher.journal.format.frames import (
    ACCEPTED,
    END,
    ROWS,
    SNAPSHOT,
    START,
    Frame,
    FrameReader,
    encode_frame,
    encode_trailer,
)
from dispatcher.journal.format.summary import Summary
from dispatcher.util.descriptors import NO_DESCRIPTORS
from dispatcher.util.files import (
    ASIDE,
    PRIVATE_FILE,
    FileLock,
    explain,
    open_file,
    read_file,
    replace_file,
    sync_folder,
)
from dispatcher.util.forks import let_go_in_children, no_fork

FORMAT: Final = 1
MANIFEST: Final = "journal.json"
LAST_NUMBER: Final = 2**31 - 1
"""The greatest number of a segment; a frame's header has room for twice as many."""
_NAME: Final = re.compile(r"\.?segment-(\d+)\.journal(\.open)?")
_HISTORY_INDEX: Final = re.compile(r"\.segment-\d+\.history(\.new-\d+)?")
_MOST_MANIFEST_BYTES: Final = 1 << 12
"""A sound manifest is far shorter."""
_LOOK_EVERY_NS: Final = 100_000_000


def segment_path(journal: Path, number: int) -> Path:
    """The path of a closed segment."""
    return journal / _name(number)


def open_segment_path(journal: Path, number: int) -> Path:
    """The path of a segment while it is written: a name that Spark and `segments` ignore."""
    return journal / f".{_name(number)}.open"


def _name(number: int) -> str:
    return f"segment-{number:08d}.journal"


def segments(journal: Path) -> list[Path]:
    """The closed segments, oldest first; none if there is no such folder. Raises OSError: it cannot be listed."""
    listed = (journal / name for name in _names_in(journal) if not name.startswith("."))
    return sorted(filter(segment_number, listed), key=segment_number)


def open_segments(journal: Path) -> list[Path]:
    """Segments that a writer has open, or left open when it died, oldest first. A writer leaves at most one.

    Raises OSError as `segments`.
    """
    listed = (journal / name for name in _names_in(journal) if name.startswith("."))
    return sorted(filter(segment_number, listed), key=segment_number)


def segment_number(path: Path) -> int:
    """The number in a segment's name; 0: not a segment. Each number has one valid name: `segment-2.journal` gives 0."""
    name = path.name
    match = _NAME.fullmatch(name)
    number = int(match.group(1)) if match else 0
    is_segment = name in (_name(number), f".{_name(number)}.open")
    return number if is_segment and number <= LAST_NUMBER else 0


def is_open_segment(segment: Path) -> bool:
    """Whether the segment was open when it was listed."""
    return segment.name.startswith(".")


def misnamed_segments(journal: Path) -> list[Path]:
    """Files named like segments, but with their number written in another way. Raises OSError as `segments`."""
    listed = (journal / name for name in sorted(_names_in(journal)) if _NAME.fullmatch(name))
    return [path for path in listed if not segment_number(path)]


def set_aside_files(journal: Path) -> list[Path]:
    """What recovery has set aside. Raises OSError as `segments`."""
    aside = re.compile(rf"(segment-\d+\.journal(\.open)?|{re.escape(MANIFEST)}){re.escape(ASIDE)}(-\d+)?")
    return [journal / name for name in sorted(_names_in(journal)) if aside.fullmatch(name)]


def remove_history_indexes(journal: Path) -> None:
    """Remove the indexes of entities that earlier releases wrote next to the segments. Raises OSError."""
    for name in filter(_HISTORY_INDEX.fullmatch, _names_in(journal)):
        (journal / name).unlink(missing_ok=True)


def _names_in(journal: Path) -> list[str]:
    # Not Path.glob: it takes a folder that may not be read for an empty one.
    try:
        return [path.name for path in journal.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_summary(segment: Path) -> Summary | None:
    """The summary in a closed segment's END frame; None: its end is damaged. Raises OSError."""
    with FrameReader(segment) as reader:
        frame = reader.last_frame()
    if frame is None:
        return None
    try:
        fields = json.loads(frame.payload)
        return Summary(**{name: int(fields[name]) for name in Summary._fields if name in fields})
    except (ValueError, TypeError, RecursionError):
        return None


def read_start(segment: Path) -> dict[str, Any]:
    """What a segment's START frame says; empty if it is damaged. Raises OSError."""
    with FrameReader(segment) as reader:
        frame = reader.frame_at(0)
    return decode_start(frame)


def decode_start(frame: Frame | None) -> dict[str, Any]:
    """What a START frame says, given the first frame of a segment; empty if the frame is damaged."""
    try:
        fields = json.loads(frame.payload) if frame is not None and frame.header.kind == START else {}
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The closed segments: `first` to `last`, empty if `last` < `first`. A crash between the rename of a segment and
    the update of the manifest leaves one more in the folder."""

    first: int = 1
    last: int = 0
    closed: bool = False
    """The writer has closed the journal: no segment follows `last`."""
    journal: str | None = field(default=None, compare=False)
    """The journal's id, which it has from its beginning on; None: an earlier release wrote it."""

    @property
    def is_possible(self) -> bool:
        """Its values have the right types, and its numbers can be numbers of segments."""
        numbers = (self.first, self.last + 1) if type(self.first) is type(self.last) is int else (0,)
        is_id = self.journal is None or type(self.journal) is str
        return is_id and type(self.closed) is bool and all(0 < number <= LAST_NUMBER + 1 for number in numbers)

    def write(self, journal: Path, *, sync: bool, mode: int = PRIVATE_FILE) -> None:
        """Replace the manifest in the folder. Raises OSError."""
        data = _encode_manifest(FORMAT, self)
        replace_file(journal / MANIFEST, data, draft=journal / f".{MANIFEST}.new", sync=sync, mode=mode)


def read_manifest(journal: Path) -> tuple[Manifest | None, str | None]:
    """The manifest or its problem; both None if the journal has no manifest.

    Raises:
        JournalError: this version does not know the manifest's format.
    """
    path = journal / MANIFEST
    try:
        data = read_file(path, _MOST_MANIFEST_BYTES)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{MANIFEST}: cannot be read: {error.strerror or error}"
    try:
        fields = json.loads(data)
        manifest = Manifest(fields["first"], fields["last"], fields["closed"], fields.get("journal"))
        is_sound = data == _encode_manifest(fields["format"], manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, f"{MANIFEST}: is damaged"
    if not is_sound or (fields["format"] == FORMAT and not manifest.is_possible):
        return None, f"{MANIFEST}: is damaged"
    if fields["format"] != FORMAT:
        raise JournalError(
            f"{journal}: a journal of format {fields['format']}, but this version reads format {FORMAT}. "
            "Read it with the version that wrote it."
        )
    return manifest, None


def _encode_manifest(format_: int, manifest: Manifest) -> bytes:
    fields = {"format": format_, **asdict(manifest)}
    if manifest.journal is None:  # as an earlier release wrote it
        del fields["journal"]
    return checked_json(fields)


def checked_json(fields: dict[str, Any]) -> bytes:
    """A line of JSON with a checksum. Encoding the fields that were read again must give the same bytes."""
    return json.dumps({**fields, "check": f"{crc32(json.dumps(fields).encode('ascii')):08x}"}).encode("ascii") + b"\n"


def holds_journal(folder: Path) -> bool:
    """Whether the folder has segments or a manifest, sound or damaged.

    Raises:
        JournalError: as `read_manifest`. OSError: it cannot be listed.
    """
    return any(map(_NAME.fullmatch, _names_in(folder))) or read_manifest(folder) != (None, None)


def unwritable(path: Path, error: OSError) -> JournalError:
    """The error for a journal that cannot be written, with what helps against it."""
    if error.errno in NO_DESCRIPTORS:
        advice = "Raise the limit of open files (ulimit -n)"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR):
        advice = "The path, or a part of it, is a file: give the journal another folder"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "Let this user write there, or give it another folder"
    else:
        advice = "Make room, or give it another folder"
    return JournalError(f"{path}: the journal cannot be written: {explain(error, path)}. {advice}, and start again.")


def lock_for_writing(journal: Path, mode: int = PRIVATE_FILE) -> FileLock:
    """Keep other processes from writing the journal.

    Raises:
        JournalError: another process holds the lock. OSError: the folder cannot be written.
    """
    try:
        return FileLock(journal / ".lock", mode)
    except BlockingIOError as error:
        raise JournalError(
            f"{journal}: is being written by another process, or another writer of this one. Stop that one first."
        ) from error


class SegmentFile:
    """The open segment. Not thread-safe: its writer guards it with a lock.

    Raises (all methods):
        OSError: the disk is full, read-only or gone. The partial frame is cut off again; if even that fails, readers
            reject it by its checksums.
    """

    def __init__(
        self, journal: Path, number: int, before: Summary, journal_id: str | None = None, mode: int = PRIVATE_FILE
    ) -> None:
        """Create the segment that follows the one summarized by `before`."""
        self.number = number
        self._path = open_segment_path(journal, number)
        self._closed_path = segment_path(journal, number)
        if number > LAST_NUMBER:
            raise OSError(errno.EFBIG, f"no segment number is left after {LAST_NUMBER}")
        self._refuse_a_second()
        with no_fork():
            # The descriptor; -1: closed.
            self._file = open_file(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, mode)
            let_go_in_children(self)
        self._identity = _identity(os.fstat(self._file))
        self.size: int = 0
        self.opened_s: float = time.monotonic()
        self._looked_ns = 0  # when an accepted event last looked for the file in its folder; Unix ns
        self._rows = before.following()  # its counts of frames and accepted events are in `frames` and `next_accepted`
        self.frames: int = 0
        self.next_accepted: int = self._rows.first_accepted
        about: dict[str, int | str] = {
            "format": FORMAT,
            "segment": number,
            "first_seq": self.next_seq,
            "first_accepted": self.next_accepted,
        }
        if journal_id is not None:
            about["journal"] = journal_id
        try:
            self._append(START, json.dumps(about).encode("ascii"))
        except BaseException:
            self.abandon()
            raise

    def append_rows(self, rows: EncodedRows) -> None:
        """Append a ROWS frame, whose first event gets the next seq."""
        first_seq = self.next_seq
        self._append(ROWS, rows.payload, first_seq, rows.events, rows.transitions, rows.min_at, rows.max_at)
        self._rows = self._rows.with_rows(rows, first_seq + rows.events)

    def append_accepted(self, payload: bytes, events: int, at: int, *, looks: bool = True) -> None:
        """Append an ACCEPTED frame, whose first event gets the next accepted seq. `at`: now, in Unix ns.

        `looks`: before it, look whether the file is still in its folder. Otherwise, do so only if the last look is
        100 ms ago: it costs more than the write.
        """
        if looks or abs(at - self._looked_ns) >= _LOOK_EVERY_NS:  # the clock may be set back
            self._look()
            self._looked_ns = at
        first = self.next_accepted
        self._write(encode_frame(self.number, ACCEPTED, self.frames, payload, first, events, 0, at, at))
        self.frames += 1
        self.next_accepted = first + events

    def append_snapshot(self, payload: bytes) -> None:
        """Append a SNAPSHOT frame."""
        self._append(SNAPSHOT, payload)

    @property
    def next_seq(self) -> int:
        return self._rows.next_seq

    @property
    def summary(self) -> Summary:
        return self._rows._replace(frames=self.frames, accepted=self.next_accepted - self._rows.first_accepted)

    @property
    def is_empty(self) -> bool:
        """It has only its START frame."""
        return self.frames <= 1

    def _append(self, kind: int, payload: bytes, *numbers: int) -> None:
        self._look()
        self._write(encode_frame(self.number, kind, self.frames, payload, *numbers))
        self.frames += 1

    def _look(self) -> None:
        # A file still accepts writes after its folder was removed or renamed, but no reader finds it any longer.
        if _identity(self._path.stat()) != self._identity:
            raise FileNotFoundError(2, "the segment that was being written is gone", str(self._path))

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._file, data)
            while written < len(data):
                written += os.write(self._file, data[written:])
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size += written

    def sync(self) -> None:
        os.fdatasync(self._file)

    def close(self, *, sync: bool, recover_from: int, outstanding_from: int = 0) -> Path | None:
        """Append the END frame and rename the segment; an empty one is removed instead, and None returned."""
        if self.is_empty:
            self.abandon()
            self._path.unlink()
            return None
        self._refuse_a_second()
        self._look()
        summary = self.summary.closed(recover_from, outstanding_from)
        self._write(_encode_end(self.number, summary, self.size))
        if sync:
            os.fsync(self._file)
        self._rows, self.frames = summary, summary.frames
        self.abandon()
        self._path.rename(self._closed_path)
        return self._closed_path

    def _refuse_a_second(self) -> None:
        """The rename would replace a closed segment of this number, which was put into the folder meanwhile."""
        if self._closed_path.exists():
            raise FileExistsError(errno.EEXIST, "a closed segment of its number exists", str(self._closed_path))

    def abandon(self) -> None:
        """Close the file but leave the segment open, as a crash would. Repeating it does nothing."""
        if self._file >= 0:
            with contextlib.suppress(OSError):  # a failed disk may fail here again
                os.close(self._file)
            self._file = -1

    def after_fork(self) -> None:
        """In a forked child: the segment is the parent's."""
        self.abandon()


def close_left_open(path: Path, keep: int, summary: Summary) -> Path:
    """Close a segment whose writer died: cut it after `keep` bytes, append the END frame with `summary`, and rename it.

    Safe to repeat after a crash. Raises OSError.
    """
    closed = segment_path(path.parent, segment_number(path))
    if closed.exists():
        raise FileExistsError(errno.EEXIST, "a closed segment of its number exists", str(closed))
    with os.fdopen(open_file(path, os.O_RDWR), "r+b") as file:
        file.truncate(keep)
        file.seek(keep)
        file.write(_encode_end(segment_number(path), summary, keep))
        file.flush()
        os.fsync(file.fileno())
    path.rename(closed)
    sync_folder(path.parent)
    return closed


def _encode_end(segment: int, summary: Summary, offset: int) -> bytes:
    """The END frame, which begins at `offset`, and the trailer."""
    end = encode_frame(segment, END, summary.frames - 1, json.dumps(summary._asdict()).encode("ascii"))
    return end + encode_trailer(offset)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
