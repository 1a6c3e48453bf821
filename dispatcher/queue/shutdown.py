"""How an event queue is shut, and where each of its events ends then.

The handler thread ends when it finds the queue empty under the lock *after* it has set STOPPED: an append before that
is seen there, an append after it sees STOPPED. So every event is handled, discarded or refused, and only one of these.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dispatcher.queue.room import QueueRoom
from dispatcher.queue.state import DRAINING, FORKED, STOPPED, QueuedEvent, QueueState, event_of

log = logging.getLogger("dispatcher.async_dispatcher")


class QueueShutdown:
    """The end of one queue. Any thread, except where it says more."""

    def __init__(self, name: str, state: QueueState, room: QueueRoom, is_mailbox_thread: Callable[[], bool]) -> None:
        self._name = name
        self._state = state
        self._room = room
        self._is_mailbox_thread = is_mailbox_thread
        self._lingers = False  # written under the queue's lock, read by any thread without it
        self.has_ended = False  # the handler thread takes no more; written under the queue's lock, read without it

    def is_ending(self) -> bool:
        """The handler thread ends once the queue is empty. One that lingers waits, while DRAINING, for others."""
        phase = self._state.flags.phase
        return phase >= STOPPED or (phase == DRAINING and not self._lingers)

    def shut(self, phase: int, *, lingers: bool = False) -> None:
        """Refuse posts from outside from now on. See `is_ending` for `lingers`."""
        with self._state.lock:
            self._shut(phase, lingers)
        self._room.tell()

    def _shut(self, phase: int, lingers: bool) -> None:
        """Under the queue's lock."""
        flags = self._state.flags
        # First: a thread that reads the phase without the lock must not take a joint drain for an end.
        self._lingers = lingers
        flags.phase = max(flags.phase, phase)
        self._state.set_gate()
        flags.alert = True

    def end(self) -> None:
        """The handler thread takes no more, however it ended."""
        self.shut(STOPPED)
        with self._state.lock:
            self.has_ended = True

    @staticmethod
    def end_together(queues: Sequence[QueueShutdown], is_at_rest: Callable[[], bool]) -> bool:
        """End all the queues at one moment, if all are empty and their handler threads at rest; says whether they were.

        One by one, an event that is still on its way to one of them could post to another that has ended.
        """
        with contextlib.ExitStack() as locks:
            for queue in queues:
                locks.enter_context(queue._state.lock)
            if any(queue._state.entries for queue in queues) or not is_at_rest():
                return False
            for queue in queues:
                queue._shut(STOPPED, lingers=False)
                queue.has_ended = True
            return True

    def take_last(self, entries: Iterator[Any]) -> Any | None:
        """After STOPPED: the next of `entries`, which takes from the queue's left; None if the queue is empty for good.

        Under the lock, as is `take_back`, so that each entry goes one way. Handler thread.
        """
        with self._state.lock:
            if self._state.entries and not self.has_ended:
                return next(entries)
            self.has_ended = True
            return None

    def take_back(self, entry: Any) -> bool:
        """After an append that found the queue shut: whether the post is refused after all, and its entry taken back.

        Once the handler thread may have ended, no thread may be left to take the entry. Only atomic steps on the
        queue's ends: the handler thread of an aborted stop may still take from the left.
        """
        state = self._state
        if state.flags.phase < STOPPED or self._is_mailbox_thread():
            return False
        with state.lock:
            others, found = [], False
            with contextlib.suppress(IndexError):
                while not found:
                    last = state.entries.pop()
                    found = last is entry
                    if not found:
                        others.append(last)
            state.entries.extend(reversed(others))
            if found and type(entry) is QueuedEvent and (entry.is_superseded or entry.accepted_seq > 0):
                # Superseded by an event whose post has been accepted: that event is discarded, and ours was accepted,
                # too. Or in the write-ahead log, which may have ended: the next start handles it, so it is not refused.
                state.drop(entry, "stop")
                return False
            if found:
                state.forget(entry)
                state.rejected["stopped"] += 1
            return found

    def discard(self) -> None:
        """Take out, count and report what is queued. For a stop that does not, or no longer, wait for the handlers."""
        left: list[Any] = []
        with self._state.lock, contextlib.suppress(IndexError):
            while True:
                entry = self._state.entries.popleft()
                self._state.drop(entry, "stop")
                left.append(event_of(entry))
        if left:
            contents = ", ".join(f"{count} {kind}" for kind, count in Counter(map(_kind, left)).most_common())
            log.warning("%s: stop discarded %d queued events: %s", self._name, len(left), contents)

    def after_fork(self) -> None:
        """In a child process: locks that other threads held are held for ever, so take a new one; accept nothing."""
        self._state.lock = threading.Lock()
        self._shut(FORKED, self._lingers)


def _kind(event: Any) -> str:
    """Readable event type, also of things that are no proper events."""
    event_type = getattr(event, "type", event)
    return f"{type(event_type).__name__}.{getattr(event_type, 'name', event_type)}"
