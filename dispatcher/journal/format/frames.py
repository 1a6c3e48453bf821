"""Frames: the unit in which a journal is written, checked and believed.

A segment is a file of frames, one after the other. A frame is a header of 64 bytes and a payload:

    sync 8s | header CRC-32 | kind u8, 3 bytes 0 | number u32 | payload length u32 | payload CRC-32 |
    first seq u64 | events u32 | transitions u32 | earliest time i64 | latest time i64 | segment u32

All little-endian. `number` counts a segment's frames from 0. A frame is whole and in its place, or it is not there:
what a crash cut off, a full disk cut short or anything has changed does not pass its checksums, what was copied from
elsewhere has another segment or number; and the search for the next sync mark goes on behind it, so that damage costs
the frames that it hit and no others. No text holds that mark: its first byte is none of UTF-8's.

    START      the segment's first: a JSON object about it
    ROWS       events that were handled and the transitions made meanwhile (dispatcher.journal.format.columns)
    ACCEPTED   write-ahead mode: events that were accepted, one JSON object per line
    END        a closed segment's last: a JSON object that sums it up; then 16 bytes that say where this frame begins
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

START: Final = 1
ROWS: Final = 2
ACCEPTED: Final = 3
END: Final = 4

SYNC: Final = b"\xffDJF\r\n\x1a\n"
_HEADER: Final = struct.Struct("<8sIBxxxIIIQIIqqI")
_CHECKED_FROM: Final = 12  # what the header's checksum covers begins behind it
_TRAILER: Final = struct.Struct("<QI4s")
_TRAILER_MARK: Final = b"DJE\n"
TRAILER_BYTES: Final = _TRAILER.size
_CHUNK: Final = 1 << 20


class Header(NamedTuple):
    """What a frame says of itself. For ACCEPTED frames `first_seq` and `events` count accepted events."""

    kind: int
    number: int
    length: int
    payload_crc: int
    first_seq: int = 0
    events: int = 0
    transitions: int = 0
    min_at: int = 0
    max_at: int = 0
    segment: int = 0


class Frame(NamedTuple):
    """A whole frame; `payload` is empty if it was not asked for."""

    header: Header
    payload: bytes
    offset: int
    """Where it begins in its file."""

    @property
    def end(self) -> int:
        return self.offset + _HEADER.size + self.header.length


class Damage(NamedTuple):
    """A stretch of a segment that is no whole frame in its place; of length 0 where frames are missing."""

    segment: Path
    offset: int
    length: int
    at_end: bool
    """No whole frame follows: in an open segment a tail torn off by a crash."""
    missing: int = 0
    """Frames that should come here."""

    def __str__(self) -> str:
        if self.missing:
            return f"{self.segment.name}: {self.missing} frames are missing at byte {self.offset}"
        return f"{self.segment.name}: {self.length} bytes from byte {self.offset} on are no whole frame"


def encode_frame(
    segment: int,
    kind: int,
    number: int,
    payload: bytes,
    first_seq: int = 0,
    events: int = 0,
    transitions: int = 0,
    min_at: int = 0,
    max_at: int = 0,
) -> bytes:
    """A frame as it is written."""
    numbers = (kind, number, len(payload), crc32(payload), first_seq, events, transitions, min_at, max_at, segment)
    checked = _HEADER.pack(SYNC, 0, *numbers)[_CHECKED_FROM:]
    return b"".join((SYNC, crc32(checked).to_bytes(4, "little"), checked, payload))


def encode_trailer(end_offset: int) -> bytes:
    """The last bytes of a closed segment: where its END frame begins."""
    return _TRAILER.pack(end_offset, crc32(end_offset.to_bytes(8, "little")), _TRAILER_MARK)


class FrameReader:
    """Reads the frames of one segment file, whatever is in it. Closed by `with`. One thread.

    Raises:
        OSError: from the constructor: the file cannot be opened; from the others: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._segment = int("".join(filter(str.isdigit, path.name)) or 0)
        self._file = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._file).st_size

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def frames(
        self, wanted: Callable[[Header], bool] = lambda _: True, *, start: int = 0, check_all: bool = False
    ) -> Iterator[Frame | Damage]:
        """The frames from byte `start` on, and a Damage for each stretch between them that is none.

        Of frames that are not `wanted` only the header is read, unless `check_all`: then their payloads are checked.
        """
        position, end = start, self._end_of_frames()
        expected = None if start else 0  # number of the next frame
        was_damaged = False
        while position < end:
            header = self._header_at(position, end, expected or 0)
            frame = None
            if header is not None:
                frame = self._frame(header, position, wanted(header), check_all)
            if frame is not None:
                number = frame.header.number
                if expected is not None and number > expected and not was_damaged:
                    yield Damage(self.path, position, 0, False, number - expected)
                yield frame
                position, expected, was_damaged = frame.end, number + 1, False
                continue
            was_damaged = True
            following = self._next_whole(position + 1, end, expected or 0)
            upto = end if following is None else following
            yield Damage(self.path, position, upto - position, following is None)
            position = upto

    def last_frame(self) -> Frame | None:
        """The END frame, found by the trailer; None if there is none: the segment is open or damaged."""
        offset = self._trailer()
        if offset is None:
            return None
        end = self.size - TRAILER_BYTES
        header = self._header_at(offset, end)
        if header is None or header.kind != END:
            return None
        frame = self._frame(header, offset, True, False)
        return frame if frame is not None and frame.end == end else None

    def _trailer(self) -> int | None:
        if self.size < TRAILER_BYTES:
            return None
        offset, check, mark = _TRAILER.unpack(os.pread(self._file, TRAILER_BYTES, self.size - TRAILER_BYTES))
        return offset if mark == _TRAILER_MARK and check == crc32(offset.to_bytes(8, "little")) else None

    def _end_of_frames(self) -> int:
        return self.size if self._trailer() is None else self.size - TRAILER_BYTES

    def _header_at(self, position: int, end: int, expected: int = 0) -> Header | None:
        """The header there, if it is sound, of this segment, has no number that was passed, and its frame fits."""
        if position + _HEADER.size > end:
            return None
        data = os.pread(self._file, _HEADER.size, position)
        if len(data) < _HEADER.size or not data.startswith(SYNC):
            return None
        _, check, *fields = _HEADER.unpack(data)
        if check != crc32(data[_CHECKED_FROM:]):
            return None
        header = Header(*fields)
        is_in_place = header.segment == self._segment and header.number >= expected
        return header if is_in_place and position + _HEADER.size + header.length <= end else None

    def _frame(self, header: Header, position: int, wanted: bool, check: bool) -> Frame | None:
        if not wanted and not check:
            return Frame(header, b"", position)
        payload = os.pread(self._file, header.length, position + _HEADER.size)
        if len(payload) != header.length or crc32(payload) != header.payload_crc:
            return None
        return Frame(header, payload if wanted else b"", position)

    def _next_whole(self, position: int, end: int, expected: int) -> int | None:
        """Where the next whole frame begins, from `position` on; None if there is none."""
        while position < end:
            # Overlapping reads: a sync mark may lie across two of them.
            data = os.pread(self._file, _CHUNK + len(SYNC) - 1, position)
            found = data.find(SYNC)
            while found >= 0 and found < _CHUNK:
                header = self._header_at(position + found, end, expected)
                if header is not None and self._frame(header, position + found, True, True) is not None:
                    return position + found
                found = data.find(SYNC, found + 1)
            position += _CHUNK
        return None
