"""The keys of scheduled posts. A key holds one schedule, the newest, over restarts.

In write-ahead mode each keyed schedule has a line in the log, and the line of a newer one names the line that it
replaces. So a key is free again after a cancel, or once its event has fired, and not because a run ends.

A newer schedule first claims the older one, which then cannot fire, and gives it back if its own line cannot be
written. Of two that are scheduled at one moment, the one with the later line holds the key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dispatcher.queue.due import checked_key
from dispatcher.queue.entry import RecoveredFiring
from dispatcher.queue.scheduled import Scheduled


class Keys:
    """The keys of one dispatcher, or of all partitions of a MultiDispatcher. Any thread.

    Of its locks, a schedule's comes before this one's.
    """

    def __init__(self, read: Iterable[Callable[[], None]]) -> None:
        """`read`: the functions that let what an earlier run has left `hold` its keys, one for each log."""
        self._reading = threading.RLock()  # held while the logs are read; before all others
        self._lock = threading.RLock()  # leaf lock; both are replaced in a forked child
        self._unread = list(read)  # those that were not called yet; guarded by _reading
        self._held: dict[str, Scheduled] = {}  # guarded by _lock
        self._left_over: list[Scheduled] = []  # of earlier runs, also some that this one has gone on with; by _lock
        # By key, of an earlier run; complete before the start.
        self.firings: dict[str, RecoveredFiring] = {}  # the last one; the thread that starts the dispatcher writes
        self.fired_ns: dict[str, int] = {}  # the time of the last one; guarded by _reading

    def load(self) -> None:
        """Read what earlier runs have left, unless that is done.

        Raises:
            JournalError: the lines may still move to other partitions, or cannot be read.
        """
        if not self._unread:
            return
        with self._reading:
            while self._unread:
                self._unread[0]()
                del self._unread[0]

    def get(self, key: str) -> Scheduled | None:
        """What holds the key now.

        Raises:
            TypeError: the key is no str. JournalError: as `load`.
        """
        if not checked_key(key):
            return None
        self.load()
        return self._held.get(key)

    def hold(self, one: Scheduled) -> Scheduled | None:
        """Let it hold its key, unless a newer one does; returns the one of the two that no longer does."""
        with self._lock:
            other = self._held.get(one.key)
            if other is not None and other.is_newer_than(one):
                return one
            self._held[one.key] = one
            if one.is_left_over:
                self._left_over.append(one)
            return other

    def drop(self, one: Scheduled) -> None:
        """It holds its key no longer. Repeating it is harmless."""
        if one.key:
            with self._lock:
                if self._held.get(one.key) is one:
                    del self._held[one.key]

    def all(self, prefix: str = "") -> dict[str, Scheduled]:
        """Those that hold keys with the prefix."""
        self.load()
        with self._lock:
            return {key: one for key, one in self._held.items() if key.startswith(prefix)}

    def left_over(self) -> list[Scheduled]:
        """What earlier runs have left, if that is read already, and this run has not gone on with."""
        with self._lock:
            self._left_over = [one for one in self._left_over if one.is_left_over and self._held.get(one.key) is one]
            return self._left_over.copy()

    def after_fork(self) -> None:
        """In a child process."""
        self._reading, self._lock = threading.RLock(), threading.RLock()
        self._held, self._left_over = {}, []
