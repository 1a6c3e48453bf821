"""Writing the event journal.

Threads: the handler thread makes rows (`rows`, `seq` and `at` are its own) and hands them over as one frame with each
`flush`. Producers append the events of write-ahead mode; the journal's own thread syncs and closes segments while
nothing happens. The files, and the locks around them, are in `dispatcher.journal.segment_log`.
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
"""Stands for the accepted seq of an event that is accepted though the journal has failed."""

_FLUSH_DELAY_MS: Final = 10
"""How old rows may become in the buffer."""


class JournalWriter:
    """Appends events and transitions to the journal in `path`.

    The folder is new or empty; in write-ahead mode it may hold a journal, which is repaired if need be and continued:
    `recovered` are the events in it that were accepted and not handled.

    The handler thread adds an event in three steps: it sets `seq` and `at` before the handler runs, so that the
    transitions made meanwhile belong to the event; appends an `EventRow`, a plain tuple, to `rows` after it; and calls
    `flush` once there are `config.buffer_rows` of them, or `flush_due_ns` has passed.

    When a frame cannot be written, nothing more is: a hole would be worse than an end. `failure` says why, and
    `failure_policy` what follows: `stop` raises JournalError, also from all later calls; `continue` logs it once and
    ignores them.

    Raises:
        JournalError: the folder has a journal already, has another writer, or cannot be written.
    """

    def __init__(self, path: Path | str, config: JournalConfig | None = None) -> None:
        self.path = Path(path)  # read only, as the two below
        self.config = config or JournalConfig()
        self._commits = self.config.durability == "sync"  # an append waits for the disk
        self.rows: list[Row] = []  # events since the last flush; handler thread
        self._transitions: list[Row] = []  # since the last flush; handler thread
        self._kinds: list[Kind] = []  # handler thread, as the three below
        self._kind_ids: dict[Kind, int] = {}
        self._transition_kinds: list[Kind] = []
        self._transition_kind_ids: dict[Kind, int] = {}
        self.flush_due_ns = 0  # of perf_counter_ns: rows older than that are flushed; handler thread
        self._virtual = False  # set before the first row, as the two below
        self._on_failure: Callable[[JournalError], Any] = _ignore
        self._on_flush_due: Callable[[], Any] = _ignore
        self._settled: deque[int] = deque()  # will never be handled; any thread appends, the handler thread takes
        # Any thread; each says itself what guards it.
        self._log = SegmentLog(self.path, self.config, lambda error: self._on_failure(error))
        self._keeper = Keeper(self._log, lambda: self._on_flush_due())
        recovered = self._log.recovered
        self._recovered = recovered.accepted  # the dispatcher's, before its start
        self.seq = recovered.summary.next_seq - 1  # of the event in hand, or the last one; handler thread
        self.at = 0  # when that event was started: Unix ns in the clock of the run; handler thread

    def attach(
        self,
        *,
        virtual: bool = False,
        on_failure: Callable[[JournalError], Any] | None = None,
        on_flush_due: Callable[[], Any] | None = None,
    ) -> None:
        """Whose events these are: for the dispatcher, once, before the first row.

        `virtual`: the clock of the run stands still while anything is queued. `on_failure(error)` is called once, on
        the thread that found out; `on_flush_due()` on the journal's own thread, to have the handler thread call
        `idle`.
        """
        self._virtual = virtual
        self._on_failure = on_failure or _ignore
        self._on_flush_due = on_flush_due or _ignore

    @property
    def recovered(self) -> tuple[Accepted, ...]:
        """Events that the journal's earlier writer accepted and did not see handled, oldest first."""
        return self._recovered

    def forget_recovered(self) -> None:
        """They are queued again, so there is no need to keep them here."""
        self._recovered = ()

    # -- for any thread to look at -----------------------------------------------------------------------------------

    @property
    def frames(self) -> int:
        """Appended by this writer."""
        return self._log.frames

    @property
    def syncs(self) -> int:
        """How often this writer has waited for the disk."""
        return self._log.syncs

    @property
    def bytes_written(self) -> int:
        """By this writer."""
        return self._log.bytes_written

    @property
    def segments_closed(self) -> int:
        return self._log.segments_closed

    @property
    def segments_removed(self) -> int:
        """By retention."""
        return self._log.segments_removed

    @property
    def outstanding(self) -> int:
        """Write-ahead: events accepted and not settled, as far as the log says."""
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
        """The number that stands for these in `rows`."""
        return _number((dispatcher, event_class, event_type, outcome), self._kind_ids, self._kinds)

    def transition(
        self, machine: str, entity: str, from_state: Enum, event_type: Enum, to_state: Enum, *, valid: bool
    ) -> None:
        """Record a transition made (or refused: `valid=False`) while handling the current event."""
        key = (machine, from_state._name_, event_type._name_, to_state._name_, valid)
        kind = self._transition_kind_ids.get(key)
        if kind is None:
            kind = _number(key, self._transition_kind_ids, self._transition_kinds)
        self._transitions.append((kind, self.seq, entity, self.at))  # a TransitionRow

    def flush(self) -> None:
        """Hand all rows over, and close the segment if it is big or old enough. Under `sync` they are on the disk then;
        in write-ahead mode soon after, for until then their events are in the log, to be handled again.

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
        """Nothing is queued: flush now, or, if the last flush was just now, soon: then `on_flush_due` is called."""
        has_rows = bool(self.rows or self._transitions or self._settled)
        commits = self._commits and not self.config.write_ahead
        if commits or not has_rows or time.perf_counter_ns() >= self.flush_due_ns:
            self.flush()
        else:
            self._keeper.flush_in(_FLUSH_DELAY_MS / 1000)

    def close(self) -> None:
        """Write what is buffered and close the segment by its rename. Repeating it does nothing.

        Raises:
            JournalError: it could not be written, unless the policy is to continue; the segment stays an open one.
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
        events, self.rows[:] = self.rows[:], []  # the list stays: others have bound it
        transitions, self._transitions = self._transitions, []
        settled = [self._settled.popleft() for _ in range(len(self._settled))]
        # Only this thread appends rows, so the first seq stays what it is while they are encoded.
        first_seq = self._log.next_seq()
        rows = encode_rows(
            events,
            transitions,
            first_seq,
            self._kinds,
            self._transition_kinds,
            virtual=self._virtual,
            settled=settled,
        )
        self._log.append_rows(rows)
        self._keeper.ensure_running()

    # -- any thread ------------------------------------------------------------------------------------------------

    def append_accepted(self, line: bytes) -> int:
        """Write-ahead: one event, encoded as JSON; returns its accepted seq once it is in the log, on disk under
        `sync`. Threads that wait at the same time share one fsync.

        Raises:
            JournalError: it cannot be written, or the journal is closed. Then it is not in the log.
        """
        with self._log.failing(always=True):
            seq = self._log.append_accepted(line)
            self._keeper.ensure_running()
            if self._commits:
                self._log.commit()
        if self._log.is_due():
            with contextlib.suppress(JournalError):  # on_failure has been called; this event is in the log
                self._log.roll()
        return seq

    def settle(self, accepted_seq: int) -> None:
        """An accepted event will never be handled, and shall not be handed out again; written with the next frame."""
        if accepted_seq > 0:
            self._settled.append(accepted_seq)

    def roll(self) -> None:
        """Close the segment, if anything is in it, and begin the next one."""
        self._log.roll()


def _number(key: Kind, numbers: dict[Kind, int], keys: list[Kind]) -> int:
    """The position of the key in `keys`, to which it is added if need be."""
    known = numbers.get(key)
    if known is None:
        known = numbers[key] = len(keys)
        keys.append(key)
    return known


def _ignore(*_: object) -> None: ...
