"""Reads of what the system holds in memory, without giving the interpreter up.

A thread that gives the interpreter up beside a busy one gets it back only after the switch interval, 5 ms: a hundred
short reads would take half a second. These reads take microseconds, or leave the work to the usual calls, which let
other threads run meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Final
from zlib import crc32

_NO_WAIT: Final = 8  # RWF_NOWAIT
_KEEPS_INTERPRETER: Final = 5000
"""Bytes up to which zlib does not give the interpreter up."""


class _Vector(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _find_preadv2() -> Any:
    """The system's `preadv2`, called without giving the interpreter up; None: there is none."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    try:
        found = ctypes.PyDLL(None).preadv2
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_int, ctypes.c_long, ctypes.c_int)
    found.restype = ctypes.c_ssize_t
    return found


_preadv2: Final = _find_preadv2()


def pread_cached(descriptor: int, length: int, offset: int) -> bytes:
    """As `os.pread`; keeps the interpreter if all of it is in the system's cache."""
    buffer = bytearray(length)
    return bytes(memoryview(buffer)[: pread_cached_into(descriptor, buffer, length, offset)])


def pread_cached_into(descriptor: int, buffer: bytearray, length: int, offset: int) -> int:
    """The same into the beginning of a buffer; returns how many bytes there are, fewer at the end of the file."""
    if not length:
        return 0
    if _preadv2 is not None and offset >= 0:  # -1 is the file's own position
        vector = _Vector(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), length)
        # Of a file that is shorter or not cached, or on a file system that cannot say: fewer bytes, or -1.
        if _preadv2(descriptor, ctypes.byref(vector), 1, offset, _NO_WAIT) == length:
            return length
    data = os.pread(descriptor, length, offset)
    buffer[: len(data)] = data
    return len(data)


def crc32_cached(data: bytes, value: int = 0) -> int:
    """As `zlib.crc32`; keeps the interpreter, except at the call of another thread every few milliseconds."""
    view = memoryview(data)
    for start in range(0, len(data), _KEEPS_INTERPRETER):
        value = crc32(view[start : start + _KEEPS_INTERPRETER], value)
    return value
