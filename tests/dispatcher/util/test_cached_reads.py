"""Reads that keep the interpreter are the usual reads."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.util import cached_reads

DATA = bytes(range(256)) * 100


@pytest.fixture(params=["of the system", "none", "refuses"])
def descriptor(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A file, where reads from the cache exist, do not exist, and are never answered."""
    if request.param != "of the system":
        read = None if request.param == "none" else lambda *_: -1
        monkeypatch.setattr(cached_reads, "_cached_read", lambda: read)
    (tmp_path / "file").write_bytes(DATA)
    opened = os.open(tmp_path / "file", os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.mark.parametrize(("length", "offset"), [(0, 5), (1, 0), (300, 77), (len(DATA), 0), (500, len(DATA) - 10)])
def test_a_read_gives_what_there_is(descriptor: int, length: int, offset: int) -> None:
    buffer = bytearray(b"x" * (length + 3))

    count = cached_reads.pread_cached_into(descriptor, buffer, length, offset)

    assert cached_reads.pread_cached(descriptor, length, offset) == DATA[offset : offset + length]
    assert buffer[:count] == DATA[offset : offset + length]
    assert len(buffer) == length + 3


def test_a_read_that_fails_raises_as_usual(descriptor: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        cached_reads.pread_cached(descriptor, 1, -1)
    closed = os.dup(descriptor)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        cached_reads.pread_cached(closed, 1, 0)


@pytest.mark.parametrize("length", [0, 1, 4999, 5000, 5001, len(DATA)])
def test_a_checksum_is_zlibs(length: int) -> None:
    assert cached_reads.crc32_cached(DATA[:length]) == zlib.crc32(DATA[:length])
