"""The queue between producers on any thread and one handler thread, and how it is shut.

Posting is an append to a deque, which is atomic in CPython, and then a look at one flag (`_alert`). Who finds it set
looks closer: wakes the handler thread, or, if that has stopped meanwhile, takes back what was appended. To look first
and append then would strand an event between a stop and a post (invariant 2).

    RUNNING -> DRAINING (posts from outside are refused, those of handlers accepted) -> STOPPED, never back

The handler thread ends when it finds the queue empty under the lock *after* it has set STOPPED: an append before that
is seen there, an append after it sees STOPPED. So every event is handled, discarded or refused, and only one of these.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from dispatcher.config import DispatcherConfig
from dispatcher.mailbox.processor import Suspension
from dispatcher.mailbox.task_mailbox import TaskMailbox

RUNNING: Final = 0  # plain ints: comparing members of an Enum's int flavour runs Python code on the hot path
DRAINING: Final = 1
STOPPED: Final = 2


class StampedEvent(NamedTuple):
    """What is in the queue of a dispatcher that measures times."""

    event: Any
    enqueued_ns: int
    """Of `perf_counter_ns`."""

    @property
    def type(self) -> Any:
        return self.event.type


class EventQueue:
    """Events on their way to the thread that owns `mailbox`. Posts from that thread are never refused while it runs.

    `post(event) -> bool` is for any thread: True if the event was accepted, False if it was refused, which `rejected`
    counts by reason (full, timeout, draining, stopped).
    """

    def __init__(self, mailbox: TaskMailbox, config: DispatcherConfig, *, stamped: bool) -> None:
        self._mailbox = mailbox
        self._config = config
        self._capacity = config.queue_capacity
        self._stamped = stamped
        self.entries: deque[Any] = deque()  # any thread appends; the handler thread takes from the left
        self._lock = threading.Lock()  # leaf lock
        self._room = threading.Condition(self._lock)
        self.waiting_producers = 0  # guarded by _lock; read without it by the handler thread after a batch
        self.phase: int = RUNNING  # guarded by _lock, read without it; never goes back
        self._gate = self._capacity is not None  # look before the append: bounded, or not RUNNING; set under _lock
        self._alert = False  # look after the append: the handler thread waits, or not RUNNING; set under _lock
        self._suspension: Suspension | None = None  # guarded by _lock; there while the handler thread waits
        self.rejected: defaultdict[str, int] = defaultdict(int)  # by reason; guarded by _lock
        self.discarded = 0  # guarded by _lock
        self._ended = False  # guarded by _lock: the handler thread takes nothing any more
        self.post = self._make_post()

    @property
    def capacity(self) -> int | None:
        return self._capacity

    # -- producers: any thread ----------------------------------------------------------------------------------

    def _make_post(self) -> Callable[[Any], bool]:
        append, after_append, post_gated = self.entries.append, self._after_append, self._post_gated

        def post(event: Any) -> bool:
            if self._gate:
                return post_gated(event)
            append(event)
            if self._alert:
                return after_append(event)
            return True

        def post_stamped(event: Any) -> bool:
            entry = StampedEvent(event, perf_counter_ns())
            if self._gate:
                return post_gated(entry)
            append(entry)
            if self._alert:
                return after_append(entry)
            return True

        return post_stamped if self._stamped else post

    def _post_gated(self, entry: Any) -> bool:
        """Post to a queue that is bounded, or does not run any more."""
        if self._mailbox.is_mailbox_thread():
            # Its own handler is never made to wait or refused: only it could make room (invariants 8 and 9).
            if self._ended:
                return self._reject("stopped")
            self.entries.append(entry)
            return True
        if self.phase != RUNNING:
            return self._reject("draining" if self.phase == DRAINING else "stopped")
        with self._lock:
            if not self._has_room():
                return False
            self.entries.append(entry)
        return self._after_append(entry) if self._alert else True

    def _has_room(self) -> bool:
        """Under _lock: wait for room as the policy says; False, counted, if the post is to be refused."""
        capacity = self._capacity
        if capacity is None or len(self.entries) < capacity:
            return True
        if self._config.queue_full_policy == "reject":
            self.rejected["full"] += 1
            return False
        self.waiting_producers += 1  # before the look: who makes room after it sees us waiting
        try:
            in_time = self._room.wait_for(
                lambda: len(self.entries) < capacity or self.phase != RUNNING, self._config.queue_full_timeout_s
            )
        finally:
            self.waiting_producers -= 1
        if self.phase != RUNNING:
            self.rejected["draining" if self.phase == DRAINING else "stopped"] += 1
            return False
        if not in_time:
            self.rejected["timeout"] += 1
        return in_time

    def _after_append(self, entry: Any) -> bool:
        """The entry is in the queue, and the handler thread waits or stops: wake it, or take the entry back."""
        if self.phase == STOPPED and not self._mailbox.is_mailbox_thread():
            return not self._take_back(entry)
        self.wake()
        return True

    def _take_back(self, entry: Any) -> bool:
        """Remove the entry, counted as refused, unless somebody else has; says whether that was done.

        Only atomic steps on the queue's ends: the handler thread of an aborted stop may still take from the left.
        """
        with self._lock:
            others, found = [], False
            with contextlib.suppress(IndexError):
                while not found:
                    last = self.entries.pop()
                    found = last is entry
                    if not found:
                        others.append(last)
            self.entries.extend(reversed(others))
            if found:
                self.rejected["stopped"] += 1
            return found

    def _reject(self, reason: str) -> bool:
        with self._lock:
            self.rejected[reason] += 1
        return False

    def wake(self) -> None:
        """Resume the handler thread if it waits. Any thread; takes one lock."""
        with self._lock:
            suspension, self._suspension = self._suspension, None
            self._alert = self.phase != RUNNING
        if suspension is not None:
            suspension.resume()

    # -- the handler thread -------------------------------------------------------------------------------------

    def wait_with(self, suspension: Suspension) -> None:
        """The handler thread has nothing to do: `suspension` is resumed by the next post."""
        with self._lock:
            self._suspension = suspension
            self._alert = True
        # Only now look again: who appended before saw no alert; who appends from here on wakes us.
        if self.entries or self.phase != RUNNING:
            self.wake()

    def room_was_made(self) -> None:
        with self._lock:
            self._room.notify_all()

    def take_last(self) -> Any | None:
        """After STOPPED: the next entry, or None once and for all if there is none.

        Under the lock, as is the taking back, so that each entry goes one way.
        """
        with self._lock:
            if self.entries:
                return self.entries.popleft()
            self._ended = True
            return None

    def end(self) -> None:
        """The handler thread takes nothing any more, however it ended."""
        self.shut(drain=False)
        with self._lock:
            self._ended = True

    # -- stopping: any thread -----------------------------------------------------------------------------------

    def shut(self, *, drain: bool) -> None:
        """Refuse posts from outside from now on; DRAINING or STOPPED."""
        with self._lock:
            self.phase = max(self.phase, DRAINING if drain else STOPPED)
            self._gate = self._alert = True
            self._room.notify_all()

    def discard(self) -> list[Any]:
        """Take out, count and return what is queued. For a stop that does not, or no longer, wait for the handlers."""
        left: list[Any] = []
        with self._lock:
            with contextlib.suppress(IndexError):
                while True:
                    left.append(self.entries.popleft())
            self.discarded += len(left)
        return left
