"""Frames: found again behind damage of any length, and believed only where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...kit.segment_files import (
    ACCEPTED,
    END,
    ROWS,
    SYNC,
    Damage,
    Frame,
    FrameReader,
    encode_frame,
    encode_trailer,
)


def read(path: Path, **options: int) -> list[Frame | Damage]:
    with FrameReader(path) as reader:
        return list(reader.frames(**options))  # type: ignore[arg-type]


def stretch(offset: int, length: int, **known: int) -> Damage:
    name = "segment-00000007.journal"
    line = f"{name}: {length} bytes from byte {offset} on hold no intact frame"
    return Damage(name, line, offset, length, **known)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "segment-00000007.journal"


def test_a_frame_comes_back_as_it_was(path: Path) -> None:
    path.write_bytes(encode_frame(7, ROWS, 0, b"payload", 2**40, 3, 4, -5, 2**62))

    [frame] = read(path)

    assert isinstance(frame, Frame)
    header = frame.header
    assert (frame.payload, frame.offset, frame.end) == (b"payload", 0, 71)
    assert (header.kind, header.number, header.segment, header.length) == (ROWS, 0, 7, 7)
    assert (header.first_seq, header.events, header.transitions) == (2**40, 3, 4)
    assert (header.min_at, header.max_at) == (-5, 2**62)


@pytest.mark.parametrize("byte", [b"\0", SYNC[:1], b"x"])
def test_a_frame_is_found_wherever_it_begins_behind_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch, byte: bytes
) -> None:
    """The search reads chunks: a sync mark may lie across two of them."""
    monkeypatch.setattr("dispatcher.journal.format.frames._CHUNK", 64)
    frame = encode_frame(7, ACCEPTED, 3, b"payload")

    for length in range(1, 150):
        path.write_bytes(byte * length + frame)

        damage, found = read(path)

        assert damage == stretch(0, length)
        assert isinstance(found, Frame)
        assert (found.offset, found.payload) == (length, b"payload")


def test_sync_marks_without_a_frame_are_passed_over(path: Path) -> None:
    frame = encode_frame(7, ACCEPTED, 1, b"payload")
    data = SYNC * 3 + frame[:-1] + b"?" + SYNC + frame
    path.write_bytes(data)

    damage, found = read(path)

    assert damage == stretch(0, len(data) - len(frame))
    assert isinstance(found, Frame)


def test_a_frame_within_the_payload_of_another_is_not_taken_for_one(path: Path) -> None:
    inner = encode_frame(7, ACCEPTED, 1, b"inner")
    path.write_bytes(encode_frame(7, ACCEPTED, 0, inner) + encode_frame(7, ACCEPTED, 1, b"outer"))

    assert [frame.payload for frame in read(path) if isinstance(frame, Frame)] == [inner, b"outer"]


def test_frames_of_another_segment_or_out_of_order_are_no_frames_here(path: Path) -> None:
    first, second = encode_frame(7, ACCEPTED, 0, b"first"), encode_frame(7, ACCEPTED, 1, b"second")
    path.write_bytes(first + encode_frame(8, ACCEPTED, 1, b"stranger") + second + first + second)

    found = read(path)

    assert [frame.payload for frame in found if isinstance(frame, Frame)] == [b"first", b"second"]
    assert [damage for damage in found if isinstance(damage, Damage)] == [
        stretch(len(first), 72),
        stretch(len(first) + 72 + len(second), len(first) + len(second), at_end=True),
    ]


def test_the_payload_of_an_unwanted_frame_is_checked_only_with_check_all(path: Path) -> None:
    frame = encode_frame(7, ACCEPTED, 0, b"payload")
    path.write_bytes(frame[:-1] + b"?")

    with FrameReader(path) as reader:
        unchecked = list(reader.frames(lambda _: False))
        checked = list(reader.frames(lambda _: False, check_all=True))

    assert [type(found) for found in unchecked] == [Frame]
    assert checked == [stretch(0, len(frame), at_end=True, events=0, transitions=0)]


def test_the_end_is_found_by_the_trailer(path: Path) -> None:
    first, end = encode_frame(7, ROWS, 0, b"rows"), encode_frame(7, END, 1, b"end")
    for data, found in [
        (first + end + encode_trailer(len(first)), b"end"),
        (first + end, None),
        (first + end + encode_trailer(0), None),  # not an END frame
        (first + end + encode_trailer(len(first) + 1), None),
        (first + end + b"?" + encode_trailer(len(first)), None),
        (first + end[:-1] + b"?" + encode_trailer(len(first)), None),
        (b"", None),
        (encode_trailer(0), None),
    ]:
        path.write_bytes(data)
        with FrameReader(path) as reader:
            frame = reader.last_frame()

        assert (frame.payload if frame is not None else None) == found
