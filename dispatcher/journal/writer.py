"""Writing the event journal.

Threads: the handler thread makes rows (`rows`, `seq` and `at` belong to it), and each `flush` appends one frame.
In write-ahead mode producers append events. The journal's own thread (`keeper`) syncs and closes segments while no
events arrive. `segment_log` has the files and their locks.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Final

from dispatcher.config import JournalConfig
from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import encode_rows
from dispatcher.journal.format.schema import Kind, Row
from dispatcher.journal.keeper import Keeper
from dispatcher.journal.recovery import Accepted
from dispatcher.journal.segment_log import SegmentLog

NOT_LOGGED: Final = -1
"""Replaces the accepted seq of an event that is accepted although the journal has failed."""

_FLUSH_DELAY_MS: Final = 10
"""The greatest age of buffered rows."""


class JournalWriter:
    """Appends events and transitions to the journal in `path`.

    The folder is new or empty. In write-ahead mode it may hold a journal, which is repaired if necessary and continued:
    `recovered` has its events that were accepted but not handled.

    The handler thread adds an event in three steps. Before the handler runs, it sets `seq` and `at`, so that the
    transitions made meanwhile belong to the event. After the handler, it appends an `EventRow`, as a plain tuple, to
    `rows`. It calls `flush` once there are `config.buffer_rows` rows, or `flush_due_ns` has passed.

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
        self.rows: list[Row] = []  # events since the last flush; handler thread
        self._transitions: list[Row] = []  # since the last flush; handler thread
        self._kinds: list[Kind] = []  # handler thread, like the next three
        self._kind_ids: dict[Kind, int] = {}
        self._transition_kinds: list[Kind] = []
        self._transition_kind_ids: dict[Kind, int] = {}
        self.flush_due_ns = 0  # by perf_counter_ns; rows are flushed from then on; handler thread
        self._virtual = False  # set before the first row, like the next two
        self._on_failure: Callable[[JournalError], Any] = _ignore
        self._on_flush_due: Callable[[], Any] = _ignore
        self._settled: deque[int] = deque()  # any thread appends, the handler thread removes
        # Any thread may use these two: they have locks of their own.
        self._log = SegmentLog(self.path, self.config, lambda error: self._on_failure(error))
        self._keeper = Keeper(self._log, lambda: self._on_flush_due())
        recovered = self._log.recovered
        self._recovered = recovered.accepted  # used by the dispatcher before its start
        self.seq = recovered.summary.next_seq - 1  # of the current event, or the last one; handler thread
        self.at = 0  # when that event's handling began: Unix ns on the run's clock; handler thread

    def attach(
        self,
        *,
        virtual: bool = False,
        on_failure: Callable[[JournalError], Any] | None = None,
        on_flush_due: Callable[[], Any] | None = None,
    ) -> None:
        """Connect the dispatcher. Called once, before the first row.

        `virtual`: the run's clock stands still while events are queued. `on_failure(error)` is called once, on the
        thread that met the error. `on_flush_due()` is called on the journal's own thread and makes the handler thread
        call `idle`.
        """
        self._virtual = virtual
        self._on_failure = on_failure or _ignore
        self._on_flush_due = on_flush_due or _ignore

    @property
    def recovered(self) -> tuple[Accepted, ...]:
        """Events that an earlier writer accepted but that were not handled, oldest first."""
        return self._recovered

    def forget_recovered(self) -> None:
        """Release them once they are queued again."""
        self._recovered = ()

    # -- counts of this writer, for any thread -----------------------------------------------------------------------

    @property
    def frames(self) -> int:
        return self._log.frames

    @property
    def syncs(self) -> int:
        return self._log.syncs

    @property
    def bytes_written(self) -> int:
        return self._log.bytes_written

    @property
    def segments_closed(self) -> int:
        return self._log.segments_closed

    @property
    def outstanding(self) -> int:
        """Write-ahead: events accepted but not yet recorded as handled or settled."""
        return self._log.outstanding

    @property
    def failure(self) -> JournalError | None:
        return self._log.failure

    @property
    def is_failed(self) -> bool:
        """A frame could not be written: the journal has ended."""
        return self._log.failure is not None

    # -- the handler thread ----------------------------------------------------------------------------------------

    def kind(self, dispatcher: str, event_class: str, event_type: str, outcome: str) -> int:
        """The number that represents this combination in `rows`."""
        return _number((dispatcher, event_class, event_type, outcome), self._kind_ids, self._kinds)

    def transition(
        self, machine: str, entity: str, from_state: Enum, event_type: Enum, to_state: Enum, *, valid: bool
    ) -> None:
        """Record a transition that the current event made, or that was refused (`valid=False`)."""
        key = (machine, from_state._name_, event_type._name_, to_state._name_, valid)
        kind = self._transition_kind_ids.get(key)
        if kind is None:
            kind = _number(key, self._transition_kind_ids, self._transition_kinds)
        self._transitions.append((kind, self.seq, entity, self.at))  # a TransitionRow

    def flush(self) -> None:
        """Write all rows, and close the segment if it is large or old enough.

        Under `sync` the rows are on the disk on return. In write-ahead mode the journal's thread syncs them soon after:
        until then a crash makes recovery hand out their events again.

        Call it between events only, so that an event and its transitions are in one frame.
        """
        if self.rows or self._transitions or self._settled:
            with self._log.failing():
                self._append_rows()
                if self._commits and not self.config.write_ahead:
                    self._log.commit()
        self.flush_due_ns = time.perf_counter_ns() + _FLUSH_DELAY_MS * 1_000_000
        if self._log.is_due():
            self._log.roll()

    def idle(self) -> None:
        """Called when no event is queued: flush now, or schedule `on_flush_due` if the last flush was just before."""
        has_rows = bool(self.rows or self._transitions or self._settled)
        commits = self._commits and not self.config.write_ahead
        if commits or not has_rows or time.perf_counter_ns() >= self.flush_due_ns:
            self.flush()
        else:
            self._keeper.flush_in(_FLUSH_DELAY_MS / 1000)

    def close(self) -> None:
        """Write the buffered rows and close the segment. Repeating it does nothing.

        Raises:
            JournalError: the disk failed, and the policy is `stop`; the segment stays open.
        """
        if self._log.is_closed and self._log.is_released:
            return
        try:
            if not self._log.is_closed:
                with self._log.failing():
                    if self.rows or self._transitions or self._settled:
                        self._append_rows()
                    self._log.close()
        finally:
            self._log.release()

    def _append_rows(self) -> None:
        events, self.rows[:] = self.rows[:], []  # the list object stays: callers have bound its methods
        transitions, self._transitions = self._transitions, []
        settled = [self._settled.popleft() for _ in range(len(self._settled))]
        first_seq = self._log.next_seq()  # only this thread appends rows: the seq cannot change during the encoding
        kinds, transition_kinds, virtual = self._kinds, self._transition_kinds, self._virtual
        self._log.append_rows(
            encode_rows(events, transitions, first_seq, kinds, transition_kinds, virtual=virtual, settled=settled)
        )
        self._keeper.ensure_running()

    # -- any thread ------------------------------------------------------------------------------------------------

    def append_accepted(self, line: bytes) -> int:
        """Write-ahead: append one event, encoded as JSON, and return its accepted seq. Under `sync` the event is on the
        disk on return; threads that wait at the same time share one fsync.

        Raises:
            JournalError: the disk failed, or the journal is closed. The event is not in the log.
        """
        with self._log.failing(always=True):
            seq = self._log.append_accepted(line)
            self._keeper.ensure_running()
            if self._commits:
                self._log.commit()
        if self._log.is_due():
            with contextlib.suppress(JournalError):  # on_failure was called; this event is in the log
                self._log.roll()
        return seq

    def settle(self, accepted_seq: int) -> None:
        """Record with the next frame that an accepted event will never be handled: recovery must not hand it out."""
        if accepted_seq > 0:
            self._settled.append(accepted_seq)

    def roll(self) -> None:
        """Close the segment and begin the next one, unless it is empty."""
        self._log.roll()


def _number(key: Kind, numbers: dict[Kind, int], keys: list[Kind]) -> int:
    """The position of the key in `keys`; a new key is appended."""
    known = numbers.get(key)
    if known is None:
        known = numbers[key] = len(keys)
        keys.append(key)
    return known


def _ignore(*_: object) -> None: ...
