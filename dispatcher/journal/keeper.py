"""The journal's own thread: timed work that is due even when no event arrives."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from dispatcher.errors import JournalError
from dispatcher.journal.segment_log import SegmentLog

_LONGEST_WAIT_S: Final = 3600.0
"""A configured age may exceed the longest timeout that a lock accepts."""


class Keeper:
    """Syncs at intervals, closes and removes old segments, and calls `on_flush_due`. Its thread ends with the log."""

    def __init__(self, segment_log: SegmentLog, on_flush_due: Callable[[], None]) -> None:
        self._log = segment_log  # read only, like the next field
        self._on_flush_due = on_flush_due
        self._flush_by_s = math.inf  # monotonic time at which to call on_flush_due; guarded by log.changed
        self._thread: threading.Thread | None = None  # created under log.changed

    def ensure_running(self) -> None:
        """Start the thread unless it runs. Any thread, from the first frame on: until then the process may fork."""
        if self._thread is not None:
            return
        with self._log.changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"journal-{self._log.path.name}", daemon=True)
                self._thread.start()

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
