"""The bound of an event queue: permits, and what happens to a producer that finds none.

A producer takes a permit first, and the handler thread gives one back for each entry that it takes. Both are atomic
steps on a list, so the bound is strict without a lock. Only a producer that has to wait, and the thread that wakes it,
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
    """What the handler thread reads when it gives a permit back."""

    __slots__ = ("closer",)

    def __init__(self) -> None:
        self.closer = False  # a producer waits, or a handler overdrew; written under the queue's lock


class QueueRoom:
    """Permits for the entries of one queue. Any thread may take one; the handler thread gives back.

    `is_inside()`: the caller is a handler, which is never refused or made to wait (invariant 8). `on_size(size,
    remaining)` is called with the size of a full queue.
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
        self._lock = state.lock  # the queue's; in a forked child, where no post comes this far, still the parent's
        self._made = threading.Condition(self._lock)
        self.permits: list[None] = [None] * (self.capacity or 0)  # any thread pops; the handler thread appends
        self.flags = RoomFlags()  # see there
        self.waiting_producers = 0  # guarded by the queue's lock
        self._overdraft = 0  # guarded by the queue's lock: entries that hold no permit

    def remaining(self) -> int | None:
        """How many more events fit; None: no bound. Any thread."""
        return None if self.capacity is None else len(self.permits)

    def take(self, wait: bool = True) -> bool:
        """Take a permit, if the queue is bounded. Without one left, do as the policy says; False: the post is refused.

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
        """As `take`, where no permit was left."""
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
        """Do without a permit."""
        with self._lock:
            self._overdraft += 1
            self.flags.closer = True

    def undo(self) -> None:
        """The post that took a permit appends no entry. Any thread."""
        if self.capacity is not None:
            self.give_back()

    def give_back(self) -> None:
        """The same as an append to `permits` and then a look at `flags.closer`, but under the lock."""
        with self._lock:
            if self._overdraft:
                self._overdraft -= 1
            else:
                self.permits.append(None)
            self.flags.closer = self._overdraft > 0
            self._made.notify_all()

    def tell(self) -> None:
        """A permit was given back while a producer began to wait, or the queue was shut. Any thread."""
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
        # Before the look: the thread that gives a permit back and then looks sees this producer wait.
        self.flags.closer = True
        return "permit" if self.try_take() else ""

    def _drop_oldest(self) -> None:
        """Get a permit, or the place of the oldest event."""
        while True:
            with self._state.lock, contextlib.suppress(IndexError):
                if self.try_take():
                    return
                if self._state.flags.phase != RUNNING:  # no thread may be left to return a permit
                    return
                self._state.drop(self._state.entries.popleft(), "drop_oldest")
                return
            # The handler thread has taken the last event and is about to give back its permit.
            sleep(0)
