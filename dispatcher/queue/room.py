"""The bound of an event queue: permits, and what happens to who finds none.

Who posts takes a permit first, and the handler thread gives one back for each entry that it takes. Taking and giving
are atomic steps on a list, so the bound is strict without a lock; one is taken only by who has to wait, and to wake it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Literal

from dispatcher.config import DispatcherConfig

Answer = Literal["permit", "timeout", "shut"]


class RoomFlags:
    """What the handler thread looks at when it gives a permit back."""

    __slots__ = ("closer",)

    def __init__(self) -> None:
        self.closer = False  # somebody waits, or overdrew; written under the room's lock


class QueueRoom:
    """Permits for the entries of one queue. Any thread may take one; the handler thread gives back.

    `is_shut` says that nobody is to wait any more. `lock` is the queue's.
    """

    def __init__(self, config: DispatcherConfig, lock: threading.Lock, is_shut: Callable[[], bool]) -> None:
        self.capacity: Final = config.queue_capacity
        self._timeout_s = config.queue_full_timeout_s
        self._is_shut = is_shut
        self._lock = lock
        self._made = threading.Condition(lock)
        self.permits: list[None] = [None] * (self.capacity or 0)
        self.flags = RoomFlags()
        self.waiting_producers = 0  # guarded by _lock
        self._overdraft = 0  # guarded by _lock: entries that hold no permit

    def try_take(self) -> bool:
        """Take a permit if there is one. Any thread; never blocks."""
        try:
            self.permits.pop()
        except IndexError:
            return False
        return True

    def wait_and_take(self) -> Answer:
        """Wait for a permit: "permit" if one was taken, else "timeout" or "shut"."""
        with self._lock:
            self.waiting_producers += 1
            try:
                return self._made.wait_for(self._look, self._timeout_s) or "timeout"
            finally:
                self.waiting_producers -= 1

    def _look(self) -> Literal["permit", "shut", ""]:
        """Under _lock."""
        if self._is_shut():
            return "shut"
        self.flags.closer = True  # before the look: who gives a permit back and then looks sees us wait
        return "permit" if self.try_take() else ""

    def overdraw(self) -> None:
        """Do without a permit. For handlers, which are never made to wait (invariant 8)."""
        with self._lock:
            self._overdraft += 1
            self.flags.closer = True

    def give_back(self) -> None:
        """The same as an append to `permits` and then a look at `flags.closer`, done closely. Handler thread."""
        with self._lock:
            if self._overdraft:
                self._overdraft -= 1
            else:
                self.permits.append(None)
            self.flags.closer = self._overdraft > 0
            self._made.notify_all()

    def tell(self) -> None:
        """A permit was given back while somebody began to wait, or nobody is to wait any more. Any thread."""
        with self._lock:
            self.flags.closer = self._overdraft > 0
            self._made.notify_all()
