"""A small journal, and the kinds of damage that its readers must tell alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipeline.journal import Problem

from ..kit.journals import frames_of
from ..kit.segment_files import EventRow, TransitionRow, segment_path, write_segments

EVENTS: Final = 60
"""Of the sound journal: three segments with five frames of four events, of which two make a transition."""
TRANSITIONS: Final = 30


class Lost(NamedTuple):
    """What readers say about a damaged part; like them, without a place if it is about the whole file."""

    segment: str
    has_place: bool
    events: int | None
    transitions: int | None

    @staticmethod
    def of(problem: Problem) -> Lost:
        return Lost(problem.segment, problem.offset is not None, problem.events, problem.transitions)


class Kind(NamedTuple):
    name: str
    damage: Callable[[Path], None]
    """Damages the journal in a folder."""
    lost: list[Lost]
    events: int = 0
    """How many events are not read, and how many transitions."""
    transitions: int = 0


def write_sound_journal(folder: Path) -> Path:
    def frame(first: int) -> tuple[list[EventRow], list[TransitionRow], bool]:
        events = [EventRow(kind=0, entity=f"e{n}", started_at=first + n) for n in range(4)]
        moves = [TransitionRow(kind=0, seq=first + n, entity=f"e{n}", at=first + n) for n in (0, 2)]
        return events, moves, True

    kinds, moves = [("rm", "AType", "A", "handled")], [("RMApp", "NEW", "START", "RUNNING", True)]
    return write_segments(folder, [[frame] * 5] * 3, kinds, moves)


def _change(journal: Path, change: Callable[[bytearray, list[Any]], bytes | bytearray | None]) -> None:
    """In the second segment: START, five frames of rows, END."""
    segment = segment_path(journal, 2)
    data = bytearray(segment.read_bytes())
    changed = change(data, frames_of(segment))
    segment.write_bytes(data if changed is None else changed)


def _flip(*places: tuple[int, int]) -> Callable[[Path], None]:
    """Damages a byte at each place: the number of a frame, and an offset from its begin, or below 0 from its end."""

    def damage(data: bytearray, frames: list[Any]) -> None:
        for number, offset in places:
            data[(frames[number].end if offset < 0 else frames[number].offset) + offset] ^= 1

    return lambda journal: _change(journal, damage)


def _zero(data: bytearray, frames: list[Any]) -> None:
    data[frames[2].offset + 10 : frames[4].offset - 10] = bytes(frames[4].offset - frames[2].offset - 20)


def _double(data: bytearray, frames: list[Any]) -> bytes:
    return bytes(data[: frames[3].end] + data[frames[3].offset : frames[3].end] + data[frames[3].end :])


def _cut(data: bytearray, frames: list[Any]) -> bytes:
    return bytes(data[: frames[4].offset + 30])


def _cut_between(data: bytearray, frames: list[Any]) -> bytes:
    return bytes(data[: frames[4].offset])


def _write_foreign(journal: Path) -> None:
    segment_path(journal, 4).write_bytes(b"not a segment")


SECOND, FOURTH = "segment-00000002.journal", "segment-00000004.journal"
KINDS: Final = (
    Kind("flipped in a body", _flip((3, -5)), [Lost(SECOND, True, 4, 2)], 4, 2),
    Kind("flipped in a header", _flip((3, 20)), [Lost(SECOND, True, 4, 2)], 4, 2),
    Kind("flipped in two headers", _flip((2, 20), (4, 20)), [Lost(SECOND, True, 4, None)] * 2, 8, 4),
    Kind("flipped in the footer", _flip((6, -5)), [Lost(SECOND, True, 0, 0)]),
    Kind("zeroed", lambda journal: _change(journal, _zero), [Lost(SECOND, True, 8, 4)], 8, 4),
    Kind("a frame twice", lambda journal: _change(journal, _double), [Lost(SECOND, True, 0, 0)]),
    Kind("cut in a frame", lambda journal: _change(journal, _cut), [Lost(SECOND, True, 8, None)], 8, 4),
    Kind("cut between frames", lambda j: _change(j, _cut_between), [Lost(SECOND, False, 8, None)], 8, 4),
    Kind("missing", lambda journal: segment_path(journal, 2).unlink(), [Lost(SECOND, False, 20, None)], 20, 10),
    Kind("no segment", _write_foreign, [Lost(FOURTH, False, 0, 0), Lost(FOURTH, True, None, None)]),
    Kind("manifest", lambda j: j.joinpath("journal.json").unlink(), [Lost("journal.json", False, None, None)]),
)
