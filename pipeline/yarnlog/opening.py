"""Opens log files: packed by gzip, bzip2, xz or Zstandard, in UTF-8 or UTF-16."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.yarnlog.clock import YarnLogError

_BUFFER_BYTES = 1 << 20
_LOOKED_AT_BYTES = 4096
_LONGEST_LINE = 1 << 20
"""Bytes, or characters in UTF-16, of a line that are read at once: what is no log may have no lines at all."""
_UTF_8_BOM = b"\xef\xbb\xbf"
_UTF_16_BOMS = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def opened_log(path: str | Path) -> Iterator[Iterable[bytes]]:
    """The lines of a log in UTF-8, unpacked as the file's suffix says, without a byte order mark.

    A line of more than 1 MiB comes in pieces.

    Raises:
        YarnLogError: while opening or reading: the file cannot be read, is not packed as its suffix says or is damaged.
    """
    unpack = _UNPACKERS.get(Path(path).suffix)
    try:
        # Not `Path.open`, whose type does not have `peek`.
        with io.BufferedReader(io.FileIO(path), _BUFFER_BYTES) as file:
            unpacked = file if unpack is None else io.BufferedReader(unpack(file), _BUFFER_BYTES)
            with unpacked, _in_utf_8(unpacked) as lines:
                yield lines
    except (OSError, EOFError, zlib.error, lzma.LZMAError, _PackingError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise YarnLogError(f"{path}: cannot be read: {reason}") from error


@contextmanager
def _in_utf_8(file: io.BufferedReader[Any]) -> Iterator[Iterable[bytes]]:
    start = file.peek(_LOOKED_AT_BYTES)[:_LOOKED_AT_BYTES]
    if start.startswith(_UTF_8_BOM):
        file.read(len(_UTF_8_BOM))
    encoding = _utf_16(start)
    if encoding is None:
        yield iter(partial(file.readline, _LONGEST_LINE), b"")
        return
    with io.TextIOWrapper(file, encoding, errors="replace", newline="\n") as text:
        yield (line.encode() for line in iter(partial(text.readline, _LONGEST_LINE), ""))


def _utf_16(start: bytes) -> str | None:
    """The encoding, if it is UTF-16. Without a mark: if nearly every other byte is zero, as in Latin text."""
    if start.startswith(_UTF_16_BOMS):
        return "utf-16"
    pairs = len(start) // 2
    first, second = start[: 2 * pairs : 2].count(0), start[1 : 2 * pairs : 2].count(0)
    if not pairs or max(first, second) < 0.8 * pairs or min(first, second) > 0.1 * pairs:
        return None
    return "utf-16-be" if first > second else "utf-16-le"


class _PackingError(Exception):
    """A file that is damaged or cut off, or that this installation cannot unpack."""


class _Zstandard(io.RawIOBase):
    """Unpacks frame by frame: the readers of the package zstandard take a file that is cut off for one that ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._new_frame, self._error = _zstandard()
        self._frame: Any = None  # None: between two frames
        self._packed = b""  # of the next frame
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            packed, self._packed = self._packed or self._file.read(_BUFFER_BYTES), b""
            if not packed:
                if self._frame is not None:
                    raise _PackingError("it is cut off before its end")
                return 0
            self._frame = self._frame or self._new_frame()
            try:
                self._unpacked = memoryview(self._frame.decompress(packed))
            except self._error as error:
                raise _PackingError(str(error)) from error
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._unpacked))
        buffer[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count


def _zstandard() -> tuple[Callable[[], Any], type[Exception]]:
    """Makes what unpacks a frame, and its errors: Python's from 3.14 on, before that the package zstandard's."""
    try:
        compression = import_module("compression.zstd")
        return compression.ZstdDecompressor, compression.ZstdError
    except ModuleNotFoundError:
        pass
    try:
        package = import_module("zstandard")
    except ModuleNotFoundError as error:
        raise _PackingError(
            "the package zstandard is not installed. Install it with: pip install 'central-dispatcher[cli]'; or unpack "
            "the file with: zstd -d"
        ) from error
    return lambda: package.ZstdDecompressor().decompressobj(), package.ZstdError


_UNPACKERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _Zstandard,
}
PACKED = tuple(_UNPACKERS)
"""The suffixes of packed files."""
