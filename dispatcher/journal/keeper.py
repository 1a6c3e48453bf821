"""The journal's own thread, for what is due even when no event arrives."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Final

from dispatcher.errors import JournalError
from dispatcher.journal.segment_log import SegmentLog
from dispatcher.util.threads import LazyThread

LATE_MS = 2
"""The journal's own thread leaves the handler thread this much longer to write due rows itself; tests change it."""
FLUSH_DELAY_MS: Final = 10
"""The age at which buffered rows are written."""
_LONGEST_LOOK_S: Final = 1.0
"""The longest time between two looks for rows while no rows come."""
_LONGEST_WAIT_S: Final = 60.0
"""A configured age may exceed the longest timeout that a lock accepts. And a garbage collector that drops the writer on
the journal's own thread may notify that thread just before it waits."""


class Keeper:
    """The journal's own thread. It ends with the log.

    It syncs at intervals, closes and removes old segments, and calls `write_late_rows`, which says when to call it
    again. While that finds nothing, the looks become rare, and the handler thread calls `watch` once it has rows again.
    A row that just escapes a look, because its thread is paused between two steps, is found by one of the rare looks.
    """

    def __init__(self, segment_log: SegmentLog, write_late_rows: Callable[[], float | None]) -> None:
        self._log = segment_log  # read only
        self._write_late_rows = write_late_rows  # read only
        self._look_by_s = math.inf  # monotonic time of the next look for rows; guarded by log.changed
        self._is_watching = False  # that is soon; written under log.changed, read without it
        config = segment_log.config
        syncs = config.durability == "interval" or (config.durability == "sync" and config.write_ahead)
        self._interval_s = config.sync_interval_ms / 1000 if syncs else math.inf  # never changes
        self._thread = LazyThread(f"journal-{segment_log.path.name}")
        self._missed_by_s = -math.inf  # monotonic time of the next sync in its place; any thread that syncs

    def ensure_running(self) -> bool:
        """Start the thread unless it runs; False if the system has no thread left, and the next call tries again.

        Any thread, from the first frame on: until then the process may fork.
        """
        return self._thread.ensure(self._run)

    def is_missed(self) -> bool:
        """The thread should sync, and could not be started. Any thread."""
        return self._thread.is_lacking and self._interval_s < math.inf

    def is_sync_missed(self) -> bool:
        """After a frame: whether the caller has to sync, because this thread cannot be started. Any thread."""
        if self._thread.thread is not None or self.ensure_running():  # the attribute saves each frame two calls
            return False
        if not self.is_missed() or time.monotonic() < self._missed_by_s:
            return False
        self._missed_by_s = time.monotonic() + self._interval_s
        return True

    def after_append(self) -> None:
        """Events were appended in write-ahead mode. Any thread, with no lock held."""
        if self.is_sync_missed() and not self._log.is_used_by_caller():
            with contextlib.suppress(JournalError), self._log.failing():  # `failing` has called on_failure
                self._log.commit()
        if self._log.is_large():
            with contextlib.suppress(JournalError):  # on_failure was called; the events are in the log
                self._log.roll(if_due=True)

    def watch(self) -> None:
        """Rows may come from now on: look for them when they are due. Any thread."""
        if self._is_watching or not self.ensure_running():
            return
        with self._log.changed:
            self._is_watching = True
            self._look_by_s = min(self._look_by_s, time.monotonic() + (FLUSH_DELAY_MS + LATE_MS) / 1000)
            self._log.changed.notify_all()

    def _run(self) -> None:
        segment_log, config = self._log, self._log.config
        sync_at_s = time.monotonic() + self._interval_s
        retain_at_s = time.monotonic() + config.segment_age_s
        pause_s = 0.0
        while True:
            with segment_log.changed:
                age_s = segment_log.age_from_s() + config.segment_age_s
                due_s = min(age_s, sync_at_s, retain_at_s, self._look_by_s)
                if not segment_log.is_dropped:
                    segment_log.changed.wait(min(max(0.0, due_s - time.monotonic()), _LONGEST_WAIT_S))
                if segment_log.is_closed or segment_log.is_dropped:
                    break
                now_s = time.monotonic()
                looks = now_s >= self._look_by_s
                if looks:  # before the look: a flush that comes during it asks for another one
                    self._is_watching, self._look_by_s = False, math.inf
            with contextlib.suppress(JournalError), segment_log.failing():  # `failing` has called on_failure
                if looks:
                    pause_s = self._look(pause_s)
                if now_s >= sync_at_s:
                    segment_log.commit()
                    sync_at_s = now_s + self._interval_s
                if segment_log.is_due():
                    segment_log.roll(if_due=True)
                if now_s >= retain_at_s:
                    retain_at_s = now_s + config.segment_age_s
                    segment_log.retain()
        if segment_log.is_dropped:
            segment_log.drop()

    def _look(self, pause_s: float) -> float:
        """Write late rows; returns in how many seconds to look again. `pause_s`: what it returned last."""
        try:
            due_in_s = self._write_late_rows()
        except (JournalError, OSError):
            raise
        except Exception:  # rows that cannot be encoded, which the handler thread meets as well
            due_in_s = None
        longer_s = min(max(2 * pause_s, FLUSH_DELAY_MS / 1000), _LONGEST_LOOK_S)
        pause_s = longer_s if due_in_s is None else due_in_s
        with self._log.changed:
            self._is_watching = self._is_watching or due_in_s is not None
            self._look_by_s = min(self._look_by_s, time.monotonic() + max(pause_s, LATE_MS / 1000))
        return pause_s
