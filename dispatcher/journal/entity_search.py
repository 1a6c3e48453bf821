"""Searching for an entity: its rows in a frame, and the frames with its name in a segment without a history index."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

from dispatcher.journal.format.columns import RowsPayload, decode_rows
from dispatcher.journal.format.frames import END, ROWS, Damage, FrameReader
from dispatcher.journal.format.schema import EVENTS, TRANSITIONS
from dispatcher.journal.indexing import ENTITIES

_PIECE: Final = 1 << 18
"""Bytes searched in one call."""

FoundRow = tuple[dict[str, Any] | None, dict[str, Any] | None]
"""An event's row and the row of a transition that it made; one of them may be None."""


def entity_rows(
    payload: RowsPayload, first_seq: int, name: bytes, machine: str | None, pause: Callable[[], None]
) -> Iterator[FoundRow]:
    """The rows about the entity in a frame, newest first: its transitions, and events about it without any.

    `machine`: only transitions of machines of this name.
    """
    rows: dict[str, list[int]] = defaultdict(list)
    for table, column in ENTITIES:
        for some in payload.rows_with(table, column, name):
            rows[table.name] += some
            pause()
    events = payload.rows_of(EVENTS)
    by_seq: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in reversed(rows[TRANSITIONS.name]):
        transition = payload.row(TRANSITIONS, row, first_seq)
        by_seq[transition["seq"]].append(transition)
        pause()
    about = {first_seq + row for row in rows[EVENTS.name]}
    for seq in sorted(by_seq.keys() | about, reverse=True):
        wanted = [found for found in by_seq[seq] if machine is None or found["machine"] == machine]
        event = None
        if (wanted or machine is None) and 0 <= seq - first_seq < events:
            event = payload.row(EVENTS, seq - first_seq, first_seq)
        for found in wanted:
            yield event, found
        if not by_seq[seq] and machine is None:
            yield event, None
        pause()


class SearchedSegment:
    """The position of the entities' names in each frame read so far. One thread at a time.

    Each frame is checked when it is first read. Since frames never change, later only the names are read again.
    """

    def __init__(self, inode: int) -> None:
        self._inode = inode
        self._end = 0  # of the frames read so far
        # For each table three arrays with a number for each frame: its offset, and the names' start and end.
        self._places = [array("Q") for _ in range(3 * len(ENTITIES))]
        self._damages: list[str] = []
        self._has_end = False

    def is_of(self, reader: FrameReader) -> bool:
        """Whether this is the file read before, and it has not become shorter."""
        return reader.inode == self._inode and reader.size >= self._end

    def read_further(self, reader: FrameReader, pause: Callable[[], None], *, is_open: bool) -> list[str]:
        """Read the frames appended since the last call; returns a line for each damaged stretch of the segment so far.

        Raises OSError.
        """
        torn: list[str] = []
        if not self._has_end:
            for found in reader.frames(lambda header: header.kind == ROWS, start=self._end, check_all=True):
                if isinstance(found, Damage):
                    if found.at_end:  # the end of an open segment may be half written
                        torn = [] if is_open else [str(found)]
                        break
                    self._damages.append(str(found))
                    continue
                if found.header.kind == ROWS:
                    self._add(found.offset, found.end, found.payload)
                self._has_end = found.header.kind == END
                self._end = found.end
                pause()
        no_end = [] if self._has_end or is_open else [f"{reader.path.name}: has no end"]
        return [*self._damages, *torn, *no_end]

    def _add(self, offset: int, end: int, payload: bytes) -> None:
        columns = decode_rows(payload).columns
        ends: dict[str, int] = {}
        start = end - sum(len(data) for _, data in columns.values())
        for name, (_, data) in columns.items():
            start += len(data)
            ends[name] = start
        for place, (table, column) in enumerate(ENTITIES):
            name = f"{table.stored_name(column)}.text"
            if name in columns:
                numbers = (offset, ends[name] - len(columns[name][1]), ends[name])
                for array_, number in zip(self._places[3 * place : 3 * place + 3], numbers, strict=True):
                    array_.append(number)

    def frames_with(self, reader: FrameReader, name: bytes, pause: Callable[[], None]) -> list[int]:
        """Offsets of the frames whose names contain this text, newest first. Raises OSError."""
        offsets: set[int] = set()
        buffer = bytearray(_PIECE + len(name))
        for place in range(0, len(self._places), 3):
            for offset, start, end in zip(*self._places[place : place + 3], strict=True):
                for piece in range(start, end, _PIECE) or (start,):
                    # With the beginning of the next piece: the name may lie across both.
                    length = reader.read_into(buffer, min(end - piece, _PIECE + len(name)), piece)
                    if buffer.find(name, 0, length) >= 0:
                        offsets.add(offset)
                        break
                    pause()
        return sorted(offsets, reverse=True)
