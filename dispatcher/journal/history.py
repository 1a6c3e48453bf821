"""The history of an entity: its rows in both tables, newest first, found without decoding the whole journal.

A look-up searches the segments, newest first, for frames that have the entity's name, and decodes only these. It keeps
where frames and names lie, so that the next look-up neither checks nor splits the frames again.

Any thread may look up while a writer appends; look-ups in one journal run one at a time. Every three milliseconds a
look-up lets other threads run.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, make_dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from dispatcher.errors import InvalidValueError, JournalError
from dispatcher.journal.accepted_fields import AcceptedFields
from dispatcher.journal.conditions import Conditions
from dispatcher.journal.format.columns import RowsPayload, decode_rows, encode_text
from dispatcher.journal.format.frames import END, ROWS, Damage, Frame, FrameReader, Header
from dispatcher.journal.format.schema import EVENTS, TABLES, TRANSITIONS, Table
from dispatcher.journal.format.segments import is_open_segment, segment_number
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.pacing import ReadingPace
from dispatcher.journal.read import frames_from, of_kinds
from dispatcher.journal.snapshot import OF_ONE_PARTITION, gone, look_at, open_segment, parts_of, summary_of
from dispatcher.util.functions import require_kind, require_plain

_ENTITIES: Final = tuple((table, table.column("entity")) for table in TABLES)
"""The columns that are searched."""
_PIECE_S: Final = 0.003
"""Less than the switch interval, 5 ms. A wait next to a busy thread takes about that interval, so few are wanted."""
_LOOK_S: Final = 0.05
"""How often a look-up that waits for another one calls `on_pause`."""
_BYTES_AT_ONCE: Final = 1 << 18
"""Bytes searched in one call."""
_ROWS_AT_ONCE: Final = 64
"""Rows decoded in one call."""
_MOST_JOURNALS: Final = 8
"""Journals for which something is kept between look-ups."""


_OF_EVENT: Final = {
    name: "event_entity" if name == "entity" else name for name in EVENTS.names if name not in ("seq", "event_type")
}
"""The columns of an event in a HistoryRow, by their names in the journal."""
_OF_TRANSITION: Final = ("seq", "at", *(name for name in TRANSITIONS.names if name not in ("seq", "at", "entity")))
_Columns: Any = make_dataclass(
    "_Columns",
    [
        *((name, Any, None) if name == "data" else (name, Any) for name in _OF_TRANSITION),
        *((name, Any, None) for name in _OF_EVENT.values()),
    ],
    frozen=True,
    slots=True,
)


class HistoryRow(_Columns):  # type: ignore[misc]  # its fields come from the schema
    """A transition of the entity and the event that made it, or an event about the entity that made none.

    The fields are the journal's columns of the transition, followed by its columns of the event, with the same names,
    types and units. `event_type` is the event type that the machine was given, or without a transition that of the
    event. `event_entity` is the event's own `entity`, which may differ from the one asked for.

    `data` is the entity's data after a transition that changed it, as `{"version": ..., "data": {...}}` in JSON.

    Without a transition, `machine`, `from_state`, `to_state` and `valid` are None, and `at` is the event's
    `started_at`. For a transition made outside of an event, `dispatcher` and all fields after it are None.
    """

    __slots__ = ()


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
    changes_only: bool = False,
    on_damage: Callable[[str], None] = lambda line: None,
    on_pause: Callable[[], object] = lambda: None,
) -> EntityHistory:
    """Return the newest rows about `entity` in the journal, including its open segment.

    `machine`: only transitions of machines of this name.
    `changes_only`: only transitions from one state into another.
    `before_seq`: only rows with a smaller seq. To get the next page, pass the last row's seq.
    `limit`: the maximum number of rows. The rows of an event stay together, so an event with more rows comes whole.
    `on_damage`: called with a line for each damaged stretch and each missing segment met.
    `on_pause`: called after each small piece of the work, and while another look-up in the journal goes on. If it
        raises, this look-up ends, and the next one continues from the part already read.

    The rows of a partitioned journal are ordered by their times. `before_seq` is for one partition, so pass its folder.

    Raises:
        JournalError: it isn't a journal, a file can't be read, or it's partitioned and you passed a `before_seq`.
        ValueError: `limit` is less than 1.
    """
    if limit < 1:
        raise InvalidValueError(f"limit={limit}: must be at least 1")
    on_damage = require_plain(on_damage, "on_damage", "takes a line")
    on_pause = require_plain(on_pause, "on_pause", "pauses the look-up")
    require_kind(entity, "entity", str)
    question = _HistoryQuestion(encode_text(entity), machine, limit, before_seq, changes_only)
    parts = parts_of(path)
    if not parts.is_partitioned:
        return _look_up(parts.path, question, on_damage, on_pause)
    if before_seq is not None:
        raise JournalError(f"{path}: {OF_ONE_PARTITION}")
    for line in parts.problems:
        on_damage(line)
    found = [_look_up(folder, question, parts.naming(folder, on_damage), on_pause) for folder in parts.folders]
    events = [list(rows) for each in found for _, rows in groupby(each.transitions, attrgetter("seq"))]
    rows: list[HistoryRow] = []
    for event in sorted(events, key=lambda rows: rows[0].at, reverse=True):
        if rows and len(rows) + len(event) > limit:
            return EntityHistory(rows, False)
        rows += event
    return EntityHistory(rows, not parts.problems and all(each.complete for each in found))


class _HistoryQuestion(NamedTuple):
    """What `entity_history` is asked for."""

    name: bytes
    """The entity's, as frames store it."""
    machine: str | None
    limit: int
    before_seq: int | None
    changes_only: bool


def _look_up(
    path: Path, question: _HistoryQuestion, on_damage: Callable[[str], object], on_pause: Callable[[], object]
) -> EntityHistory:
    kept = _kept(path)
    while not kept.lock.acquire(timeout=_LOOK_S):
        on_pause()
    try:
        return _LookUp(kept, path, question, on_damage, on_pause).run()
    finally:
        kept.lock.release()


class _KeptHistory:
    """What a look-up keeps for the next one in the same journal."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held during a look-up
        self.searched: dict[int, _SearchedSegment] = {}  # by the segment's number; guarded by lock


_kept_lock = threading.Lock()
_kept_journals: OrderedDict[str, _KeptHistory] = OrderedDict()  # the last used one is the last; guarded by _kept_lock


def _kept(path: Path) -> _KeptHistory:
    key = str(path.absolute())
    with _kept_lock:
        kept = _kept_journals.setdefault(key, _KeptHistory())
        _kept_journals.move_to_end(key)
        while len(_kept_journals) > _MOST_JOURNALS:
            _kept_journals.popitem(last=False)
        return kept


class _LookUp:
    """One look-up, for one thread."""

    def __init__(
        self,
        kept: _KeptHistory,
        path: Path,
        question: _HistoryQuestion,
        on_damage: Callable[[str], object],
        on_pause: Callable[[], object],
    ) -> None:
        self._kept = kept
        self._path = path
        self._question = question
        before = question.before_seq
        self._newest = None if before is None else Conditions({"seq": (None, before - 1)})
        self._on_damage = on_damage
        self._fields = AcceptedFields(path)
        self._pace = ReadingPace(_PIECE_S)
        self._on_pause = on_pause
        self._rows: list[HistoryRow] = []
        self._is_whole = True  # nothing older is missing

    def run(self) -> EntityHistory:
        snapshot = look_at(self._path)
        numbers = set(map(segment_number, (*snapshot.closed, *snapshot.left_open)))
        self._kept.searched = {number: found for number, found in self._kept.searched.items() if number in numbers}
        for damage in snapshot.missing():
            self._damaged(damage.line)
        if len(snapshot.open_at_end) < len(snapshot.left_open):
            self._is_whole = False  # a crash left an open segment between closed ones, which no reader reads
        listed = snapshot.in_order
        first = segment_number(listed[0]) if listed else snapshot.manifest.first if snapshot.manifest else 1
        self._is_whole &= first == 1
        for segment in reversed(listed):
            if self._has_enough():
                break
            summary = None if self._newest is None or is_open_segment(segment) else summary_of(segment)
            if summary is None or self._is_wanted(summary):
                self._search(segment)
            self._pause()
        else:
            return self._answer(is_whole=self._is_whole)
        return self._answer(is_whole=False)

    def _pause(self) -> None:
        self._pace.pause()
        self._on_pause()

    def _answer(self, *, is_whole: bool) -> EntityHistory:
        rows, limit = self._rows, self._question.limit
        if len(rows) > limit:
            cut = rows[limit].seq
            kept = [row for row in rows if row.seq > cut] or [row for row in rows if row.seq == rows[0].seq]
            is_whole &= len(kept) == len(rows)
            rows = kept
        return EntityHistory(rows, is_whole)

    def _has_enough(self) -> bool:
        """There are more rows than wanted, from more than one event, whose rows stay together."""
        return len(self._rows) > self._question.limit and self._rows[-1].seq != self._rows[0].seq

    def _damaged(self, line: str) -> None:
        self._is_whole = False
        self._on_damage(line)

    def _is_wanted(self, part: Header | Summary) -> bool:
        """Whether it may have rows that are old enough."""
        return self._newest is None or any(self._newest.can_hold(table, part) for table in TABLES)

    def _search(self, segment: Path) -> None:
        number = segment_number(segment)
        with open_segment(segment, keeps_interpreter=True) as reader:
            if reader is None:
                self._is_whole = False
                if (damage := gone(segment)).is_problem:
                    self._on_damage(damage.line)
                return
            searched = self._kept.searched.get(number)
            if searched is None or not searched.is_of(reader):
                searched = self._kept.searched[number] = _SearchedSegment(reader.inode)
            for line in searched.read_further(reader, self._pause, is_open=is_open_segment(segment)):
                self._damaged(line)
            self._frames(reader, searched.frames_with(reader, self._question.name, self._pause))

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

    def _rows_in(self, frame: Frame) -> list[HistoryRow]:
        """The frame's rows about the entity, newest first."""
        payload, before_seq = decode_rows(frame.payload), self._question.before_seq
        rows = _entity_rows(payload, frame.header.first_seq, self._question, self._fields, self._pause)
        return [row for row in rows if before_seq is None or row.seq < before_seq]


def _history_row(event: dict[str, Any] | None, transition: dict[str, Any] | None) -> HistoryRow:
    if transition is None:
        assert event is not None
        transition = {"seq": event["seq"], "at": event[EVENTS.time], "event_type": event["event_type"]}
    about = {} if event is None else {ours: event.get(name) for name, ours in _OF_EVENT.items()}
    return HistoryRow(*map(transition.get, _OF_TRANSITION), **about)


def _entity_rows(
    payload: RowsPayload,
    first_seq: int,
    question: _HistoryQuestion,
    fields: AcceptedFields,
    pause: Callable[[], None],
) -> Iterator[HistoryRow]:
    """The rows about the entity in a frame, newest first: its transitions, and events about it without any."""
    machine, changes_only = question.machine, question.changes_only
    rows: dict[str, list[int]] = defaultdict(list)
    for table, column in _ENTITIES:
        if changes_only and table is not TRANSITIONS:
            continue
        for some in payload.rows_with(table, column, question.name):
            rows[table.name] += some
            pause()
    if changes_only:
        rows[TRANSITIONS.name] = payload.changes_among(rows[TRANSITIONS.name])

    def at(table: Table, rows: list[int]) -> Iterator[dict[str, Any]]:
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            yield from payload.rows(table, first_seq, rows[first : first + _ROWS_AT_ONCE])
            pause()

    by_seq: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for transition in at(TRANSITIONS, rows[TRANSITIONS.name]):
        if machine is None or transition["machine"] == machine:
            by_seq[transition["seq"]].append(transition)
    seqs = set(by_seq)
    if machine is None:
        seqs.update(first_seq + row for row in rows[EVENTS.name])
    # A transition may have the seq of an event before or behind the frame.
    of_events = [seq - first_seq for seq in sorted(seqs) if 0 <= seq - first_seq < payload.rows_of(EVENTS)]
    events = {event["seq"]: event for event in fields.complete(at(EVENTS, of_events))}
    for seq in sorted(seqs, reverse=True):
        made = reversed(by_seq[seq]) if seq in by_seq else (None,)
        yield from (_history_row(events.get(seq), transition) for transition in made)


class _SearchedSegment:
    """The position of the entities' names in each frame read so far. One thread at a time.

    Each frame is checked when it is first read. Since frames never change, later only the names are read again.
    """

    def __init__(self, inode: int) -> None:
        self._inode = inode
        self._end = 0  # of the frames read so far
        # For each frame and table three numbers: the frame's offset, and the names' start and end.
        self._places = array("Q")
        self._damages: list[str] = []
        self._has_end = False

    def is_of(self, reader: FrameReader) -> bool:
        """Whether this is the file read before, and it has not become shorter."""
        return reader.inode == self._inode and reader.size >= self._end

    def read_further(self, reader: FrameReader, pause: Callable[[], None], *, is_open: bool) -> list[str]:
        """Read the frames appended since the last call; returns a line for each damaged stretch of the segment so far.

        Raises OSError.
        """
        last: list[str] = []  # what may change with the next call
        if not self._has_end:
            for found in frames_from(reader, of_kinds(ROWS), is_open=is_open, start=self._end, check_all=True):
                if isinstance(found, Damage):
                    is_last = found.at_end or found.offset is None
                    if found.is_problem:
                        (last if is_last else self._damages).append(found.line)
                    continue
                if found.header.kind == ROWS:
                    self._add(found.offset, found.end, found.payload)
                self._has_end = found.header.kind == END
                self._end = found.end
                pause()
        return [*self._damages, *last]

    def _add(self, offset: int, end: int, payload: bytes) -> None:
        columns = decode_rows(payload).columns
        ends: dict[str, int] = {}
        start = end - sum(len(data) for _, data in columns.values())
        for name, (_, data) in columns.items():
            start += len(data)
            ends[name] = start
        for table, column in _ENTITIES:
            name = f"{table.stored_name(column)}.text"
            if name in columns:
                self._places.extend((offset, ends[name] - len(columns[name][1]), ends[name]))

    def frames_with(self, reader: FrameReader, name: bytes, pause: Callable[[], None]) -> list[int]:
        """Offsets of the frames whose names contain this text, newest first. Raises OSError."""
        offsets: set[int] = set()
        buffer = bytearray(_BYTES_AT_ONCE + len(name))
        for offset, start, end in zip(*[iter(self._places)] * 3, strict=True):
            for piece in range(start, end, _BYTES_AT_ONCE) or (start,):
                # With the beginning of the next piece: the name may lie across both.
                length = reader.read_into(buffer, min(end - piece, _BYTES_AT_ONCE + len(name)), piece)
                if buffer.find(name, 0, length) >= 0:
                    offsets.add(offset)
                    break
                pause()
        return sorted(offsets, reverse=True)
