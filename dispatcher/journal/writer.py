"""Writing the event journal.

Threads: the handler thread makes rows (`rows`, `moves`, `seq` and `at` are its own) and hands them over as one frame
with each `flush`. Appending frames, syncing and closing segments are for any thread: producers in write-ahead mode, and
the journal's own thread, which syncs at intervals and closes segments that are old while nothing happens.

Locks, in this order: `_sync_lock` (held during an fsync and while a segment is closed), `_file_lock` (held during
an append). Both are released before anybody else's code runs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

from dispatcher.config import JournalConfig
from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import EventRow, Kind, MoveKind, MoveRow, encode_rows
from dispatcher.journal.format.segments import (
    Manifest,
    SegmentFile,
    WriterLock,
    open_segments,
    read_manifest,
    segment_number,
    segment_path,
    segments,
    sync_folder,
)
from dispatcher.journal.recovery import Accepted, Recovered, repair

log = logging.getLogger(__name__)

NOT_LOGGED: Final = -1
"""Stands for the accepted seq of an event that is accepted though the journal has failed."""

_FLUSH_DELAY_MS: Final = 10
"""How old rows may become in the buffer."""
_LONGEST_WAIT_S: Final = 3600.0
"""No lock can be waited for as long as an age may be configured."""


class JournalWriter:
    """Appends events and transitions to the journal in `path`.

    The folder is new or empty; in write-ahead mode it may hold a journal, which is repaired if need be and gone on
    with: `recovered` are the events in it that were accepted and not handled.

    When a frame cannot be written, nothing more is: a hole would be worse than an end. `failure` says why, and
    `failure_policy` what follows: `stop` raises JournalError, also from all later calls; `continue` logs it once and
    ignores them. `on_failure(error)` is called once in either case, on the thread that found out; `on_flush_due()` on
    the journal's own thread, to have the handler thread call `flush`.

    Raises:
        JournalError: the folder has a journal already, is being written by somebody else, or cannot be written.
    """

    def __init__(self, path: Path | str, config: JournalConfig | None = None) -> None:
        self.path = Path(path)
        self.config = config or JournalConfig()
        self._syncs = self.config.durability != "none"
        self._is_sync = self.config.durability == "sync"
        self.seq = 0  # of the event that is being handled, or was handled last; handler thread
        self.at = 0  # when that event was started: Unix ns in the clock of the run; handler thread
        self.rows: list[EventRow] = []  # events since the last flush; handler thread
        self._moves: list[MoveRow] = []  # transitions since the last flush; handler thread
        self._kinds: list[Kind] = []  # handler thread, as the two below
        self._kind_ids: dict[Kind, int] = {}
        self._move_kinds: list[MoveKind] = []
        self._move_kind_ids: dict[tuple[Any, ...], int] = {}
        self.flush_due_ns = 0  # of perf_counter_ns: rows older than that are flushed; handler thread
        self.virtual = False  # the clock of the run stands still while anything is queued; set before the first row
        self.failure: JournalError | None = None  # written under _file_lock
        self.on_failure: Callable[[JournalError], None] = lambda _: None
        self.on_flush_due: Callable[[], None] = lambda: None
        self._flush_by_s = math.inf  # of monotonic: when on_flush_due is to be called; guarded by _file_lock
        self._closed = False  # written under _file_lock: nothing is appended any more
        self._sync_lock = threading.Lock()
        self._file_lock = threading.Lock()
        self.frames = 0  # appended by this writer; written under _file_lock, as the next three
        self._closed_bytes = 0
        self.segments_closed = 0
        self.segments_removed = 0
        self._synced_frames = 0  # of `frames`, those that are on the disk; written under _sync_lock
        self.syncs = 0  # written under _sync_lock
        # Accepted and not settled, with the number of their segment, oldest first; guarded by _file_lock.
        self._outstanding: dict[int, int] = {}
        self._settled: deque[int] = deque()  # will never be handled; any thread appends, the handler thread takes
        self._keeper: threading.Thread | None = None  # made under _file_lock
        self._wake_keeper = threading.Condition(self._file_lock)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(self.path)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            recovered = self._take_over()
            self._recovered = recovered.accepted
            self.seq = recovered.summary.next_seq - 1
            self._first = recovered.first_segment
            self._segment = SegmentFile(self.path, recovered.next_segment, recovered.summary)
            self._write_manifest(closed=False)
        except OSError as error:
            self._lock.release()
            raise self._unwritable(error) from error
        except BaseException:
            self._lock.release()
            raise

    def _take_over(self) -> Recovered:
        if not (segments(self.path) or open_segments(self.path) or read_manifest(self.path) != (None, None)):
            # Before the first segment, so that a crash in between does not leave one without a manifest.
            Manifest(1, 0, closed=True).write(self.path, sync=self._syncs)
            return Recovered.nothing()
        if not self.config.write_ahead:
            raise JournalError(f"{self.path}: holds a journal already; choose a new or an empty folder")
        recovered = repair(self.path)
        for line in recovered.done:
            log.warning("%s: %s", self.path, line)
        self._outstanding = {accepted.seq: accepted.segment for accepted in recovered.accepted}
        return recovered

    @property
    def recovered(self) -> tuple[Accepted, ...]:
        """Events that the journal's earlier writer accepted and did not see handled, oldest first."""
        return self._recovered

    def forget_recovered(self) -> None:
        """They are queued again: there is no need to keep them here, too."""
        self._recovered = ()

    @property
    def bytes_written(self) -> int:
        """So far, by this writer. Any thread."""
        return self._closed_bytes + (0 if self._closed else self._segment.size)

    @property
    def outstanding(self) -> int:
        """Write-ahead: events accepted and not settled, as far as the log says. Any thread."""
        return len(self._outstanding)

    @property
    def is_failed(self) -> bool:
        """A frame could not be written: the journal has ended."""
        return self.failure is not None

    # -- the handler thread ----------------------------------------------------------------------------------------

    def kind(self, dispatcher: str, event_class: str, event_type: str, outcome: str) -> int:
        """The number that stands for these in `rows`."""
        key = (dispatcher, event_class, event_type, outcome)
        known = self._kind_ids.get(key)
        if known is None:
            known = self._kind_ids[key] = len(self._kinds)
            self._kinds.append(key)
        return known

    def begin(self, started_at: int) -> None:
        """An event is about to be handled: the transitions recorded from now on belong to it."""
        self.seq += 1
        self.at = started_at

    def event(
        self,
        dispatcher: str,
        event: Any,
        queue_ns: int,
        handling_ns: int,
        outcome: str,
        error: BaseException | None = None,
        *,
        accepted_seq: int = 0,
        redelivered: bool = False,
    ) -> None:
        """Record the event that `begin` announced. Its enqueued_at and finished_at follow; see `virtual`."""
        type_ = getattr(event, "type", None)
        kind = self.kind(dispatcher, type_.__class__.__name__, str(getattr(type_, "_name_", None) or type_), outcome)
        told = describe(error) if error is not None else None
        entity, payload = entity_of(event), payload_of(event)
        self.rows.append((kind, entity, payload, self.at, queue_ns, handling_ns, told, accepted_seq, redelivered))
        if len(self.rows) >= self.config.buffer_rows:
            self.flush()

    def transition(
        self, machine: str, entity: str, from_state: Enum, event_type: Enum, to_state: Enum, *, valid: bool
    ) -> None:
        """Record a transition made (or refused: `valid=False`) while handling the current event."""
        key = (machine, from_state._name_, event_type._name_, to_state._name_, valid)
        kind = self._move_kind_ids.get(key)
        if kind is None:
            kind = self._move_kind_ids[key] = len(self._move_kinds)
            self._move_kinds.append(key)
        self._moves.append((kind, self.seq, entity, self.at))

    def flush(self) -> None:
        """Hand all rows over, and close the segment if it is big or old enough. Under `sync` they are on the disk then;
        in write-ahead mode soon after, for until then their events are in the log, to be handled again.

        Call it between events only, so that an event and its transitions are in one frame.
        """
        if self.rows or self._moves or self._settled:
            with self._failing():
                self._append_rows()
                if self._is_sync and not self.config.write_ahead:
                    self._commit()
        self.flush_due_ns = time.perf_counter_ns() + _FLUSH_DELAY_MS * 1_000_000
        if self._is_due():
            self.roll()

    def idle(self) -> None:
        """Nothing is queued: flush now, or, if the last flush was just now, soon: then `on_flush_due` is called."""
        has_rows = bool(self.rows or self._moves or self._settled)
        commits = self._is_sync and not self.config.write_ahead
        if commits or not has_rows or time.perf_counter_ns() >= self.flush_due_ns:
            self.flush()
            return
        with self._wake_keeper:
            if self._flush_by_s == math.inf:
                self._flush_by_s = time.monotonic() + _FLUSH_DELAY_MS / 1000
                self._wake_keeper.notify_all()

    def close(self) -> None:
        """Write what is buffered and close the segment by its rename. Repeating it does nothing.

        Raises:
            JournalError: it could not be written, unless the policy is to continue; the segment stays an open one.
        """
        if self._closed and self._lock.is_released:
            return
        try:
            if not self._closed:
                with self._failing():
                    if self.rows or self._moves or self._settled:
                        self._append_rows()
                    self._close()
        finally:
            self._lock.release()

    # -- any thread ------------------------------------------------------------------------------------------------

    def append_accepted(self, lines: bytes) -> int:
        """Write-ahead: one event, encoded as JSON; returns its accepted seq once it is in the log, on disk under
        `sync`. Many threads that wait at a time share one fsync.

        Raises:
            JournalError: it cannot be written, or the journal is closed. Then it is not in the log.
        """
        with self._failing(always=True):
            with self._file_lock:
                self._check_open()
                self._segment.append_accepted(lines, 1, time.time_ns())
                seq = self._segment.summary.next_accepted - 1
                self._outstanding[seq] = self._segment.number
                self._appended()
            if self._is_sync:
                self._commit()
        if self._is_due():
            with contextlib.suppress(JournalError):  # on_failure has told it; this event is in the log
                self.roll()
        return seq

    def settle(self, accepted_seq: int) -> None:
        """An accepted event will never be handled, and shall not be handed out again. Any thread; not at once."""
        if accepted_seq > 0:
            self._settled.append(accepted_seq)

    def roll(self) -> None:
        """Close the segment, if anything is in it, and begin the next one. Any thread."""
        with self._failing(), self._sync_lock:
            with self._file_lock:
                if self._closed or self._segment.is_empty:
                    return
                self._close_segment()
                self._segment = SegmentFile(self.path, self._segment.number + 1, self._segment.summary)
                self._synced_frames = self.frames
            self._retain()
            self._write_manifest(closed=False)

    def _append_rows(self) -> None:
        events, self.rows[:] = self.rows[:], []  # the list stays: others have bound it
        moves, self._moves = self._moves, []
        settled = [self._settled.popleft() for _ in range(len(self._settled))]
        with self._file_lock:
            self._check_open()
            first_seq = self._segment.summary.next_seq
        # Only this thread appends rows, so the first seq stays what it is while they are encoded.
        payload = encode_rows(
            events, moves, first_seq, self._kinds, self._move_kinds, virtual=self.virtual, settled=settled
        )
        min_at, max_at = self._times(events, moves)
        done = [row[7] for row in events if row[7] > 0] + settled
        with self._file_lock:
            self._check_open()
            self._segment.append_rows(payload, len(events), len(moves), min_at, max_at)
            for seq in done:
                self._outstanding.pop(seq, None)
            self._appended()

    def _times(self, events: list[EventRow], moves: list[MoveRow]) -> tuple[int, int]:
        """The earliest and the latest time in the rows."""
        times = [move[3] for move in moves]
        if self.virtual:
            times += [row[3] for row in events]
        elif events:
            times += (min(row[3] - row[4] for row in events), max(row[3] + row[5] for row in events))
        return (min(times), max(times)) if times else (0, 0)

    def _appended(self) -> None:
        """Under _file_lock: a frame was."""
        self.frames += 1
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name=f"journal-{self.path.name}", daemon=True)
            self._keeper.start()

    def _commit(self) -> None:
        """Have all frames on the disk that are appended now. Who waits for the lock often finds it done."""
        wanted = self.frames
        with self._sync_lock:
            if self._synced_frames < wanted:
                self._sync()

    def _sync(self) -> None:
        """Under _sync_lock."""
        with self._file_lock:
            if self.failure is not None:
                raise self.failure
            if self._closed:
                return  # which had it synced
            frames = self.frames
        # But for a failure, nobody closes the file meanwhile: that takes _sync_lock, too.
        self._segment.sync()
        if self.failure is not None:
            raise self.failure
        self._synced_frames = frames
        self.syncs += 1

    def _is_due(self) -> bool:
        segment, config = self._segment, self.config
        return segment.size >= config.segment_bytes or (
            not segment.is_empty and time.monotonic() - segment.opened_s >= config.segment_age_s
        )

    def _close(self) -> None:
        with self._sync_lock:
            with self._file_lock:
                self._closed = True
                self._wake_keeper.notify_all()
                if self._segment.is_empty:  # it is removed, and nobody shall miss it
                    self._write_manifest(closed=True)
                self._close_segment()
            self._retain()
            self._write_manifest(closed=True)

    def _close_segment(self) -> None:
        """Under both locks."""
        recover_from = next(iter(self._outstanding.values()), self._segment.number + 1)
        if self._segment.close(sync=self._syncs, recover_from=recover_from) is not None:
            self.segments_closed += 1
            self._closed_bytes += self._segment.size

    def _retain(self) -> None:
        """Remove closed segments that are too old or too many, never one that recovery needs. Under _sync_lock."""
        config = self.config
        if config.retention_s is None and config.retention_bytes is None:
            return
        with self._file_lock:
            needed = next(iter(self._outstanding.values()), self._segment.number)
        sizes: dict[Path, os.stat_result] = {}
        for path in segments(self.path):
            with contextlib.suppress(FileNotFoundError):  # somebody else has removed it
                sizes[path] = path.stat()
        total = sum(status.st_size for status in sizes.values())
        for path, status in sizes.items():
            too_old = config.retention_s is not None and time.time() - status.st_mtime > config.retention_s
            too_many = config.retention_bytes is not None and total > config.retention_bytes
            if segment_number(path) >= needed or not (too_old or too_many):
                break
            # The manifest first: a reader that finds it gone can see that it was meant to be.
            self._first = segment_number(path) + 1
            self._write_manifest(closed=False)
            path.unlink(missing_ok=True)
            total -= status.st_size
            self.segments_removed += 1

    def _write_manifest(self, *, closed: bool) -> None:
        """Under _sync_lock, but for the constructor."""
        last = self._segment.number
        if not segment_path(self.path, last).exists():
            last -= 1
        Manifest(self._first, last, closed).write(self.path, sync=self._syncs)
        if self._syncs:
            sync_folder(self.path)

    # -- the journal's own thread ------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Sync at intervals, close segments of age while nothing happens, and have rows flushed that wait."""
        config = self.config
        at_intervals = config.durability == "interval" or (self._is_sync and config.write_ahead)
        interval_s = config.sync_interval_ms / 1000 if at_intervals else math.inf
        sync_at_s = time.monotonic() + interval_s
        while True:
            with self._wake_keeper:
                age_from_s = time.monotonic() if self._segment.is_empty else self._segment.opened_s
                due_s = min(age_from_s + config.segment_age_s, sync_at_s, self._flush_by_s)
                self._wake_keeper.wait(min(max(0.0, due_s - time.monotonic()), _LONGEST_WAIT_S))
                if self._closed:
                    return
                now_s = time.monotonic()
                flush = now_s >= self._flush_by_s
                if flush:
                    self._flush_by_s = math.inf
            if flush:
                self.on_flush_due()
            with contextlib.suppress(JournalError), self._failing():  # on_failure has told those whom it concerns
                if now_s >= sync_at_s:
                    self._commit()
                    sync_at_s = now_s + interval_s
                if self._is_due():
                    self.roll()
                elif config.retention_s is not None and not flush:
                    with self._sync_lock:
                        self._retain()

    # -- failures ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        """Under _file_lock."""
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise JournalError(f"{self.path}: the journal is closed")

    @contextlib.contextmanager
    def _failing(self, *, always: bool = False) -> Iterator[None]:
        """Turn what the disk says into the journal's failure; raise it if the policy is to stop, or `always`."""
        try:
            yield
        except OSError as error:
            self._fail(error)
            if always or self.config.failure_policy == "stop":
                raise self.failure or self._unwritable(error) from error
        except JournalError:
            self.rows.clear()
            self._moves.clear()
            if always or self.config.failure_policy == "stop":
                raise

    def _fail(self, error: OSError) -> None:
        with self._file_lock:
            if self.failure is not None:
                return
            self.failure = self._unwritable(error)
            self._closed = True
            self._segment.abandon()
            self._wake_keeper.notify_all()
        goes_on = "; the dispatcher goes on without it" if self.config.failure_policy == "continue" else ""
        log.error("%s What is journaled so far stays%s", self.failure, goes_on)
        self.on_failure(self.failure)

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"{self.path}: the journal cannot be written: {error.strerror or error}. "
            "Make room, or give it another folder, and start again."
        )


def entity_of(event: Any) -> str | None:
    """What the event is about, as the journal has it."""
    entity = getattr(event, "entity", None)
    return entity if entity is None or type(entity) is str else str(entity)


def payload_of(event: Any) -> str | None:
    """What else the event says, as JSON."""
    payload = getattr(event, "payload", None)
    return encode_payload(payload) if payload is not None else None


def encode_payload(payload: Any) -> str:
    try:
        return json.dumps(payload, default=str, separators=(",", ":"))
    except Exception as error:  # e.g. a key that is no string, a cycle, a __str__ that raises: the event still counts
        return json.dumps({"unencodable": describe(error)})


def describe(error: BaseException) -> str:
    """The error's class and message."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: (its __str__ raised)"
