"""The history of an entity: its rows in both tables, newest first, found without reading the whole journal.

A look-up reads the history index of each closed segment (`dispatcher.journal.format.history_index`). It searches the
open segment and segments without a sound index, and keeps where their frames and names lie for the next look-up.

Any thread may look up, beside a writer; look-ups in one journal run one at a time. Every three milliseconds a look-up
lets other threads run.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import JournalError
from dispatcher.journal.entity_search import SearchedSegment, entity_rows
from dispatcher.journal.format.columns import decode_rows, encode_text
from dispatcher.journal.format.frames import Frame, FrameReader, Header
from dispatcher.journal.format.history_index import HistoryIndex, index_path
from dispatcher.journal.format.segments import SegmentEnd, read_end, segment_number
from dispatcher.journal.indexing import report_unsound
from dispatcher.journal.pacing import Pace
from dispatcher.journal.reader import open_at_end, open_frames
from dispatcher.journal.snapshot import JournalSnapshot, is_retired, look_at
from dispatcher.util.units import NS_PER_S

_SETTLED_NS: Final = 50_000_000
"""A folder that changed more recently may change again under the same time stamp: the system's clock ticks slowly."""
_SETTLED_COARSE_NS: Final = 3_000_000_000
"""The same for a file system that keeps whole seconds."""
_PIECE_S: Final = 0.003
"""Less than the switch interval, 5 ms. A wait beside a busy thread takes about that interval, so few are wanted."""
_MOST_JOURNALS: Final = 8
"""Journals for which something is kept between look-ups."""


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A transition of the entity and the event that made it, or an event about the entity that made none.

    Names, types and units are those of the journal's columns. Without a transition, `machine`, `from_state`, `to_state`
    and `valid` are None, and `at` is the event's `started_at`. For a transition made outside of an event, `dispatcher`
    and all fields after it are None.
    """

    seq: int
    at: int
    machine: str | None
    from_state: str | None
    event_type: str
    """What the machine was given; without a transition, the type of the event."""
    to_state: str | None
    valid: bool | None
    dispatcher: str | None = None
    event_class: str | None = None
    event_entity: str | None = None
    """The event's own `entity`, which may be another one."""
    enqueued_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    queue_ns: int | None = None
    handling_ns: int | None = None
    outcome: str | None = None
    error: str | None = None
    payload: str | None = None
    accepted_seq: int | None = None
    redelivered: bool | None = None


@dataclass(frozen=True, slots=True)
class EntityHistory:
    """An entity's rows, newest first."""

    transitions: list[HistoryRow]
    complete: bool
    """The last row is the entity's first: nothing older was cut off by `limit`, removed by retention, or damaged."""


def entity_history(
    path: Path | str,
    entity: str,
    *,
    machine: str | None = None,
    limit: int = 100,
    before_seq: int | None = None,
    on_damage: Callable[[str], None] = lambda line: None,
) -> EntityHistory:
    """The newest rows about `entity` in the journal, including its open segment.

    `machine`: only transitions of machines of this name. `before_seq`: only rows with a smaller seq; the last row's
    seq gives the next page. `limit`: the most rows; since the rows of an event stay together, an event that alone has
    more than that comes whole. `on_damage` gets a line for each damaged stretch and each missing segment it meets.

    Raises:
        JournalError: not a journal, or a file cannot be read. ValueError: `limit` is less than 1.
    """
    if limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    kept = _kept(Path(path))
    with kept.lock:
        return _LookUp(kept, Path(path), entity, machine, limit, before_seq, on_damage).run()


class _Kept:
    """What a look-up keeps for the next one in the same journal."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held during a look-up
        self.snapshot: JournalSnapshot | None = None  # guarded by lock
        self.signature: object = None  # of the folder when the snapshot was taken; guarded by lock
        self.ends: dict[Path, tuple[object, SegmentEnd | None]] = {}  # guarded by lock
        self.searched: dict[int, SearchedSegment] = {}  # by the segment's number; guarded by lock

    def look_at(self, path: Path) -> JournalSnapshot:
        """The present snapshot. Raises JournalError."""
        signature = _signature(path)
        if self.snapshot is None or signature is None or signature != self.signature:
            self.snapshot = look_at(path)
            self.signature = signature
            numbers = set(map(segment_number, (*self.snapshot.closed, *self.snapshot.left_open)))
            self.searched = {number: found for number, found in self.searched.items() if number in numbers}
            self.ends = {segment: self.ends[segment] for segment in self.snapshot.closed if segment in self.ends}
        return self.snapshot

    def end_of(self, segment: Path) -> SegmentEnd | None:
        """Raises OSError."""
        status = segment.stat()
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self.ends.get(segment)
        if known is None or known[0] != signature:
            known = self.ends[segment] = (signature, read_end(segment))
        return known[1]


_kept_lock = threading.Lock()
_kept_journals: OrderedDict[str, _Kept] = OrderedDict()  # the last used one is the last; guarded by _kept_lock


def _kept(path: Path) -> _Kept:
    key = str(path.absolute())
    with _kept_lock:
        kept = _kept_journals.setdefault(key, _Kept())
        _kept_journals.move_to_end(key)
        while len(_kept_journals) > _MOST_JOURNALS:
            _kept_journals.popitem(last=False)
        return kept


def _signature(path: Path) -> object:
    """A value that changes whenever a file of the folder appears, goes or is renamed; None: there is none yet."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    is_coarse = status.st_mtime_ns % NS_PER_S == 0
    is_settled = abs(time.time_ns() - status.st_mtime_ns) > (_SETTLED_COARSE_NS if is_coarse else _SETTLED_NS)
    return (status.st_dev, status.st_ino, status.st_mtime_ns) if is_settled else None


class _LookUp:
    """One look-up, for one thread."""

    def __init__(
        self,
        kept: _Kept,
        path: Path,
        entity: str,
        machine: str | None,
        limit: int,
        before_seq: int | None,
        on_damage: Callable[[str], None],
    ) -> None:
        self._kept = kept
        self._path = path
        self._name = encode_text(entity)
        self._machine = machine
        self._limit = limit
        self._before_seq = before_seq
        self._on_damage = on_damage
        self._pause = Pace(_PIECE_S).pause
        self._rows: list[HistoryRow] = []
        self._is_whole = True  # nothing older is missing

    def run(self) -> EntityHistory:
        snapshot = self._kept.look_at(self._path)
        for line in snapshot.missing():
            self._damaged(line)
        at_end = open_at_end(snapshot)
        if len(at_end) < len(snapshot.left_open):
            self._is_whole = False  # a crash left an open segment between closed ones, which no reader reads
        listed = (*snapshot.closed, *at_end)
        first = segment_number(listed[0]) if listed else snapshot.manifest.first if snapshot.manifest else 1
        self._is_whole &= first == 1
        for segment in reversed(listed):
            if self._has_enough():
                break
            self._segment(segment, is_open=segment in snapshot.left_open)
            self._pause()
        else:
            return self._answer(is_whole=self._is_whole)
        return self._answer(is_whole=False)

    def _answer(self, *, is_whole: bool) -> EntityHistory:
        rows = self._rows
        if len(rows) > self._limit:
            cut = rows[self._limit].seq
            kept = [row for row in rows if row.seq > cut] or [row for row in rows if row.seq == rows[0].seq]
            is_whole &= len(kept) == len(rows)
            rows = kept
        return EntityHistory(rows, is_whole)

    def _has_enough(self) -> bool:
        """There are more rows than wanted, from more than one event, whose rows stay together."""
        return len(self._rows) > self._limit and self._rows[-1].seq != self._rows[0].seq

    def _damaged(self, line: str) -> None:
        self._is_whole = False
        self._on_damage(line)

    def _segment(self, segment: Path, *, is_open: bool) -> None:
        try:
            end = None if is_open else self._kept.end_of(segment)
            if end is not None and self._is_later(end.summary.first_seq):
                return
            offsets = None if end is None else self._indexed(segment, end)
            if offsets is None:
                self._search(segment, is_open=is_open)
            elif offsets:
                with open_frames(segment, keeps_interpreter=True) as reader:
                    self._frames(reader, reversed(offsets))
        except FileNotFoundError:
            if is_retired(self._path, segment_number(segment)):
                self._is_whole = False
            else:
                self._damaged(f"{segment.name}: is missing")
        except OSError as error:
            raise JournalError(f"{segment}: cannot be read: {error.strerror or error}") from error

    def _is_later(self, first_seq: int) -> bool:
        """Whether all rows from `first_seq` on are too new. A transition may have the seq before its frame's first."""
        return self._before_seq is not None and first_seq > self._before_seq

    def _indexed(self, segment: Path, end: SegmentEnd) -> list[int] | None:
        """Offsets of frames that may have rows of the entity, oldest first; None: there is no sound index."""
        try:
            with HistoryIndex(index_path(segment)) as index:
                if index.header.is_of(segment, end):
                    offsets = index.frames_of(self._name)
                    self._kept.searched.pop(segment_number(segment), None)
                    return offsets
        except (JournalError, OSError):
            pass
        report_unsound(segment)
        return None

    def _search(self, segment: Path, *, is_open: bool) -> None:
        number = segment_number(segment)
        with open_frames(segment, keeps_interpreter=True) as reader:
            searched = self._kept.searched.get(number)
            if searched is None or not searched.is_of(reader):
                searched = self._kept.searched[number] = SearchedSegment(reader.inode)
            for line in searched.read_further(reader, self._pause, is_open=is_open):
                self._damaged(line)
            self._frames(reader, searched.frames_with(reader, self._name, self._pause))

    def _frames(self, reader: FrameReader, offsets: Iterable[int]) -> None:
        """Add the entity's rows from the frames at these offsets, newest first."""
        for offset in offsets:
            if self._has_enough():
                return
            frame = reader.frame_at(offset, self._is_wanted)
            if frame is None:
                self._damaged(f"{reader.path.name}: the frame at byte {offset} is damaged")
            elif frame.payload:
                self._rows += self._rows_in(frame)
            self._pause()

    def _is_wanted(self, header: Header) -> bool:
        return not self._is_later(header.first_seq)

    def _rows_in(self, frame: Frame) -> list[HistoryRow]:
        """The frame's rows about the entity, newest first."""
        payload, first_seq = decode_rows(frame.payload), frame.header.first_seq
        found = []
        for event, transition in entity_rows(payload, first_seq, self._name, self._machine, self._pause):
            row = _history_row(event, transition)
            if self._before_seq is None or row.seq < self._before_seq:
                found.append(row)
        return found


def _history_row(event: dict[str, Any] | None, transition: dict[str, Any] | None) -> HistoryRow:
    if event is not None:
        about = {name: value for name, value in event.items() if name not in ("seq", "entity", "event_type")}
        about["event_entity"] = event.get("entity")
    if transition is None:
        assert event is not None
        return HistoryRow(event["seq"], event["started_at"], None, None, event["event_type"], None, None, **about)
    made = {name: value for name, value in transition.items() if name != "entity"}
    return HistoryRow(**made) if event is None else HistoryRow(**made, **about)
