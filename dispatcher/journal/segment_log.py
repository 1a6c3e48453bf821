"""The writer's side of a journal's files: appending and syncing frames, closing and removing segments.

Any thread may call anything here. Locks, in this order: `_sync_lock` (held during an fsync and while a segment is
closed), `_file_lock` (held during an append). Both are released before foreign code runs.

A signal handler, or a `__del__` that the garbage collector runs, may post and so append while its thread holds one of
the locks. Both are re-entrant, and know their owner. An append within the `_sync_lock` is like any other: its commit
syncs once more, and a roll is left to the next append. An append within the `_file_lock` would come into the middle of
a frame, so it raises ReentrantAppendError.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dispatcher.config import JournalConfig
from dispatcher.errors import ForkedProcessError, JournalError, JournalLossError
from dispatcher.journal.format.columns import EncodedRows
from dispatcher.journal.format.partitions import check_no_other_files, holds_partitions
from dispatcher.journal.format.segments import (
    Manifest,
    SegmentFile,
    holds_journal,
    lock_for_writing,
    remove_history_indexes,
    segment_number,
    segment_path,
    segments,
    unwritable,
)
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.identity import new_id
from dispatcher.journal.recovery import Recovered, repair
from dispatcher.journal.turns import ReentrantAppendError
from dispatcher.util.descriptors import DescriptorReserve
from dispatcher.util.files import Permissions, make_folder, sync_folder
from dispatcher.util.foreign import tell
from dispatcher.util.forks import OfParent, let_go_in_children
from dispatcher.util.threads import is_owned

log: logging.Logger = logging.getLogger(__name__)


class SegmentLog:
    """Appends frames to the journal in `path`, as durable as `config` asks.

    After the first frame that cannot be written, nothing is appended. `failing` turns the disk's error into `failure`
    and calls `on_failure` once with it, on the thread that met the error.

    In a forked child everything but the counts raises ForkedProcessError; no descriptor is left there.

    Raises:
        JournalError: the folder already holds a journal, has another writer, or cannot be written.
        JournalLossError: accepted events are lost, and `config.on_loss` is `refuse`.
    """

    def __init__(self, path: Path, config: JournalConfig, on_failure: Callable[[JournalError], None]) -> None:
        self.path = path  # read only
        self.config = config  # read only
        self._on_failure = on_failure  # read only
        self._segment_bytes, self._segment_age_s = config.segment_bytes, config.segment_age_s  # read only
        self._syncs = config.durability != "none"
        self._looks = config.durability == "sync"  # each accepted frame waits for the disk, so a look costs little
        self._permissions = Permissions[config.permissions]  # read only
        self._sync_lock = threading.RLock()  # before _file_lock; both are replaced in a forked child
        self._file_lock = threading.RLock()  # leaf lock
        self.changed: threading.Condition = threading.Condition(self._file_lock)
        """Notified when the log has ended. Its lock is `_file_lock`."""
        self.failure: JournalError | None = None  # written under _file_lock
        self.is_closed: bool = False  # nothing is appended after it is set; written under _file_lock
        self.is_dropped: bool = False  # see `drop`; written under _file_lock
        self.frames: int = 0  # appended by this writer; written under _file_lock
        self._closed_bytes = 0  # written under both locks
        self.segments_closed: int = 0  # written under both locks
        self._synced_frames = 0  # how many of `frames` are on the disk; written under _sync_lock
        self.syncs: int = 0  # written under _sync_lock
        # Segment number by accepted seq, of events accepted but not settled, oldest first; guarded by _file_lock.
        self._outstanding: dict[int, int] = {}
        # By machine, the first segment that its snapshots need. Any thread stores, a holder of _sync_lock reads.
        self.keep_from: dict[str, int] = {}
        let_go_in_children(self)
        try:
            make_folder(path, self._permissions)
            check_no_other_files(path)
            # Released by the thread that closes the journal.
            self._lock = lock_for_writing(path, self._permissions.file_mode)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self._reserve = DescriptorReserve()  # for later segments and manifests: only those are opened while it runs
        try:
            self.recovered: Recovered = self._take_over()  # read only
            self._first = self.recovered.first_segment  # written under _sync_lock
            # Replaced under both locks; its methods, except `sync`, are called under _file_lock.
            self._segment = self._new_segment(self.recovered.next_segment, self.recovered.summary)
            self._write_manifest(closed=False)
            with contextlib.suppress(OSError):  # readers ignore them
                remove_history_indexes(path)
        except OSError as error:
            self.release()
            raise unwritable(self.path, error) from error
        except BaseException:
            self.release()
            raise

    def _take_over(self) -> Recovered:
        if holds_partitions(self.path):
            raise JournalError(
                f"{self.path}: holds the journal of a MultiDispatcher, which has a PartitionedJournal. Choose another "
                "folder."
            )
        if not holds_journal(self.path):
            # Before the first segment: a crash in between must not leave a segment without a manifest.
            recovered = Recovered(journal_id=new_id())
            manifest = Manifest(1, 0, closed=True, journal=recovered.journal_id)
            manifest.write(self.path, sync=self._syncs, mode=self._permissions.file_mode)
            return recovered
        if not self.config.write_ahead:
            raise JournalError(
                f"{self.path}: holds a journal already; choose a new or an empty folder (with write_ahead, a start "
                "continues the journal that it finds)"
            )
        recovered = self._repair()
        for line in recovered.done:
            tell(log, logging.WARNING, "%s: %s", self.path, line)
        for loss in recovered.losses:
            tell(log, logging.ERROR, "%s: %s. The journal goes on without them, as on_loss says", self.path, loss)
        self._outstanding = {accepted.seq: accepted.segment for accepted in recovered.accepted}
        return recovered

    def _repair(self) -> Recovered:
        try:
            return repair(self.path, accepts_losses=self.config.on_loss == "start")
        except JournalLossError as error:
            tell(log, logging.ERROR, "%s", error)
            raise

    @property
    def bytes_written(self) -> int:
        return self._closed_bytes + (0 if self.is_closed else self._segment.size)

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    def age_from_s(self) -> float:
        """The monotonic time since which the open segment has had frames; now, if it is empty."""
        segment = self._segment
        return time.monotonic() if segment.is_empty else segment.opened_s

    # -- appending -------------------------------------------------------------------------------------------------

    def next_seq(self) -> int:
        """The seq of the next event. Raises JournalError: the journal is closed, or has failed."""
        with self._file_lock:
            self._check_open()
            return self._segment.next_seq

    @property
    def next_accepted(self) -> int:
        """The accepted seq of the next event. No other thread may append."""
        return self._segment.next_accepted

    @property
    def segment(self) -> int:
        """The number of the open segment. No other thread may append."""
        return self._segment.number

    def append_rows(self, rows: EncodedRows) -> None:
        """Raises JournalError, OSError."""
        with self._file_lock:
            self._check_open()
            self._segment.append_rows(rows)
            for seq in rows.settled:
                self._outstanding.pop(seq, None)
            self.frames += 1

    def append_accepted(self, lines: Sequence[bytes]) -> int:
        """Append accepted events as one frame; returns the accepted seq of the first.

        Raises:
            ReentrantAppendError: the call has interrupted its own thread's use of the file. JournalError, OSError.
        """
        if is_owned(self._file_lock):
            raise ReentrantAppendError(f"{self.path}: the post interrupted its own thread's use of the journal")
        count = len(lines)
        payload = lines[0] if count == 1 else b"\n".join(lines)
        with self._file_lock:
            if self.is_closed:
                self._check_open()
            segment = self._segment
            first = segment.next_accepted
            segment.append_accepted(payload, count, time.time_ns(), looks=self._looks)
            if count == 1:
                self._outstanding[first] = segment.number
            else:
                self._outstanding.update(dict.fromkeys(range(first, first + count), segment.number))
            self.frames += 1
            return first

    def position(self) -> tuple[int, int, int]:
        """The number of the open segment, its size, and the seq of the next event."""
        with self._file_lock:
            return self._segment.number, self._segment.size, self._segment.next_seq

    def append_snapshot(self, payload: bytes) -> None:
        """Append a snapshot; it is on the disk on return, unless durability is `none`. Raises JournalError, OSError."""
        if self._syncs:
            self.commit()  # a power failure must not leave a snapshot without the rows of which it was made
        with self._file_lock:
            self._check_open()
            self._segment.append_snapshot(payload)
            self.frames += 1
        if self._syncs:
            self.commit()

    def is_used_by_caller(self) -> bool:
        """This thread holds a lock of the log: the call comes from a signal handler or a `__del__`."""
        return is_owned(self._sync_lock) or is_owned(self._file_lock)

    def commit(self) -> None:
        """Sync all frames appended so far, unless another thread's fsync has covered them meanwhile.

        Raises JournalError, OSError.
        """
        wanted = self.frames
        with self._sync_lock:
            if self._synced_frames >= wanted:
                return
            with self._file_lock:
                self._check_not_failed()
                if self.is_closed:
                    return  # `close` has synced the segment
                frames = self.frames
            # Only a failure can close the file meanwhile: every other path takes _sync_lock first.
            self._segment.sync()
            self._check_not_failed()
            self._synced_frames = max(frames, self._synced_frames)  # a nested commit may have synced more
            self.syncs += 1

    # -- segments --------------------------------------------------------------------------------------------------

    def is_large(self) -> bool:
        """The open segment is large enough to be closed."""
        return self._segment.size >= self._segment_bytes

    def is_due(self) -> bool:
        """The open segment is large or old enough to be closed."""
        segment = self._segment
        return self.is_large() or (time.monotonic() - segment.opened_s >= self._segment_age_s and not segment.is_empty)

    def roll(self, *, if_due: bool = False) -> None:
        """Close the segment and begin the next one, unless it is empty, or this thread is about to sync or close it.

        `if_due`: leave it open unless it is due. Another thread may have rolled since the caller looked.
        """
        if is_owned(self._sync_lock):
            return
        with self.failing(), self._sync_lock:
            with self._file_lock:
                if self.is_closed or self._segment.is_empty or (if_due and not self.is_due()):
                    return
                self._close_segment()
                number, summary = self._segment.number + 1, self._segment.summary
                self._segment = self._reserve.run(lambda: self._new_segment(number, summary))
                self._synced_frames = self.frames
            self._reserve.run(self._retain)
            self._write_manifest(closed=False)

    def close(self) -> None:
        """Close the segment and the journal; `release` gives up the lock. Raises OSError."""
        with self._sync_lock:
            with self._file_lock:
                self.is_closed = True
                self.changed.notify_all()
                if self._segment.is_empty:  # `_close_segment` removes it; the manifest must be final before
                    self._write_manifest(closed=True)
                self._close_segment()
            self._reserve.run(self._retain)
            self._write_manifest(closed=True)

    def release(self) -> None:
        """Let other processes write the journal, and give up the descriptors. Repeating it does nothing."""
        self._lock.release()
        self._reserve.close()

    def drop(self) -> None:
        """The writer was dropped without a close: end the log as a crash would, and release it.

        The garbage collector may call this on a thread that uses the log. Then that thread goes on, and the journal's
        own thread, which sees `is_dropped`, calls this again.
        """
        if self.is_used_by_caller():
            with self._file_lock:
                self.is_dropped = True
                self.changed.notify_all()
            return
        with self._sync_lock, self._file_lock:
            self.is_dropped = True
            if not self.is_closed:
                self.failure = JournalError(f"{self.path}: the journal's writer was dropped without a close")
                self.is_closed = True
                self._segment.abandon()
                self.changed.notify_all()
            self.release()  # under the locks: two threads may come here

    def after_fork(self) -> None:
        """In a forked child: a thread of the parent may hold the locks, and the files are the parent's to write."""
        nothing: Any = OfParent(lambda: ForkedProcessError(str(self.path), self.path))
        self._sync_lock = self._file_lock = self.changed = nothing

    def _new_segment(self, number: int, before: Summary) -> SegmentFile:
        return SegmentFile(self.path, number, before, self.recovered.journal_id, self._permissions.file_mode)

    def _close_segment(self) -> None:
        """Under both locks."""
        seq, number = next(iter(self._outstanding.items()), (self._segment.next_accepted, self._segment.number + 1))
        if self._segment.close(sync=self._syncs, recover_from=number, outstanding_from=seq) is not None:
            self.segments_closed += 1
            self._closed_bytes += self._segment.size

    def retain(self) -> None:
        """Remove closed segments beyond the configured age or size, but none that recovery or a snapshot needs.

        Raises OSError.
        """
        with self._sync_lock:
            self._reserve.run(self._retain)

    def _retain(self) -> None:
        """Under _sync_lock."""
        if self.config.retention_s is None and self.config.retention_bytes is None:
            return
        with self._file_lock:
            needed = next(iter(self._outstanding.values()), self._segment.number)
        for path in _surplus(self.path, self.config, min((needed, *self.keep_from.copy().values()))):
            # The manifest first: it shows a reader that misses the segment that its removal was intended.
            self._first = segment_number(path) + 1
            self._write_manifest(closed=self.is_closed)
            path.unlink(missing_ok=True)

    def _write_manifest(self, *, closed: bool) -> None:
        """Under _sync_lock, or in the constructor."""
        last = self._segment.number
        if not segment_path(self.path, last).exists():
            last -= 1
        manifest = Manifest(self._first, last, closed, self.recovered.journal_id)
        self._reserve.run(lambda: manifest.write(self.path, sync=self._syncs, mode=self._permissions.file_mode))
        if self._syncs:
            self._reserve.run(lambda: sync_folder(self.path))

    # -- failures --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        """Under _file_lock."""
        self._check_not_failed()
        if self.is_closed:
            raise JournalError(f"{self.path}: the journal is closed")

    def _check_not_failed(self) -> None:
        """Raises JournalError, the same object each time; cleared, because each raise would lengthen its traceback."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    @contextlib.contextmanager
    def failing(self, *, always: bool = False) -> Iterator[None]:
        """Turn the disk's error into the journal's failure; raise it under the policy `stop`, or if `always`."""
        raises = always or self.config.failure_policy == "stop"
        try:
            yield
        except OSError as error:
            self.fail(error)
            if raises:
                raise self.failure or unwritable(self.path, error) from error
        except JournalError:
            if raises:
                raise

    def fail(self, error: OSError) -> None:
        """End the journal because of the disk's error, and report it. Repeating it does nothing."""
        if self.end(error):
            self.report()

    def end(self, error: OSError) -> bool:
        """End the journal because of the disk's error; returns whether it had not failed before. `report` comes next,
        once the caller holds no lock."""
        with self._file_lock:
            if self.failure is not None:
                return False
            self.failure = unwritable(self.path, error)
            self.is_closed = True
            self._segment.abandon()
            self.changed.notify_all()
            return True

    def report(self) -> None:
        """Log the failure and call `on_failure`."""
        assert self.failure is not None
        continues = ""
        if self.config.failure_policy == "continue":
            continues = "; the dispatcher continues without it"
            if self.config.write_ahead:  # an accepted event has to be in the journal
                continues += ", and accepts no more events"
        tell(log, logging.ERROR, "%s What is journaled so far stays%s", self.failure, continues)
        self._on_failure(self.failure)


def _surplus(journal: Path, config: JournalConfig, needed: int) -> Iterator[Path]:
    """The closed segments below number `needed` that exceed the age or the total size, oldest first."""
    sizes: dict[Path, os.stat_result] = {}
    for path in segments(journal):
        with contextlib.suppress(FileNotFoundError):  # removed by another program
            sizes[path] = path.stat()
    total = sum(status.st_size for status in sizes.values())
    for path, status in sizes.items():
        too_old = config.retention_s is not None and time.time() - status.st_mtime > config.retention_s
        too_large = config.retention_bytes is not None and total > config.retention_bytes
        if segment_number(path) >= needed or not (too_old or too_large):
            return
        yield path
        total -= status.st_size
