"""The files of a journal that is being written: frames appended to the open segment, synced, and closed with it.

Any thread may call anything here. Locks, in this order: `_sync_lock` (held during an fsync and while a segment is
closed), `_file_lock` (held during an append). Both are released before foreign code runs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dispatcher.config import JournalConfig
from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import EncodedRows
from dispatcher.journal.format.segments import (
    Manifest,
    SegmentFile,
    lock_for_writing,
    open_segments,
    read_manifest,
    segment_number,
    segment_path,
    segments,
)
from dispatcher.journal.recovery import Recovered, repair
from dispatcher.journal.retention import has_retention, surplus
from dispatcher.util.files import sync_folder

log = logging.getLogger(__name__)


class SegmentLog:
    """Appends frames to the journal in `path`, durable as `config` says.

    After a frame could not be written, nothing more is. `failing` turns the error of the disk into `failure`, and
    `on_failure` is called once with it, on the thread that met it.

    Raises:
        JournalError: the folder holds a journal already, has another writer, or cannot be written.
    """

    def __init__(self, path: Path, config: JournalConfig, on_failure: Callable[[JournalError], None]) -> None:
        self.path = path  # read only, as the three below
        self.config = config
        self._on_failure = on_failure
        self._syncs = config.durability != "none"
        self._sync_lock = threading.Lock()  # before _file_lock
        self._file_lock = threading.Lock()  # leaf lock
        self.changed = threading.Condition(self._file_lock)
        """Notified when the log has ended. Its lock is held only for moments."""
        self.failure: JournalError | None = None  # written under _file_lock
        self.is_closed = False  # nothing is appended after it is set; written under _file_lock
        self.frames = 0  # appended by this writer; written under _file_lock
        self._closed_bytes = 0  # written under both locks
        self.segments_closed = 0  # written under both locks
        self.segments_removed = 0  # written under _sync_lock
        self._synced_frames = 0  # of `frames`, those that are on the disk; written under _sync_lock
        self.syncs = 0  # written under _sync_lock
        # Accepted and not settled, with the number of their segment, oldest first; guarded by _file_lock.
        self._outstanding: dict[int, int] = {}
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_for_writing(path)  # by the thread that closes the journal
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self.recovered = self._take_over()  # read only
            self._first = self.recovered.first_segment  # written under _sync_lock
            # Replaced under both locks; its methods are called under _file_lock, but for `sync`.
            self._segment = SegmentFile(path, self.recovered.next_segment, self.recovered.summary)
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
    def bytes_written(self) -> int:
        return self._closed_bytes + (0 if self.is_closed else self._segment.size)

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    def age_from_s(self) -> float:
        """Of monotonic: since when the open segment has held anything; now, if it is empty."""
        segment = self._segment
        return time.monotonic() if segment.is_empty else segment.opened_s

    # -- appending -------------------------------------------------------------------------------------------------

    def next_seq(self) -> int:
        """The seq of the next event. Raises JournalError: the journal is closed, or has failed."""
        with self._file_lock:
            self._check_open()
            return self._segment.summary.next_seq

    def append_rows(self, rows: EncodedRows) -> None:
        """Raises JournalError, OSError."""
        with self._file_lock:
            self._check_open()
            self._segment.append_rows(rows)
            for seq in rows.settled:
                self._outstanding.pop(seq, None)
            self.frames += 1

    def append_accepted(self, line: bytes) -> int:
        """Append one accepted event; returns its accepted seq. Raises JournalError, OSError."""
        with self._file_lock:
            self._check_open()
            self._segment.append_accepted(line, 1, time.time_ns())
            seq = self._segment.summary.next_accepted - 1
            self._outstanding[seq] = self._segment.number
            self.frames += 1
            return seq

    def commit(self) -> None:
        """Bring all frames that are appended now to the disk. A thread that waits for the lock often finds it done.

        Raises JournalError, OSError.
        """
        wanted = self.frames
        with self._sync_lock:
            if self._synced_frames < wanted:
                self._sync()

    def _sync(self) -> None:
        """Under _sync_lock."""
        with self._file_lock:
            if self.failure is not None:
                raise self.failure
            if self.is_closed:
                return  # closing has synced it
            frames = self.frames
        # Only a failure closes the file meanwhile: everything else takes _sync_lock for it.
        self._segment.sync()
        if self.failure is not None:
            raise self.failure
        self._synced_frames = frames
        self.syncs += 1

    # -- segments --------------------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """The open segment is big or old enough to be closed."""
        segment, config = self._segment, self.config
        return segment.size >= config.segment_bytes or (
            not segment.is_empty and time.monotonic() - segment.opened_s >= config.segment_age_s
        )

    def roll(self) -> None:
        """Close the segment, if anything is in it, and begin the next one."""
        with self.failing(), self._sync_lock:
            with self._file_lock:
                if self.is_closed or self._segment.is_empty:
                    return
                self._close_segment()
                self._segment = SegmentFile(self.path, self._segment.number + 1, self._segment.summary)
                self._synced_frames = self.frames
            self._retain()
            self._write_manifest(closed=False)

    def close(self) -> None:
        """Close the segment and the journal, and let others write it. Raises OSError."""
        with self._sync_lock:
            with self._file_lock:
                self.is_closed = True
                self.changed.notify_all()
                if self._segment.is_empty:  # it is removed, so the manifest must not miss it
                    self._write_manifest(closed=True)
                self._close_segment()
            self._retain()
            self._write_manifest(closed=True)

    def release(self) -> None:
        """Let other processes write the journal. Repeating it does nothing."""
        self._lock.release()

    @property
    def is_released(self) -> bool:
        return self._lock.is_released

    def _close_segment(self) -> None:
        """Under both locks."""
        recover_from = next(iter(self._outstanding.values()), self._segment.number + 1)
        if self._segment.close(sync=self._syncs, recover_from=recover_from) is not None:
            self.segments_closed += 1
            self._closed_bytes += self._segment.size

    def retain(self) -> None:
        """Remove closed segments that are too old or too many, never one that recovery needs. Raises OSError."""
        with self._sync_lock:
            self._retain()

    def _retain(self) -> None:
        """Under _sync_lock."""
        if not has_retention(self.config):
            return
        with self._file_lock:
            needed = next(iter(self._outstanding.values()), self._segment.number)
        for path in surplus(self.path, self.config, needed):
            # The manifest first: a reader that finds the segment gone can see that it was meant to be.
            self._first = segment_number(path) + 1
            self._write_manifest(closed=False)
            path.unlink(missing_ok=True)
            self.segments_removed += 1

    def _write_manifest(self, *, closed: bool) -> None:
        """Under _sync_lock, but for the constructor."""
        last = self._segment.number
        if not segment_path(self.path, last).exists():
            last -= 1
        Manifest(self._first, last, closed).write(self.path, sync=self._syncs)
        if self._syncs:
            sync_folder(self.path)

    # -- failures --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        """Under _file_lock."""
        if self.failure is not None:
            raise self.failure
        if self.is_closed:
            raise JournalError(f"{self.path}: the journal is closed")

    @contextlib.contextmanager
    def failing(self, *, always: bool = False) -> Iterator[None]:
        """Turn an error of the disk into the journal's failure; raise it if the policy is to stop, or `always`."""
        raises = always or self.config.failure_policy == "stop"
        try:
            yield
        except OSError as error:
            self.fail(error)
            if raises:
                raise self.failure or self._unwritable(error) from error
        except JournalError:
            if raises:
                raise

    def fail(self, error: OSError) -> None:
        """End the journal because of an error of the disk. Repeating it does nothing."""
        with self._file_lock:
            if self.failure is not None:
                return
            self.failure = self._unwritable(error)
            self.is_closed = True
            self._segment.abandon()
            self.changed.notify_all()
        goes_on = "; the dispatcher goes on without it" if self.config.failure_policy == "continue" else ""
        log.error("%s What is journaled so far stays%s", self.failure, goes_on)
        self._on_failure(self.failure)

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"{self.path}: the journal cannot be written: {error.strerror or error}. "
            "Make room, or give it another folder, and start again."
        )
