"""Shutting an event queue down without losing an event.

The handler thread ends when it finds the queue empty, under the lock, *after* it has set STOPPED. It sees an append
made before that look; a producer that appends after it sees STOPPED. So each event is handled, discarded or refused:
exactly one of the three.
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
    """The shutdown of one queue. Any thread, unless a method says otherwise."""

    def __init__(self, name: str, state: QueueState, room: QueueRoom, is_mailbox_thread: Callable[[], bool]) -> None:
        self._name = name
        self._state = state
        self._room = room
        self._is_mailbox_thread = is_mailbox_thread
        self._lingers = False  # written under the queue's lock, read by any thread without it
        self.has_ended = (
            False  # the handler thread takes no more entries; written under the queue's lock, read without it
        )

    def is_ending(self) -> bool:
        """The handler thread ends once the queue is empty. A lingering one waits, while DRAINING, for its group."""
        phase = self._state.flags.phase
        return phase >= STOPPED or (phase == DRAINING and not self._lingers)

    def shut(self, phase: int, *, lingers: bool = False) -> None:
        """Refuse posts from outside from now on. See `is_ending` for `lingers`."""
        with self._state.lock:
            self._shut(phase, lingers)
        self._room.notify()

    def _shut(self, phase: int, lingers: bool) -> None:
        """Under the queue's lock."""
        flags = self._state.flags
        # Set first: a thread that reads the phase without the lock must not mistake a joint drain for the end.
        self._lingers = lingers
        flags.phase = max(flags.phase, phase)
        self._state.set_gate()
        flags.alert = True

    def end(self) -> None:
        """The handler thread takes no more entries, for whatever reason it ended."""
        self.shut(STOPPED)
        with self._state.lock:
            self.has_ended = True

    @staticmethod
    def end_together(queues: Sequence[QueueShutdown], is_at_rest: Callable[[], bool]) -> bool:
        """End all the queues at one moment, if all are empty and no handler runs; returns whether they ended.

        If they ended one by one, a handler of one queue could still post to another that has ended.
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
        """After STOPPED: the next of `entries`, an iterator over the queue; None if the queue stays empty.

        Takes the lock, as `take_back` does, so that each entry goes to exactly one of the two. Handler thread.
        """
        with self._state.lock:
            if self._state.entries and not self.has_ended:
                return next(entries)
            self.has_ended = True
            return None

    def take_back(self, entry: Any) -> bool:
        """Undo an append to a queue that was shut; returns whether the entry was removed and the post is refused.

        After STOPPED, no thread may be left to take the entry. Only atomic steps on the queue's ends, because the
        handler thread of an aborted stop may still take from the left.
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
                # The entry's event came with a later, accepted post: discard it and accept this post. Or it
                # is in the write-ahead log, which may be closed: the next start redelivers it, so it is not refused.
                state.drop(entry, "stop")
                return False
            if found:
                state.forget(entry)
                state.rejected["stopped"] += 1
            return found

    def discard(self) -> None:
        """Empty the queue, and count and log its events. For a stop that does not wait for the handlers."""
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
        """In a child process: make a new lock, since a thread of the parent may have held it; accept nothing."""
        self._state.lock = threading.Lock()
        self._shut(FORKED, self._lingers)


def _kind(event: Any) -> str:
    """The name of the event's type, even if that is not an Enum member."""
    event_type = getattr(event, "type", event)
    return f"{type(event_type).__name__}.{getattr(event_type, 'name', event_type)}"
