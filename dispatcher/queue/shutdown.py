"""Shutting an event queue down without losing an event.

The handler thread ends when it finds the queue empty, under the lock, *after* it has set STOPPED: see "Post and end" in
`inbox`. So each event is handled, discarded or refused: exactly one of the three.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from dispatcher.queue.contents import LEFT_SAMPLE, SAMPLE, count_types
from dispatcher.queue.entry import HELD, RETRYING, DropReason, Entry
from dispatcher.queue.flags import DRAINING, FORKED, LOOK, STOPPED, PostFlags
from dispatcher.queue.room import QueueRoom
from dispatcher.queue.write_ahead import WriteAhead
from dispatcher.util.figures import counted
from dispatcher.util.foreign import kind_of, kinds_of, tell
from dispatcher.util.threads import try_to_start

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

NOTHING_LEFT: Final = object()


class ShutdownQueue(Protocol):
    """What the shutdown needs of the inbox, which says what these are."""

    name: str
    entries: deque[Any]
    side: deque[Entry]
    flags: PostFlags
    retrying: dict[Entry, None]
    room: QueueRoom
    write_ahead: WriteAhead

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def has_events(self) -> bool: ...

    def take_all(self) -> tuple[list[Any], list[Entry]]: ...

    def reject(self, reason: str) -> bool: ...

    def count_dropped(self, reason: DropReason, number: int) -> None: ...


class QueueShutdown:
    """The shutdown of one queue. Any thread, unless a method says otherwise."""

    def __init__(
        self, inbox: ShutdownQueue, is_mailbox_thread: Callable[[], bool], is_inside: Callable[[], bool]
    ) -> None:
        self._inbox = inbox
        self._is_mailbox_thread = is_mailbox_thread
        self._is_inside = is_inside
        # What the log's lines about discarded events end with.
        self._kept = "; the next start handles those that the journal has" if inbox.write_ahead.is_on else ""
        # The events that are on their way into the log and then into the queue; changed by the log, any thread reads.
        self.under_way: Collection[object] = inbox.write_ahead.under_way
        # Events that are retrying, and due after the end of the drain. The schedule appends, the handler thread takes.
        self.late: deque[Entry] = deque()
        # Answers the asks of events that a stop has discarded; set before the start.
        self.discard_asks: Callable[[list[Any]], None] = lambda _: None
        self._lingers = False  # written under the inbox's lock, read by any thread without it
        # The handler thread takes no more events; written under that lock, read by any thread without it.
        self.has_ended: bool = False

    def is_ending(self) -> bool:
        """The handler thread ends once the queue is empty. A lingering one waits, while DRAINING, for its group, and
        each one for events in flight."""
        inbox = self._inbox
        phase = inbox.flags.phase
        return phase >= STOPPED or (
            phase == DRAINING and not self._lingers and not self.under_way and not inbox.retrying and not inbox.side
        )

    def will_take(self) -> bool:
        """Whether the handler thread will look at the queue again, for an event that the caller posts after STOPPED."""
        return self._is_mailbox_thread() or (not self.has_ended and self._is_inside())

    def shut(self, phase: int, *, lingers: bool = False) -> None:
        """Refuse posts from outside from now on. See `is_ending` for `lingers`."""
        with self._inbox.lock:
            self._shut(phase, lingers)
        self._inbox.room.wake_all()

    def _shut(self, phase: int, lingers: bool) -> None:
        """Under the lock."""
        flags = self._inbox.flags
        # Set first: a thread that reads the phase without the lock must not mistake a joint drain for the end.
        self._lingers = lingers
        if flags.phase < phase:  # no call in between: a signal handler cannot shut the queue meanwhile
            flags.phase = phase
        flags.gate = LOOK
        flags.alert = True  # E1; from now on it stays up

    def end(self) -> None:
        """The handler thread takes no more events, for whatever reason it ended."""
        self.shut(STOPPED)
        with self._inbox.lock:
            self.has_ended = True

    @staticmethod
    def end_together(queues: Sequence[QueueShutdown], is_at_rest: Callable[[], bool]) -> bool:
        """End all the queues at one moment, if all are empty and no handler runs; returns whether they ended.

        If they ended one by one, a handler of one queue could still post to another that has ended.
        """
        with contextlib.ExitStack() as locks:
            for queue in queues:
                locks.enter_context(queue._inbox.lock)
            # `under_way` first: an event leaves it only once it is queued.
            if any(queue.under_way or queue._inbox.has_events() for queue in queues) or not is_at_rest():
                return False
            for queue in queues:
                queue._shut(STOPPED, lingers=False)
                queue.has_ended = True
            return True

    def take_last(self, *, ends: bool) -> Any:
        """After STOPPED: the next place of the queue; NOTHING_LEFT if it is empty, and if this `ends` it, stays so.

        Takes the lock, as `take_back` does, so that each event goes to exactly one of the two. Handler thread.
        """
        inbox = self._inbox
        with inbox.lock:
            if not self.has_ended:
                with contextlib.suppress(IndexError):  # it is empty
                    return inbox.entries.popleft()  # E2
            if ends and not inbox.side:
                self.has_ended = True
            return NOTHING_LEFT

    def take_back(self, place: Any) -> bool:
        """Undo a plain post to a queue that was shut; returns whether its event was removed and the post is refused."""
        inbox = self._inbox
        with inbox.lock:
            if inbox.flags.phase < STOPPED or self.will_take() or not self._remove(place):
                return False
            inbox.reject("stopped")
            return True

    def _remove(self, place: Any) -> bool:
        """Under the lock: remove a place from the right of the queue; returns whether it was still there."""
        entries = self._inbox.entries
        others: deque[Any] = deque()  # those behind it
        try:
            while True:
                other = entries.pop()
                if other is place:
                    return True
                others.appendleft(other)
        except IndexError:
            return False
        finally:
            entries.extend(others)

    # -- discarding ----------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Empty the queue, and count and log its events. For a stop that does not wait for the handlers.

        In the write-ahead log their events stay: the next start redelivers them.
        """
        inbox = self._inbox
        with inbox.lock:
            bare, entries = inbox.take_all()
            if bare:
                inbox.count_dropped("stop", len(bare))
        left = [*bare, *entries]
        numbers, are_sampled = count_types(left)
        asks: list[Any] = []
        for entry in entries:
            if entry.ask is not None:
                asks.append(entry.ask)
                entry.ask = None
            entry.end("stop")
        self.discard_asks(asks)
        if left:
            kinds = ", ".join(f"{count} {kind_of(type)}" for type, count in sorted(numbers, key=lambda it: -it[1]))
            about = f"about, by a sample of {LEFT_SAMPLE}: {kinds}" if are_sampled else kinds
            fields = {"dispatcher": inbox.name, "count": len(left)}
            message = "%s: stop discarded %s: %s%s"
            what = counted(len(left), "queued event")
            tell(log, logging.WARNING, message, inbox.name, what, about, self._kept, extra=fields)
        bare.clear()
        entries.clear()
        self._free(left)
        self.discard_retrying()

    def discard_retrying(self) -> None:
        """Count and log the events that wait for their next attempt: none comes. In a write-ahead log they stay."""
        with self._inbox.lock:
            # Those that wait behind others first: the end of one would let them go.
            retrying = sorted(self._inbox.retrying, key=lambda entry: entry.state != HELD)
        self._end_retries(retrying)

    def discard_late(self) -> None:
        """Count and log the events whose next attempt comes too late for the drain. Handler thread.

        An event that others wait for stays: they must not be handled before it.
        """
        late = []
        while self.late:
            entry = self.late.popleft()
            if entry.state == RETRYING and (entry.delivery is None or entry.delivery.behind is None):
                late.append(entry)
        self._end_retries(late)

    def _end_retries(self, entries: list[Entry]) -> None:
        left = [entry for entry in entries if entry.discard("stop")]
        if left:
            contents = kinds_of(entry.event for entry in left)
            message = "%s: stop discarded %s that waited for %s next attempt: %s%s"
            what, whose = counted(len(left), "event"), "its" if len(left) == 1 else "their"
            fields = {"dispatcher": self._inbox.name, "count": len(left)}
            tell(log, logging.WARNING, message, self._inbox.name, what, whose, contents, self._kept, extra=fields)

    def _free(self, left: list[Any]) -> None:
        """Let go of many events on another thread: that takes seconds, which a stop does not have."""
        freeing = threading.Thread(target=_free, args=(left,), name=f"{self._inbox.name}-free", daemon=True)
        if len(left) <= SAMPLE or not try_to_start(freeing):
            _free(left)

    def after_fork(self) -> None:
        """In a child process: accept nothing."""
        self._shut(FORKED, self._lingers)


def _free(entries: list[Any]) -> None:
    while entries:  # other threads run between these steps
        del entries[-10_000:]
