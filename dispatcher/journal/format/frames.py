"""Frames: the unit in which a journal is written and checked.

A segment is a sequence of frames. A frame is a header of 64 bytes and a payload:

    sync 8s | header CRC-32 | kind u8, 3 bytes 0 | number u32 | payload length u32 | payload CRC-32 |
    first seq u64 | events u32 | transitions u32 | earliest time i64 | latest time i64 | segment u32

All little-endian. `number` counts a segment's frames from 0. A reader accepts only intact frames in their place: a
truncated or changed frame fails its checksums, and a frame copied from elsewhere has another segment or number. The
reader then searches for the next sync mark, so damage costs only the frames it hits. Text cannot contain the mark: its
first byte never occurs in UTF-8.

    START      the first of a segment: a JSON object about it
    ROWS       handled events and the transitions made meanwhile (dispatcher.journal.format.columns)
    ACCEPTED   write-ahead mode: accepted events, one JSON object per line
    SNAPSHOT   the live entities of one kind of machine (dispatcher.journal.format.live_states)
    END        the last of a closed segment: a JSON object that sums it up; then 16 bytes with the offset of this frame
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from dispatcher.util.cached_reads import crc32_cached, pread_cached, pread_cached_into
from dispatcher.util.figures import counted
from dispatcher.util.files import open_file

START: Final = 1
ROWS: Final = 2
ACCEPTED: Final = 3
END: Final = 4
SNAPSHOT: Final = 5

SYNC: Final = b"\xffDJF\r\n\x1a\n"
_HEADER: Final = struct.Struct("<8sIBxxxIIIQIIqqI")
_CHECKED_FROM: Final = 12  # the header's checksum covers the bytes behind it
_PACK_CHECKED: Final = struct.Struct("<BxxxIIIQIIqqI").pack  # those bytes
_TRAILER: Final = struct.Struct("<QI4s")
_TRAILER_MARK: Final = b"DJE\n"
TRAILER_BYTES: Final = _TRAILER.size
_CHUNK: Final = 1 << 20


class Header(NamedTuple):
    """A frame's header. For ACCEPTED frames `first_seq` and `events` count accepted events."""

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
    """An intact frame; `payload` is empty if it was not wanted."""

    header: Header
    payload: bytes
    offset: int

    @property
    def end(self) -> int:
        return self.offset + _HEADER.size + self.header.length


class Damage(NamedTuple):
    """A damaged or missing part of a journal, in the place of the frames that were there."""

    segment: str
    """Name of a file in the journal's folder."""
    line: str
    """What is wrong; names the segment, and the frame if there is one."""
    offset: int | None = None
    """In bytes. None, like `length`, if the whole file is damaged. Where frames are missing, the length is 0."""
    length: int | None = None
    events: int | None = None
    """How many events are lost here. None, like `transitions`, if that is unknown."""
    transitions: int | None = None
    at_end: bool = False
    """No intact frame follows."""
    is_torn: bool = False
    """At the end of an open segment: cut off by a crash, or being written. No problem."""
    is_gone: bool = False
    """The segment does not exist."""
    is_retired: bool = False
    """Retention has removed it since it was listed. No problem."""
    is_consequence: bool = False
    """It follows from other damage of the segment."""

    @property
    def is_problem(self) -> bool:
        return not (self.is_torn or self.is_retired)

    def __str__(self) -> str:
        return self.line


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
    """The bytes of one frame; the parameters are the fields of its header."""
    checked = _PACK_CHECKED(
        kind, number, len(payload), crc32(payload), first_seq, events, transitions, min_at, max_at, segment
    )
    return b"".join((SYNC, crc32(checked).to_bytes(4, "little"), checked, payload))


def encode_trailer(end_offset: int) -> bytes:
    """The last bytes of a closed segment: the offset of its END frame."""
    return _TRAILER.pack(end_offset, crc32(end_offset.to_bytes(8, "little")), _TRAILER_MARK)


class FrameReader:
    """Reads the frames of one segment file, also a damaged one. A context manager, for one thread.

    Raises:
        OSError: the file cannot be opened, or is a FIFO or the like (constructor); it cannot be read (methods).
    """

    def __init__(self, path: Path, *, keeps_interpreter: bool = False) -> None:
        """`keeps_interpreter`: reading what the system has cached does not release it, for a look-up next to a
        busy thread."""
        self.path = path
        self._pread = pread_cached if keeps_interpreter else os.pread
        self._crc32 = crc32_cached if keeps_interpreter else crc32
        self._segment = int("".join(filter(str.isdigit, path.name)) or 0)
        self._file = open_file(path)
        status = os.fstat(self._file)
        self.size: int = status.st_size
        self.inode: int = status.st_ino

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def frames(
        self, wanted: Callable[[Header], bool] = lambda _: True, *, start: int = 0, check_all: bool = False
    ) -> Iterator[Frame | Damage]:
        """The intact frames from byte `start` on, and a Damage for each stretch between them.

        Frames that are not `wanted` come without their payloads, which are read and checked only with `check_all`.
        """
        position, end = start, self._end_of_frames()
        expected = None if start else 0  # number of the next frame
        was_damaged = False
        while position < end:
            header = self._header_at(position, end, expected or 0)
            frame = None if header is None else self._frame(header, position, wanted(header), check_all)
            if frame is not None:
                number = frame.header.number
                if expected is not None and number > expected and not was_damaged:
                    line = f"{self.path.name}: {counted(number - expected, 'frame', 'is')} missing at byte {position}"
                    yield Damage(self.path.name, line, position, 0)
                yield frame
                position, expected, was_damaged = frame.end, number + 1, False
                continue
            was_damaged = True
            following = self._next_intact(position + 1, end, expected or 0)
            upto = end if following is None else following
            held: tuple[int | None, int | None] = (None, None)
            if header is not None and position + _HEADER.size + header.length == upto:
                held = (header.events, header.transitions) if header.kind == ROWS else (0, 0)
            line = f"{self.path.name}: {upto - position} bytes from byte {position} on hold no intact frame"
            yield Damage(self.path.name, line, position, upto - position, *held, at_end=following is None)
            position = upto

    def frames_of(self, kind: int, start: int = 0, *, bytes_at_once: int = _CHUNK) -> Iterator[Frame]:
        """The intact frames of one kind from byte `start` on. It searches for their marks, so that frames of other
        kinds cost next to nothing, and passes over damaged ones in silence."""
        mark = re.compile(re.escape(SYNC) + b".{4}" + re.escape(kind.to_bytes(4, "little")), re.DOTALL)
        position = following = start
        end = self._end_of_frames()
        while position < end:
            # Overlapping reads: a mark may lie across two of them.
            for found in mark.finditer(os.pread(self._file, bytes_at_once + _CHECKED_FROM + 3, position)):
                offset = position + found.start()
                header = self._header_at(offset, end) if offset >= following else None
                frame = self._frame(header, offset, True, False) if header is not None else None
                if frame is not None:
                    following = frame.end
                    yield frame
            position += bytes_at_once

    def frame_at(self, offset: int, wanted: Callable[[Header], bool] = lambda _: True) -> Frame | None:
        """The intact frame there, without its payload unless `wanted`; None: there is none."""
        header = self._header_at(offset, self.size)
        return None if header is None else self._frame(header, offset, wanted(header), check=False)

    def read_into(self, buffer: bytearray, length: int, offset: int) -> int:
        """Read unchecked bytes into a buffer; returns how many. Keeps the interpreter if the system has cached them."""
        return pread_cached_into(self._file, buffer, length, offset)

    def last_frame(self) -> Frame | None:
        """The END frame, found by the trailer; None: the segment is open or damaged."""
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
        """The header there. None: it is unsound, of another segment, below number `expected`, or its frame is cut."""
        if position + _HEADER.size > end:
            return None
        data = self._pread(self._file, _HEADER.size, position)
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
        payload = self._pread(self._file, header.length, position + _HEADER.size)
        if len(payload) != header.length or self._crc32(payload) != header.payload_crc:
            return None
        return Frame(header, payload if wanted else b"", position)

    def _next_intact(self, position: int, end: int, expected: int) -> int | None:
        """The offset of the next intact frame from `position` on, or None."""
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
