"""Reads of cached files that keep the interpreter (Python's global lock).

If another thread is busy, a thread that releases the interpreter may get it back only after the switch interval, 5 ms:
a hundred short reads would take half a second. These reads take microseconds. What the system has not cached they leave
to the usual calls, which let other threads run meanwhile.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Final
from zlib import crc32

_NO_WAIT: Final = 8  # RWF_NOWAIT
_INTERPRETER_KEPT_BYTES: Final = 5000
"""zlib does not release the interpreter for a checksum of up to this length."""


@functools.cache
def _cached_read() -> Callable[[int, bytearray, int, int], int] | None:
    """A function that reads cached bytes: `read(descriptor, buffer, length, offset)`; None: the system has none.

    It returns how many bytes it has read. That is less than `length`, or -1, if the file is shorter or not cached, or
    its file system cannot tell. Made at the first use, since most processes never need it.
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
    """Read up to `length` bytes at `offset`; keeps the interpreter if the system has cached all of it."""
    buffer = bytearray(length)
    return bytes(memoryview(buffer)[: pread_cached_into(descriptor, buffer, length, offset)])


def pread_cached_into(descriptor: int, buffer: bytearray, length: int, offset: int) -> int:
    """Read into the start of a buffer; returns how many bytes were read: fewer than `length` at the file's end."""
    if not length:
        return 0
    read = _cached_read()
    # An offset of -1 would be the file's own position.
    if read is not None and offset >= 0:
        count = read(descriptor, buffer, length, offset)
        if count == length or (count >= 0 and read(descriptor, bytearray(1), 1, offset + count) == 0):
            return count  # the file ends here
    data = os.pread(descriptor, length, offset)
    buffer[: len(data)] = data
    return len(data)


def crc32_cached(data: bytes) -> int:
    """The CRC-32 of `data`, in pieces so small that zlib keeps the interpreter. Python may switch between them."""
    view, value = memoryview(data), 0
    for start in range(0, len(data), _INTERPRETER_KEPT_BYTES):
        value = crc32(view[start : start + _INTERPRETER_KEPT_BYTES], value)
    return value
