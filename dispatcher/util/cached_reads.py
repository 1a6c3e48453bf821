"""Reads of what the system holds in memory, without giving the interpreter up.

A thread that gives the interpreter up beside a busy one gets it back only after the switch interval, 5 ms: a hundred
short reads would take half a second. These reads take microseconds, or leave the work to the usual calls, which let
other threads run meanwhile.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Final
from zlib import crc32

_NO_WAIT: Final = 8  # RWF_NOWAIT
_KEEPS_INTERPRETER: Final = 5000
"""Bytes up to which zlib does not give the interpreter up."""


@functools.cache
def _cached_read() -> Callable[[int, bytearray, int, int], int] | None:
    """Reads into a buffer, of that length and from that offset, what is cached; None: the system cannot do so.

    Returns how many bytes it has read; fewer, or -1, of a file that is shorter or not cached, and on a file system that
    cannot say. Loaded at the first use, which few processes come to.
    """
    try:
        import ctypes
    except ImportError:  # a Python that was built without it
        return None
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return None

    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    try:
        preadv2 = ctypes.PyDLL(None).preadv2  # unlike CDLL, it keeps the interpreter
    except (OSError, AttributeError):
        return None
    preadv2.argtypes = (ctypes.c_int, ctypes.POINTER(Vector), ctypes.c_int, ctypes.c_long, ctypes.c_int)
    preadv2.restype = ctypes.c_ssize_t

    def read(descriptor: int, buffer: bytearray, length: int, offset: int) -> int:
        vector = Vector(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), length)
        return int(preadv2(descriptor, ctypes.byref(vector), 1, offset, _NO_WAIT))

    return read


def pread_cached(descriptor: int, length: int, offset: int) -> bytes:
    """As `os.pread`; keeps the interpreter if all of it is in the system's cache."""
    buffer = bytearray(length)
    return bytes(memoryview(buffer)[: pread_cached_into(descriptor, buffer, length, offset)])


def pread_cached_into(descriptor: int, buffer: bytearray, length: int, offset: int) -> int:
    """The same into the beginning of a buffer; returns how many bytes there are, fewer at the end of the file."""
    if not length:
        return 0
    read = _cached_read()
    # An offset of -1 would be the file's own position.
    if read is not None and offset >= 0:
        count = read(descriptor, buffer, length, offset)
        if count == length or (count >= 0 and read(descriptor, bytearray(1), 1, offset + count) == 0):
            return count  # all there is: the file ends here
    data = os.pread(descriptor, length, offset)
    buffer[: len(data)] = data
    return len(data)


def crc32_cached(data: bytes, value: int = 0) -> int:
    """As `zlib.crc32`; keeps the interpreter, except at the call of another thread every few milliseconds."""
    view = memoryview(data)
    for start in range(0, len(data), _KEEPS_INTERPRETER):
        value = crc32(view[start : start + _KEEPS_INTERPRETER], value)
    return value
