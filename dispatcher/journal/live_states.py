"""The live entities of a journal's machines: read at a start, followed while rows are written, kept by snapshots.

A snapshot is a frame of the journal. It is made of what earlier frames say and not of the machines, so it holds exactly
the transitions whose rows are written: a redelivered event finds its entity in the state before. Retention keeps the
segments from the last snapshot but one on, so that a damaged snapshot costs time and no state.

Threads: the states belong to whoever holds the writer's `_taking`. A thread that lives as long as the work encodes a
copy of them and appends the frame.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Final

from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import ROWS, SNAPSHOT, Frame
from dispatcher.journal.format.live_states import (
    ENDED,
    LastStates,
    StateChange,
    StatesAt,
    changes_in,
    decode_states,
    encode_states,
    follow,
    follow_frame,
    machine_of,
    target_of,
)
from dispatcher.journal.format.schema import Kind, Row
from dispatcher.journal.format.segments import segment_number
from dispatcher.journal.pacing import ReadingPace
from dispatcher.journal.read import sparse_frames
from dispatcher.journal.segment_log import SegmentLog
from dispatcher.journal.snapshot import look_at
from dispatcher.util.foreign import tell
from dispatcher.util.threads import try_to_start

log: logging.Logger = logging.getLogger(__name__)

_PIECE_S: Final = 0.001
_NO_THREAD_S: Final = 1.0
"""The time until the next attempt if the system has no thread left."""


class LiveStates:
    """The entities of one kind of machine that have not ended, each with its state after the last written frame.

    A snapshot is due with the first frame, and again after `every_s` seconds or `every` transitions. A snapshot of more
    entities than `every` is followed by as many transitions.
    """

    def __init__(
        self,
        segment_log: SegmentLog,
        found: StatesAt,
        ends: frozenset[str],
        *,
        every: int,
        every_s: float,
        kept: frozenset[str] = frozenset(),
    ) -> None:
        """`found`: as `read_states` returns it. `kept`: entities of which a snapshot says that they have ended."""
        self._log = segment_log  # never changes, like all fields that do not say otherwise
        self._machine = found.machine
        self._ends = ends
        self._kept = kept
        self._least = every
        self._every_s = every_s
        self._states = found.states  # guarded by the writer's _taking
        self._targets: list[str | None] = []  # by the writer's number of a kind; guarded by _taking
        self._since = 0  # transitions since the last snapshot was begun; guarded by _taking
        self._every = every  # transitions from the last snapshot to the next one; guarded by _taking
        self._due_s = 0.0  # monotonic time of the next snapshot; guarded by _taking
        # Set by a holder of _taking, reset by the thread that writes the snapshot, as its last act.
        self._is_writing = False
        self._last_segment = found.segment  # what the last snapshot needs; the thread that writes one
        segment_log.keep_from[found.machine] = found.segment

    def follow(self, transitions: Sequence[Row], kinds: Sequence[Kind]) -> None:
        """A frame with these transitions was appended, of these kinds by the writer's numbers."""
        targets = self._targets
        targets += [target_of(kind, self._machine, self._ends) for kind in kinds[len(targets) :]]
        follow(self._states, transitions, targets, self._kept)
        self._since += len(transitions)
        if (self._since >= self._every or monotonic() >= self._due_s) and not self._is_writing:
            self._begin_snapshot()

    def _begin_snapshot(self) -> None:
        # The position is taken after the frame was appended: only frames without rows can come in between.
        at = StatesAt(self._machine, *self._log.position(), self._states.copy())
        name = f"journal-{self._log.path.name}-snapshot"
        self._is_writing = True
        self._since, self._every = 0, max(self._least, len(at.states))
        self._due_s = monotonic() + self._every_s
        if not try_to_start(threading.Thread(target=self._write, args=(at,), name=name, daemon=True)):
            self._is_writing, self._due_s = False, monotonic() + _NO_THREAD_S

    def _write(self, at: StatesAt) -> None:
        """On a thread of its own."""
        time.sleep(_PIECE_S)  # the handler thread waits until this one has started: let it go on first
        try:
            payload = encode_states(at, ReadingPace(_PIECE_S).pause)
            with contextlib.suppress(JournalError), self._log.failing():  # `failing` has called on_failure
                self._log.append_snapshot(payload)
                # From here on retention may remove what only earlier snapshots need.
                self._log.keep_from[self._machine], self._last_segment = self._last_segment, at.segment
        finally:
            self._is_writing = False


def read_states(path: Path, machine: str, ends: frozenset[str], next_seq: int) -> StatesAt:
    """The live entities of a kind of machine at the end of a journal, and the position from which on it was read.

    Reads the newest intact snapshot and the rows behind it; without a snapshot, all rows. `next_seq`: of the journal's
    next event. Events whose rows are damaged or missing are logged.

    Raises:
        JournalError: not a journal, or a file cannot be read.
    """
    segments = look_at(path).in_order
    found = _newest(segments, machine) or StatesAt(machine, segment_number(segments[0]), 0, 1, LastStates())
    states = found.states
    for entity in [entity for entity, state in states.items() if state in ends]:
        states.drop(entity)
    for frame in _frames_after(path, segments, found, next_seq):
        follow_frame(states, decode_rows(frame.payload), machine, ends)
    return found._replace(states=states)


def read_changes(
    path: Path, machine: str, ends: frozenset[str], start: tuple[int, int] | None, next_seq: int
) -> Iterator[StateChange]:
    """The changes of entities that a partition of a journal has made since the start of its last run, in order.

    `start`: the segment and the seq with which the rows of that run begin. None: it is not known, so all rows are read,
    of whatever run, and no snapshot. Otherwise as `read_states`.

    Raises:
        JournalError: as `read_states`.
    """
    segments = look_at(path).in_order
    newest = None if start is None else _newest(segments, machine)
    segment, seq = start or (segment_number(segments[0]), 1)
    # A snapshot of an earlier run has no row of this one before it.
    found = newest if newest is not None and newest.seq > seq else StatesAt(machine, segment, 0, seq, LastStates())
    for entity, state in found.states.items():
        yield StateChange(0, entity, ENDED if state in ends else state, found.states.data.get(entity))
    for frame in _frames_after(path, segments, found, next_seq):
        yield from changes_in(decode_rows(frame.payload), machine, ends)


def _frames_after(path: Path, segments: Sequence[Path], at: StatesAt, next_seq: int) -> Iterator[Frame]:
    """The frames of rows from a position on. Events that are missing are logged."""
    seq = at.seq
    for segment in segments:
        number = segment_number(segment)
        if number < at.segment:
            continue
        for frame in sparse_frames(segment, ROWS, at.offset if number == at.segment else 0):
            if frame.header.first_seq < at.seq:
                continue
            _check_seq(path, at.machine, seq, frame.header.first_seq)
            seq = frame.header.first_seq + frame.header.events
            yield frame
    _check_seq(path, at.machine, seq, next_seq)


def _check_seq(path: Path, machine: str, expected: int, found: int) -> None:
    if found > expected:
        message = "%s: the rows of events %d to %d are missing: entities of %s may be restored in earlier states"
        tell(log, logging.ERROR, message, path, expected, found - 1, machine)


def _newest(segments: Sequence[Path], machine: str) -> StatesAt | None:
    """The newest intact snapshot of the machine's kind."""
    for segment in reversed(segments):
        for frame in reversed(list(sparse_frames(segment, SNAPSHOT))):
            if machine_of(frame.payload) == machine:
                return decode_states(frame.payload)
    return None
