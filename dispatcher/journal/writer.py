"""Writing the event journal.

Threads: the handler thread makes rows (`rows`, `seq` and `at` belong to it), and each `flush` appends one frame.
In write-ahead mode producers append events (`group_commit`). The journal's own thread (`_Keeper`) syncs and closes
segments while no events arrive; another one (`Indexer`) indexes closed segments. `segment_log` has the files and their
locks.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from threading import get_ident
from typing import Any, Final, Protocol

from dispatcher.config import JournalConfig
from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import encode_rows
from dispatcher.journal.format.schema import Kind, Row
from dispatcher.journal.group_commit import GroupCommit
from dispatcher.journal.indexing import Indexer
from dispatcher.journal.segment_log import SegmentLog
from dispatcher.journal.turns import LaterAppend
from dispatcher.util.foreign import plain_text

NOT_LOGGED: Final = -1
"""Replaces the accepted seq of an event that is accepted although the journal has failed."""

_FLUSH_DELAY_MS: Final = 10
"""The greatest age of buffered rows."""
_LONGEST_WAIT_S: Final = 3600.0
"""A configured age may exceed the longest timeout that a lock accepts."""


def _ignore(*_: object) -> None: ...


class TransitionOrigin(Protocol):
    """What a transition belongs to: the event that the handler thread handles, or one in the hands of a coroutine."""

    def add_transition(
        self, machine: str, entity: str, from_state: str, event_type: str, to_state: str, *, valid: bool
    ) -> None: ...


class JournalWriter:
    """Appends events and transitions to the journal in `path`.

    The folder is new or empty. In write-ahead mode it may hold a journal, which is repaired if necessary and continued:
    `recovered` has its events that were accepted but not handled.

    The handler thread adds an event in three steps. Before the handler runs, it sets `seq` and `at`, so that the
    transitions made meanwhile belong to the event; each is a `TransitionRow`, as a plain tuple, in `transitions`, or a
    call of `transition`. After the handler, it appends an `EventRow`, as a plain tuple, to `rows`. It calls `flush`
    once there are `config.buffer_rows` rows, or `flush_due_ns` has passed.

    After the first frame that cannot be written, nothing is written: the journal ends there instead of having a gap.
    `failure` has the reason. `failure_policy` decides what follows: under `stop` this and all later calls raise
    JournalError; under `continue` the failure is logged once and later calls do nothing.

    Raises:
        JournalError: the folder already has a journal, has another writer, or cannot be written.
    """

    def __init__(self, path: Path | str, config: JournalConfig | None = None) -> None:
        self.path = Path(path)  # read only, like the next two
        self.config = config or JournalConfig()
        self._commits = self.config.durability == "sync"  # an append waits for the disk
        self._flush_commits = self._commits and not self.config.write_ahead  # a flush does
        self.rows: list[Row] = []  # events since the last flush; handler thread
        self.transitions: list[Row] = []  # made since then; handler thread
        self._kinds: dict[Kind, int] = {}  # handler thread, like the next one; numbered in the order of insertion
        self._transition_kinds: dict[Kind, int] = {}
        self.flush_due_ns = 0  # by perf_counter_ns; rows are flushed from then on; handler thread
        self._virtual = False  # set before the first row, like the next two
        self._on_failure: Callable[..., Any] = _ignore
        self._on_flush_due: Callable[..., Any] = _ignore
        self._settled: deque[int] = deque()  # any thread appends, the handler thread removes
        # Any thread may use these two: they have locks of their own.
        self.log = SegmentLog(self.path, self.config, lambda error: self._on_failure(error))
        self._keeper = _Keeper(self.log, lambda: self._on_flush_due())
        self._group = GroupCommit(self.log, commits=self._commits, settle=self.settle, on_append=self._after_append)
        self._indexer = Indexer(self.log) if self.config.history_index else None
        if self._indexer is not None:
            self.log.on_closed = self._indexer.wake
        recovered = self.log.recovered
        self.recovered = recovered.accepted
        """Events that an earlier writer accepted but that were not handled, oldest first; used before the start."""
        self.seq = recovered.summary.next_seq - 1  # of the current event, or the last one; handler thread
        self.at = 0  # when that event's handling began: Unix ns on the run's clock; handler thread
        # The thread whose transitions belong to `seq`; 0: no event is in hand; None: no dispatcher is attached, and the
        # caller sets `seq`. Handler thread writes, any reads: no other thread finds its own number here.
        self.event_thread: int | None = None
        self._origin_elsewhere: Callable[[bool], TransitionOrigin] = lambda _: self  # set before the first row

    def attach(
        self,
        *,
        virtual: bool = False,
        on_failure: Callable[[JournalError], Any] = _ignore,
        on_flush_due: Callable[[], Any] = _ignore,
    ) -> None:
        """Connect the dispatcher. Called once, before the first row.

        `virtual`: the run's clock stands still while events are queued. `on_failure(error)` is called once, on the
        thread that met the error. `on_flush_due()` is called on the journal's own thread and makes the handler thread
        call `idle`.
        """
        self._virtual = virtual
        self._on_failure = on_failure
        self._on_flush_due = on_flush_due

    def attach_origins(self, origin_elsewhere: Callable[[bool], TransitionOrigin]) -> None:
        """As `attach`. `origin_elsewhere(is_made)` is `origin` for a caller whose thread is not `event_thread`."""
        self.event_thread, self._origin_elsewhere = 0, origin_elsewhere

    def forget_recovered(self) -> None:
        """Release them once they are queued again."""
        self.recovered = ()

    @property
    def outstanding(self) -> int:
        """Write-ahead: events accepted but not yet recorded as handled or settled."""
        return self.log.outstanding

    @property
    def failure(self) -> JournalError | None:
        return self.log.failure

    @property
    def is_failed(self) -> bool:
        """A frame could not be written: the journal has ended."""
        return self.log.failure is not None

    # -- the handler thread ----------------------------------------------------------------------------------------

    def kind(self, dispatcher: str, event_class: str, event_type: str, outcome: str) -> int:
        """The number that represents this combination in `rows`."""
        return self._kinds.setdefault((dispatcher, event_class, event_type, outcome), len(self._kinds))

    def transition_kind(self, machine: str, from_state: str, event_type: str, to_state: str, *, valid: bool) -> int:
        """The number that represents this combination in `transitions`."""
        key = (machine, from_state, event_type, to_state, valid)
        kind = self._transition_kinds.get(key)
        if kind is None:
            kind = self._transition_kinds[key] = len(self._transition_kinds)
        return kind

    def transition(
        self, machine: str, entity: str, from_state: Enum, event_type: Enum, to_state: Enum, *, valid: bool
    ) -> None:
        """Record a transition that the caller's event made, or that was refused (`valid=False`). Any thread.

        Raises:
            NoEventInHandError: the caller handles no event of this journal's dispatcher.
        """
        self.origin().add_transition(
            machine, entity, from_state._name_, event_type._name_, to_state._name_, valid=valid
        )

    def origin(self, *, is_made: bool = False) -> TransitionOrigin:
        """The event to which a transition made now by the caller belongs. Any thread.

        `is_made`: the transition was made, and its event, which `origin` told before, may have ended meanwhile.

        Raises:
            NoEventInHandError: the caller handles no event of this journal's dispatcher.
        """
        thread = self.event_thread
        return self if thread is None or thread == get_ident() else self._origin_elsewhere(is_made)

    def add_transition(
        self, machine: str, entity: str, from_state: str, event_type: str, to_state: str, *, valid: bool
    ) -> None:
        """As TransitionOrigin: a transition of the event that the handler thread handles. Handler thread."""
        kind = self.transition_kind(machine, from_state, event_type, to_state, valid=valid)
        if type(entity) is not str:
            entity = plain_text(str(entity))
        self.transitions.append((kind, self.seq, entity, self.at))  # a TransitionRow

    def flush(self) -> None:
        """Write all rows, and close the segment if it is large or old enough.

        Under `sync` the rows are on the disk on return. In write-ahead mode the journal's thread syncs them soon after:
        until then a crash makes recovery hand out their events again.

        Call it between events only, so that an event and its transitions are in one frame.
        """
        if self._has_rows():
            with self.log.failing():
                self._append_rows()
                if self._flush_commits:
                    self.log.commit()
        self.flush_due_ns = time.perf_counter_ns() + _FLUSH_DELAY_MS * 1_000_000
        if self.log.is_due():
            self.log.roll()

    def idle(self) -> None:
        """Called when no event is queued: flush now, or schedule `on_flush_due` if the last flush was just before."""
        if self._flush_commits or not self._has_rows() or time.perf_counter_ns() >= self.flush_due_ns:
            self.flush()
        else:
            self._keeper.ensure_running()  # even before the first frame, which these rows will be in
            self._keeper.flush_in(_FLUSH_DELAY_MS / 1000)

    def close(self) -> None:
        """Write the buffered rows and close the segment. Repeating it does nothing.

        Raises:
            JournalError: the disk failed, and the policy is `stop`; the segment stays open.
        """
        try:
            if not self.log.is_closed:
                with self.log.failing():
                    if self._has_rows():
                        self._append_rows()
                    self.log.close()
        finally:
            self._group.close()
            if self._indexer is not None:
                self._indexer.stop()
            self.log.release()

    def _has_rows(self) -> bool:
        return bool(self.rows or self.transitions or self._settled)

    def _append_rows(self) -> None:
        events, self.rows[:] = self.rows[:], []  # the list object stays: callers have bound its methods
        transitions, self.transitions = self.transitions, []
        settled = [self._settled.popleft() for _ in range(len(self._settled))]
        first_seq = self.log.next_seq()  # only this thread appends rows: the seq cannot change during the encoding
        kinds, transition_kinds, virtual = list(self._kinds), list(self._transition_kinds), self._virtual
        self.log.append_rows(
            encode_rows(events, transitions, first_seq, kinds, transition_kinds, virtual=virtual, settled=settled)
        )
        self._keeper.ensure_running()

    # -- any thread ------------------------------------------------------------------------------------------------

    def append_accepted(self, line: bytes, *, alone: bool = False) -> int:
        """Write-ahead: append one event, encoded as JSON, and return its accepted seq. Under `sync` the event is on the
        disk on return; threads that wait at the same time share one frame and one fsync, unless this one is `alone`
        because it holds a lock that a post may need.

        Raises:
            JournalError: the disk failed, or the journal is closed. The event is not in the log, or not certainly.
            ReentrantAppendError: the call has interrupted its own thread's use of the journal, as a signal handler may.
        """
        return self._group.append(line, alone=alone)

    def append_later(self, later: LaterAppend, *, wait: bool) -> None:
        """Write-ahead: as `append_accepted`, but `later` is told once its event is in the log, or refused.

        `wait`: if MOST_UNDER_WAY are under way, block until this one has ended.
        """
        self._group.append_later(later, wait=wait)

    @property
    def under_way(self) -> list[None]:
        """An item for each event of `append_later` that has not ended. Any thread reads it."""
        return self._group.under_way

    def _after_append(self) -> None:
        self._keeper.ensure_running()  # it looks at the age of the segment
        if self.log.is_large():
            with contextlib.suppress(JournalError):  # on_failure was called; the events are in the log
                self.log.roll()

    def settle(self, accepted_seq: int) -> None:
        """Record with the next frame that an accepted event will never be handled: recovery must not hand it out."""
        if accepted_seq > 0:
            self._settled.append(accepted_seq)

    def roll(self) -> None:
        """Close the segment and begin the next one, unless it is empty."""
        self.log.roll()


class _Keeper:
    """The journal's own thread, for what is due even when no event arrives. It ends with the log.

    It syncs at intervals, closes and removes old segments, and calls `on_flush_due`.
    """

    def __init__(self, segment_log: SegmentLog, on_flush_due: Callable[[], None]) -> None:
        self._log = segment_log  # read only, like the next field
        self._on_flush_due = on_flush_due
        self._flush_by_s = math.inf  # monotonic time at which to call on_flush_due; guarded by log.changed
        self._thread: threading.Thread | None = None  # set once, by any thread

    def ensure_running(self) -> None:
        """Start the thread unless it runs. Any thread, from the first frame on: until then the process may fork."""
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name=f"journal-{self._log.path.name}", daemon=True)
        if self._thread is None:  # no call, so no other thread, between the look and the store
            self._thread = thread
        if self._thread is thread:
            thread.start()

    def flush_in(self, delay_s: float) -> None:
        """Call `on_flush_due` after this delay, or at the earlier time already set. Any thread."""
        with self._log.changed:
            if self._flush_by_s == math.inf:
                self._flush_by_s = time.monotonic() + delay_s
                self._log.changed.notify_all()

    def _run(self) -> None:
        segment_log, config = self._log, self._log.config
        at_intervals = config.durability == "interval" or (config.durability == "sync" and config.write_ahead)
        interval_s = config.sync_interval_ms / 1000 if at_intervals else math.inf
        sync_at_s = time.monotonic() + interval_s
        while True:
            with segment_log.changed:
                due_s = min(segment_log.age_from_s() + config.segment_age_s, sync_at_s, self._flush_by_s)
                segment_log.changed.wait(min(max(0.0, due_s - time.monotonic()), _LONGEST_WAIT_S))
                if segment_log.is_closed:
                    return
                now_s = time.monotonic()
                flush = now_s >= self._flush_by_s
                if flush:
                    self._flush_by_s = math.inf
            if flush:
                self._on_flush_due()
            with contextlib.suppress(JournalError), segment_log.failing():  # `failing` has called on_failure
                if now_s >= sync_at_s:
                    segment_log.commit()
                    sync_at_s = now_s + interval_s
                if segment_log.is_due():
                    segment_log.roll()
                elif config.retention_s is not None and not flush:
                    segment_log.retain()
