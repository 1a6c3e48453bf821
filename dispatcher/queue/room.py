"""The bound of an event queue: permits, and the policy for a producer that finds none.

A producer takes a permit before it appends, and the handler thread returns one for each entry that it takes. Both are
atomic steps on a list, so the bound is strict without a lock. Only a producer that waits, and the thread that wakes it,
take the lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from time import sleep
from typing import Final, Literal

from dispatcher.config import DispatcherConfig
from dispatcher.errors import QueueFullError
from dispatcher.queue.state import RUNNING, QueueState


class RoomFlags:
    """The flag that the handler thread reads when it returns a permit."""

    __slots__ = ("closer",)

    def __init__(self) -> None:
        self.closer = False  # a producer waits, or an entry holds no permit; written under the queue's lock


class QueueRoom:
    """Permits for the entries of one queue. Any thread may take one; the handler thread returns them.

    `is_inside()`: the caller is a handler, which never waits and is never refused (invariant 8). `on_size(size,
    remaining)` is called when the queue is full.
    """

    def __init__(
        self,
        name: str,
        config: DispatcherConfig,
        state: QueueState,
        is_inside: Callable[[], bool],
        on_size: Callable[[int, int | None], None],
    ) -> None:
        self._name = name
        self.capacity: Final = config.queue_capacity
        self._full_policy: Final = config.queue_full_policy
        self._timeout_s: Final = config.queue_full_timeout_s
        self._state = state
        self._is_inside = is_inside
        self.on_size = on_size
        self._lock = state.lock  # the queue's; still the parent's in a forked child, where no post gets this far
        self._made = threading.Condition(self._lock)
        self.permits: list[None] = [None] * (self.capacity or 0)  # any thread pops; the handler thread appends
        self.flags = RoomFlags()  # its field says who may touch it
        self.waiting_producers = 0  # guarded by the queue's lock
        self._overdraft = 0  # guarded by the queue's lock: entries that hold no permit

    def remaining(self) -> int | None:
        """The number of permits left; None: no bound. Any thread."""
        return None if self.capacity is None else len(self.permits)

    def take(self, wait: bool = True) -> bool:
        """Take a permit, if the queue is bounded. If none is left, apply the policy; False: the post is refused.

        Raises:
            QueueFullError: the policy is to block, and the caller does not `wait`.
        """
        return self.capacity is None or self.try_take() or self.make(wait)

    def try_take(self) -> bool:
        """Take a permit if there is one. Never blocks."""
        try:
            self.permits.pop()
        except IndexError:
            return False
        return True

    def make(self, wait: bool) -> bool:
        """As `take`, when no permit is left."""
        if self._is_inside():
            self.overdraw()
            return True
        self.on_size(len(self._state.entries), 0)
        if self._full_policy == "reject":
            return self._state.reject("full")
        if self._full_policy == "drop_oldest":
            self._drop_oldest()
            return True
        if not wait:
            raise QueueFullError(self._name, self.capacity or 0)
        answer = self._wait_and_take()
        if answer == "permit":
            return True
        return self._state.reject("timeout") if answer == "timeout" else self._state.reject_shut()

    def overdraw(self) -> None:
        """Count an entry that holds no permit."""
        with self._lock:
            self._overdraft += 1
            self.flags.closer = True

    def undo(self) -> None:
        """Return the permit of a post that appends no entry. Any thread."""
        if self.capacity is not None:
            self.give_back()

    def give_back(self) -> None:
        """Return a permit under the lock: as an append to `permits` and a look at `flags.closer`."""
        with self._lock:
            if self._overdraft:
                self._overdraft -= 1
            else:
                self.permits.append(None)
            self.flags.closer = self._overdraft > 0
            self._made.notify_all()

    def notify(self) -> None:
        """Wake the waiting producers: a permit was returned, or the queue was shut. Any thread."""
        with self._lock:
            self.flags.closer = self._overdraft > 0
            self._made.notify_all()

    def _wait_and_take(self) -> Literal["permit", "timeout", "shut"]:
        with self._lock:
            self.waiting_producers += 1
            try:
                return self._made.wait_for(self._try_take_waiting, self._timeout_s) or "timeout"
            finally:
                self.waiting_producers -= 1

    def _try_take_waiting(self) -> Literal["permit", "shut", ""]:
        """Under the queue's lock."""
        if self._state.flags.phase != RUNNING:
            return "shut"
        # Set before the look: a thread that returns a permit after it sees the flag, and wakes this producer.
        self.flags.closer = True
        return "permit" if self.try_take() else ""

    def _drop_oldest(self) -> None:
        """Take a permit, or discard the oldest event and take over its permit."""
        while True:
            with self._state.lock, contextlib.suppress(IndexError):
                if self.try_take():
                    return
                if self._state.flags.phase != RUNNING:  # no thread may be left to return a permit
                    return
                self._state.drop(self._state.entries.popleft(), "drop_oldest")
                return
            # The handler thread has taken the last event and is about to return its permit.
            sleep(0)
