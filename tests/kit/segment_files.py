"""The format of a journal's segment files, and such files written frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dispatcher.journal.format.columns import decode_rows, encode_rows
from dispatcher.journal.format.frames import (
    ACCEPTED,
    END,
    ROWS,
    SNAPSHOT,
    START,
    SYNC,
    Damage,
    Frame,
    FrameReader,
    encode_frame,
    encode_trailer,
)
from dispatcher.journal.format.schema import EventRow, Kind, Row, Table, TransitionRow
from dispatcher.journal.format.segments import (
    LAST_NUMBER,
    Manifest,
    SegmentFile,
    open_segment_path,
    open_segments,
    read_manifest,
    read_summary,
    segment_number,
    segment_path,
    segments,
)
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.snapshot import look_at, summarize

__all__ = [
    "ACCEPTED",
    "END",
    "LAST_NUMBER",
    "ROWS",
    "SNAPSHOT",
    "START",
    "SYNC",
    "Damage",
    "EventRow",
    "Frame",
    "FrameReader",
    "Kind",
    "Manifest",
    "Row",
    "SegmentFile",
    "Table",
    "TransitionRow",
    "decode_rows",
    "encode_frame",
    "encode_rows",
    "encode_trailer",
    "look_at",
    "open_segment_path",
    "open_segments",
    "read_manifest",
    "read_summary",
    "segment_number",
    "segment_path",
    "segments",
    "summarize",
    "write_segments",
]

MakeFrame = Callable[[int], tuple[Sequence[Any], Sequence[Any], bool]]
"""The events and the transitions of a frame, and whether time is virtual, given the seq of its first event."""


def write_segments(
    folder: Path,
    segments: Iterable[Iterable[MakeFrame]],
    kinds: Sequence[Any],
    moves: Sequence[Any],
    accepted: bytes = b"",
) -> Path:
    """Make a closed journal. `kinds` and `moves`: of events and transitions; `accepted`: a row of each segment."""
    folder.mkdir(parents=True)
    summary, number = Summary(1), 0
    for number, frames in enumerate(segments, start=1):
        segment = SegmentFile(folder, number, summary)
        for frame in frames:
            first = segment.summary.next_seq
            events, transitions, is_virtual = frame(first)
            segment.append_rows(encode_rows(events, transitions, first, kinds, moves, virtual=is_virtual))
        if accepted:
            segment.append_accepted(accepted, 1, 5)
        segment.close(sync=False, recover_from=number + 1)
        summary = segment.summary.following()
    Manifest(1, number, closed=True).write(folder, sync=False)
    return folder
