"""The fields of accepted events, for their rows.

In write-ahead mode the journal has an event's fields once: in the line that its post has logged. A row without a
payload gets them from there when it is read. Its accepted seq leads to the segment, by the numbers at the segments'
starts, and there to the frame.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from dispatcher.journal.format.columns import RowsPayload
from dispatcher.journal.format.event_codec import fields_of
from dispatcher.journal.format.frames import ACCEPTED, Frame, FrameReader
from dispatcher.journal.format.segments import decode_start
from dispatcher.journal.snapshot import look_at, open_segment

_BYTES_AT_ONCE: Final = 1 << 16


class AcceptedFields:
    """The fields of one journal's accepted events. For one thread, and for rows that were there at the first call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._segments: tuple[Path, ...] | None = None  # oldest first
        self._firsts: dict[int, int] = {}  # by place, the first accepted seq from there on

    def complete(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of events, with the event's fields as the payload of those that have none.

        Raises:
            JournalError: a file cannot be read.
        """
        found = list(rows)
        bare = {row["accepted_seq"]: row for row in found if row.get("accepted_seq", 0) > 0 and "payload" not in row}
        for seq, fields in self._find(bare):
            bare[seq]["payload"] = fields
        return found

    def complete_frame(self, rows: RowsPayload) -> RowsPayload:
        """The rows of a frame, with the event's fields as the payload of those that have none. Raises as `complete`."""
        seqs = rows.accepted_seqs()
        if not any(seqs):
            return rows
        payloads = rows.payloads()
        bare = {seq: row for row, seq in enumerate(seqs) if seq > 0 and payloads[row] is None}
        for seq, fields in self._find(bare):
            payloads[bare[seq]] = fields
        return rows.with_payloads(payloads)

    def _find(self, seqs: Iterable[int]) -> Iterator[tuple[int, str]]:
        """The fields of those events that the journal still has."""
        for segment, wanted in groupby(sorted(seqs), self._segment_of):
            if segment is not None:
                yield from self._in_segment(segment, wanted)

    def _in_segment(self, segment: Path, seqs: Iterable[int]) -> Iterator[tuple[int, str]]:
        with open_segment(segment) as reader:
            if reader is None:
                return
            frames = _AcceptedFrames(reader)
            for seq in seqs:
                line = frames.line_of(seq)
                if line is not None:
                    yield seq, fields_of(line).decode()

    def _segment_of(self, seq: int) -> Path | None:
        if self._segments is None:
            self._segments = look_at(self._path).in_order
        place = bisect_right(range(len(self._segments)), seq, key=self._first_from)
        return self._segments[place - 1] if place else None

    def _first_from(self, place: int) -> int:
        """The first accepted seq of the segments from a place on."""
        first = self._firsts.get(place)
        if first is None:
            assert self._segments is not None
            known = (found for segment in self._segments[place:] if (found := _first_in(segment)) is not None)
            first = self._firsts[place] = next(known, sys.maxsize)
        return first


def _first_in(segment: Path) -> int | None:
    """The segment's first accepted seq. None: its start is damaged, and it has no accepted event, or it is gone."""
    with open_segment(segment) as reader:
        if reader is None:
            return None
        first = decode_start(reader.frame_at(0)).get("first_accepted")
        if type(first) is int:
            return first
        frame = next(reader.frames_of(ACCEPTED, bytes_at_once=_BYTES_AT_ONCE), None)
        return None if frame is None else frame.header.first_seq


class _AcceptedFrames:
    """Finds the lines of a segment, fastest in ascending order."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._seqs = range(0)  # of the frame found last
        self._lines: list[bytes] = []
        self._following: Iterator[Frame] = iter(())  # the frames behind it

    def line_of(self, seq: int) -> bytes | None:
        """The line of an event; None: there is none, or its frame is damaged."""
        if seq not in self._seqs:
            self._take(next(self._following, None))
        if seq not in self._seqs:
            self._take(self._search(seq))
        return self._lines[seq - self._seqs.start] if seq in self._seqs else None

    def _take(self, frame: Frame | None) -> None:
        self._lines = frame.payload.split(b"\n") if frame is not None else []
        first = frame.header.first_seq if frame is not None else 0
        self._seqs = range(first, first + len(self._lines))

    def _search(self, seq: int) -> Frame | None:
        """The last frame that does not begin behind `seq`; None: there is none."""
        found: Frame | None = None
        # A frame that begins before `low` is known, and so is that all from `high` on begin behind `seq`.
        low, high = 0, self._reader.size
        while low < high:
            middle = (low + high) // 2
            frames = self._reader.frames_of(ACCEPTED, middle, bytes_at_once=_BYTES_AT_ONCE)
            frame = next(frames, None)
            if frame is None or frame.header.first_seq > seq:
                high = middle
            else:
                found, self._following, low = frame, frames, frame.end
        return found
