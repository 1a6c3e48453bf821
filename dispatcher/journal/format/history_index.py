"""The history index of a closed segment: which of its frames have rows about an entity.

    JOURNAL/.segment-00000001.history    the index of segment-00000001.journal

It holds nothing that the segment does not. If it is missing, damaged or was made of another segment, readers search
the segment instead.

An entity's hash is the CRC-32 of its name as frames store it. The index has one entry for each pair of a frame and a
hash of an entity in it, ordered by hash and then by frame. All numbers are little-endian. The file has a header, the
header's CRC-32, and then

    offsets        u64 for each ROWS frame: where it begins in the segment
    directory      u32 for each value of the hash's first bits, and one more: the first entry from that value on
    fingerprints   the hash's last byte or two bytes, for each entry
    frames         the entry's frame as a position among the offsets: one, two or four bytes

These four are cut into pages of 4096 bytes. The last 4 bytes of a page are a checksum of its content, its number and
the header. A look-up reads and checks a handful of pages. By chance it may name a frame without the entity; it never
misses one that has it.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from dispatcher.errors import JournalError
from dispatcher.journal.format.segments import SegmentEnd, segment_number
from dispatcher.util.cached_reads import pread_cached
from dispatcher.util.files import open_file

_SUFFIX: Final = ".history"
_MAGIC: Final = b"\xffDJH\r\n\x1a\n"
_FORMAT: Final = 1
_HEADER: Final = struct.Struct("<8sHBBBxxxIIQIQ")
_CHECK_BYTES: Final = 4
_PAGE: Final = 4096
_IN_PAGE: Final = _PAGE - _CHECK_BYTES
_OFFSET_BYTES: Final = 8
_DIRECTORY_BYTES: Final = 4
_HASH_BITS: Final = 32
_MOST_DIRECTORY_BITS: Final = {1: 20, 2: 16}  # by bytes of a fingerprint; its bits are not among those
_ENTRIES_OF_A_BUCKET: Final = {1: 16, 2: 64}
_LARGE: Final = 0.12
"""An index with longer fingerprints that exceeds this share of the segment's bytes gets the shorter ones."""
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


class UnsoundIndexError(JournalError):
    """A history index is damaged or cut. The journal itself is not affected."""


class Header(NamedTuple):
    """The header of an index."""

    fingerprint_bytes: int
    frame_bytes: int
    directory_bits: int
    segment: int
    segment_check: int
    """The checksum in the segment's END frame."""
    segment_bytes: int
    frames: int
    entries: int

    @property
    def is_possible(self) -> bool:
        """The widths are among those that a writer chooses."""
        most_bits = _MOST_DIRECTORY_BITS.get(self.fingerprint_bytes, -1)
        return self.frame_bytes in (1, 2, 4) and self.directory_bits <= most_bits

    @property
    def directory_at(self) -> int:
        """Where the directory begins: bytes behind the header, checksums of pages not counted."""
        return self.frames * _OFFSET_BYTES

    @property
    def fingerprints_at(self) -> int:
        return self.directory_at + ((1 << self.directory_bits) + 1) * _DIRECTORY_BYTES

    @property
    def frames_at(self) -> int:
        return self.fingerprints_at + self.entries * self.fingerprint_bytes

    @property
    def body_bytes(self) -> int:
        return self.frames_at + self.entries * self.frame_bytes

    @property
    def pages(self) -> int:
        return -(-self.body_bytes // _IN_PAGE)

    @property
    def file_bytes(self) -> int:
        return _HEADER.size + _CHECK_BYTES + self.body_bytes + self.pages * _CHECK_BYTES

    def encode(self) -> bytes:
        """With its checksum."""
        data = _HEADER.pack(_MAGIC, _FORMAT, *self)
        return data + crc32(data).to_bytes(_CHECK_BYTES, "little")

    def is_of(self, segment: Path, end: SegmentEnd) -> bool:
        mine = (self.segment, self.segment_bytes, self.segment_check)
        return mine == (segment_number(segment), end.size, end.checksum)


def index_path(segment: Path) -> Path:
    """The path of a closed segment's index. Listings and Spark ignore the name."""
    return segment.with_name(f".{segment.stem}{_SUFFIX}")


def segment_of(index: Path) -> Path | None:
    """The path of the segment that this index belongs to; None: the name is not an index's."""
    segment = index.with_name(f"{index.stem.removeprefix('.')}.journal")
    return segment if index_path(segment) == index and segment_number(segment) else None


def is_orphan(path: Path) -> bool:
    """Whether the name is an index's, and its segment does not exist."""
    segment = segment_of(path)
    return segment is not None and not segment.exists()


def header_for(segment: Path, end: SegmentEnd, frames: int, entries: int) -> Header:
    """The header of a segment's index with this many frames and entries. It decides the widths of the columns."""
    frame_bytes = 1 if frames <= 1 << 8 else 2 if frames <= 1 << 16 else 4
    fingerprint_bytes = 2 if entries * (2 + frame_bytes) <= _LARGE * end.size else 1
    buckets = entries // _ENTRIES_OF_A_BUCKET[fingerprint_bytes]
    bits = min(_MOST_DIRECTORY_BITS[fingerprint_bytes], buckets.bit_length())
    return Header(
        fingerprint_bytes, frame_bytes, bits, segment_number(segment), end.checksum, end.size, frames, entries
    )


def encode_index(
    header: Header, offsets: array[int], entries: Iterable[array[int]], pause: Callable[[], None] = lambda: None
) -> bytes:
    """The bytes of the index. `entries`, in order: the hash in the upper 32 bits, the frame's position in the lower.

    `pause` is called after each piece of the work.
    """
    fingerprints, frames, directory = bytearray(), bytearray(), array("I")
    shift = 2 * _HASH_BITS - header.directory_bits
    done, last = 0, 1 << header.directory_bits
    for part in entries:
        # The first entry of each bucket that begins in this part: up to the bucket of the part's last entry.
        data = _little_endian(part)
        fingerprints += _lane(data, header.fingerprint_bytes, 4)
        frames += _lane(data, header.frame_bytes, 0)
        place = 0
        for bucket in range(len(directory), (part[-1] >> shift) + 1 if part else 0):
            place = bisect_left(part, bucket << shift, place)
            directory.append(done + place)
            if not bucket % 1024:
                pause()
        done += len(part)
        pause()
    directory.extend([done] * (last + 1 - len(directory)))
    body = b"".join((_little_endian(offsets), _little_endian(directory), fingerprints, frames))
    return b"".join(_paged(header, body, pause))


def _paged(header: Header, body: bytes, pause: Callable[[], None]) -> Iterator[bytes]:
    head = header.encode()
    yield head
    for page in range(header.pages):
        data = body[page * _IN_PAGE : (page + 1) * _IN_PAGE]
        yield data
        yield _page_check(head, page, data)
        if not page % 256:
            pause()


def _page_check(head: bytes, page: int, data: bytes) -> bytes:
    return crc32(data, crc32(page.to_bytes(_CHECK_BYTES, "little"), crc32(head))).to_bytes(_CHECK_BYTES, "little")


def _lane(data: bytes, width: int, first: int) -> bytes:
    """Of each 8 bytes, the `width` bytes from `first` on."""
    units = array(_CODES[width])
    units.frombytes(data)
    return units[first // width :: 8 // width].tobytes()


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _numbers(data: bytes, width: int) -> array[int]:
    found = array(_CODES[width])
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found


class HistoryIndex:
    """Reads one index. A context manager, for one thread.

    It reads pages instead of mapping the file: if another program cut a mapped file, the process would die.

    Raises:
        UnsoundIndexError: it is damaged or cut. OSError: it cannot be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pages: dict[int, bytes] = {}  # already read and checked
        self._file = open_file(path)
        try:
            self._head = pread_cached(self._file, _HEADER.size + _CHECK_BYTES, 0)
            self.header = self._read_header()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> HistoryIndex:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _read_header(self) -> Header:
        data, check = self._head[: _HEADER.size], self._head[_HEADER.size :]
        if len(check) < _CHECK_BYTES or int.from_bytes(check, "little") != crc32(data):
            raise UnsoundIndexError(f"{self.path.name}: its header is damaged")
        magic, format_, *fields = _HEADER.unpack(data)
        if magic != _MAGIC or format_ != _FORMAT:
            raise UnsoundIndexError(f"{self.path.name}: is not an index of format {_FORMAT}")
        header = Header(*fields)
        if not header.is_possible:
            raise UnsoundIndexError(f"{self.path.name}: its header has impossible values")
        size = os.fstat(self._file).st_size
        if size != header.file_bytes:
            raise UnsoundIndexError(f"{self.path.name}: has {size} bytes instead of {header.file_bytes}")
        return header

    def frames_of(self, name: bytes) -> list[int]:
        """Offsets of the frames that may have rows about the entity, oldest first."""
        header, hash_ = self.header, crc32(name)
        bucket = hash_ >> (_HASH_BITS - header.directory_bits)
        at = header.directory_at + bucket * _DIRECTORY_BYTES
        low, high = _numbers(self._read(at, 2 * _DIRECTORY_BYTES), _DIRECTORY_BYTES)
        if not low <= high <= header.entries:
            raise UnsoundIndexError(f"{self.path.name}: its directory is damaged")
        width = header.fingerprint_bytes
        wanted = hash_ & ((1 << 8 * width) - 1)
        fingerprints = _numbers(self._read(header.fingerprints_at + low * width, (high - low) * width), width)
        places = [low + place for place, found in enumerate(fingerprints) if found == wanted]
        if not places:
            return []
        width = header.frame_bytes
        first, last = places[0], places[-1] + 1
        frames = _numbers(self._read(header.frames_at + first * width, (last - first) * width), width)
        wanted_frames = sorted({frames[place - first] for place in places})
        if wanted_frames[-1] >= header.frames:
            raise UnsoundIndexError(f"{self.path.name}: an entry names a frame that the segment does not have")
        return [self._number(frame * _OFFSET_BYTES) for frame in wanted_frames]

    def check(self, pause: Callable[[], None] = lambda: None) -> None:
        """Check every page. Raises UnsoundIndexError, OSError."""
        for page in range(self.header.pages):
            self._page(page)
            self._pages.clear()
            pause()

    def _number(self, at: int) -> int:
        return int.from_bytes(self._read(at, _OFFSET_BYTES), "little")

    def _read(self, at: int, length: int) -> bytes:
        """Bytes from position `at` behind the header. Their pages are checked."""
        first, last = at // _IN_PAGE, (at + max(1, length) - 1) // _IN_PAGE
        data = b"".join(map(self._page, range(first, last + 1))) if length else b""
        start = at - first * _IN_PAGE
        return data[start : start + length]

    def _page(self, page: int) -> bytes:
        if page not in self._pages:
            data = pread_cached(self._file, _PAGE, len(self._head) + page * _PAGE)
            data, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
            if check != _page_check(self._head, page, data):
                raise UnsoundIndexError(f"{self.path.name}: page {page} is damaged")
            self._pages[page] = data
        return self._pages[page]
