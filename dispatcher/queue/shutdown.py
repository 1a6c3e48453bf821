"""Shutting an event queue down without losing an event.

The handler thread ends when it finds the queue empty, under the lock, *after* it has set STOPPED. It sees an append
made before that look; a producer that appends after it sees STOPPED. So each event is handled, discarded or refused:
exactly one of the three.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import repeat, starmap
from time import sleep
from typing import Any, Final

from dispatcher.queue.coalescing import Coalescing
from dispatcher.queue.contents import LEFT_SAMPLE, SAMPLE, count_types
from dispatcher.queue.entries import DRAINING, FORKED, LOOK, STOPPED, QueuedEvent, QueueState
from dispatcher.queue.room import QueueRoom
from dispatcher.util.foreign import kind_of, kinds_of, tell
from dispatcher.util.threads import try_to_start

log = logging.getLogger("dispatcher.async_dispatcher")

MOST_ANSWERED: Final = 100
"""Asks that a stop answers before it returns. If there are more, another thread lets the stop go on after as many."""
SHORT_S: Final = 0.0001


class QueueShutdown:
    """The shutdown of one queue. Any thread, unless a method says otherwise."""

    def __init__(
        self,
        name: str,
        state: QueueState,
        room: QueueRoom,
        coalescing: Coalescing,
        is_mailbox_thread: Callable[[], bool],
        is_inside: Callable[[], bool],
        *,
        under_way: Collection[object],
        is_logged: bool,
    ) -> None:
        """`under_way`: the events that are on their way into the log and then into the queue. `is_logged`: accepted
        events are in the log."""
        self._name = name
        self._state = state
        self._room = room
        self._coalescing = coalescing
        self._is_mailbox_thread = is_mailbox_thread
        self._is_inside = is_inside
        # What the log's lines about discarded events end with.
        self._kept = "; the next start handles those that the journal has" if is_logged else ""
        self.under_way = under_way  # any thread reads it; changed by the log
        # Numbers of events that are retrying, and due after the end of the drain. The schedule appends, the handler
        # thread takes.
        self.late: deque[int] = deque()
        self._lingers = False  # written under end_lock, read by any thread without it
        # The handler thread takes no more entries; written under end_lock, read by any thread without it.
        self.has_ended = False

    def is_ending(self) -> bool:
        """The handler thread ends once the queue is empty. A lingering one waits, while DRAINING, for its group, and
        each one for events that are under way."""
        phase = self._state.flags.phase
        return phase >= STOPPED or (
            phase == DRAINING and not self._lingers and not self.under_way and not self._state.retrying
        )

    def shut(self, phase: int, *, lingers: bool = False) -> None:
        """Refuse posts from outside from now on. See `is_ending` for `lingers`."""
        with self._state.end_lock:
            self._shut(phase, lingers)
        self._room.wake_all()

    def _shut(self, phase: int, lingers: bool) -> None:
        """Under end_lock."""
        flags = self._state.flags
        # Set first: a thread that reads the phase without the lock must not mistake a joint drain for the end.
        self._lingers = lingers
        if flags.phase < phase:  # no call in between: a signal handler cannot shut the queue meanwhile
            flags.phase = phase
        flags.gate = LOOK
        flags.alert = True

    def end(self) -> None:
        """The handler thread takes no more entries, for whatever reason it ended."""
        self.shut(STOPPED)
        with self._state.end_lock:
            self.has_ended = True

    @staticmethod
    def end_together(queues: Sequence[QueueShutdown], is_at_rest: Callable[[], bool]) -> bool:
        """End all the queues at one moment, if all are empty and no handler runs; returns whether they ended.

        If they ended one by one, a handler of one queue could still post to another that has ended.
        """
        with contextlib.ExitStack() as locks:
            for queue in queues:
                locks.enter_context(queue._state.end_lock)
            # `under_way` first: an event leaves it only once it is queued.
            if any(queue.under_way or queue._state.retrying or queue._state.entries for queue in queues):
                return False
            if not is_at_rest():
                return False
            for queue in queues:
                queue._shut(STOPPED, lingers=False)
                queue.has_ended = True
            return True

    def take_last(self, entries: Iterator[Any], *, ends: bool) -> Any | None:
        """After STOPPED: the next of `entries`, an iterator over the queue; None if it is empty, and if this `ends` the
        queue, stays so.

        Takes the lock, as `take_back` does, so that each entry goes to exactly one of the two. Handler thread.
        """
        with self._state.end_lock:
            if self._state.entries and not self.has_ended:
                with contextlib.suppress(IndexError):  # a producer that drops the oldest, late, has taken it
                    return next(entries)
            if ends:
                self.has_ended = True
            return None

    def take_back(self, entry: Any) -> bool:
        """Undo an append to a queue that was shut; returns whether the entry was removed and the post is refused.

        After STOPPED, no thread may be left to take the entry. Only atomic steps on the queue's ends, because the
        handler thread of an aborted stop may still take from the left.
        """
        state = self._state
        if state.flags.phase < STOPPED or self._is_mailbox_thread() or self._will_be_taken() or not self._remove(entry):
            return False
        self._close(entry)
        is_retried = type(entry) is QueuedEvent and entry.delivery is not None and entry.delivery.attempt > 1
        if type(entry) is QueuedEvent and (entry.is_superseded or entry.accepted_seq > 0 or is_retried):
            # The entry's event came with a later, accepted post: discard it and accept this post. Or it was accepted
            # before. Or it is in the write-ahead log, which may be closed: the next start redelivers it.
            state.dropped.add("stop")
            return False
        state.rejected.add("stopped")
        return True

    def _will_be_taken(self) -> bool:
        """Whether the caller is a coroutine whose event is in hand: the handler thread will look at the queue again."""
        with self._state.end_lock:
            return not self.has_ended and self._is_inside()

    def _remove(self, entry: Any) -> bool:
        """Remove an entry from the right of the queue; returns whether it was still there."""
        entries = self._state.entries
        others: deque[Any] = deque()  # the entries behind it
        with self._state.end_lock:
            try:
                while True:
                    # One step, so that a signal handler that raises leaves no entry outside both.
                    others.extendleft(starmap(entries.pop, repeat((), 1)))
                    if others[0] is entry:
                        others.popleft()
                        return True
            except IndexError:
                return False
            finally:
                entries.extend(others)

    def discard(self) -> None:
        """Empty the queue, and count and log its events. For a stop that does not wait for the handlers."""
        left: list[Any] = []
        try:
            with self._state.end_lock:
                self._state.take_all_dropped("stop", left)
            # In the write-ahead log their events stay: the next start redelivers them. A post that has found one of the
            # entries by its key, and replaces its event, changes which event was discarded, and no count.
            self._coalescing.queued.clear()
        finally:
            if left:
                counted, are_sampled = count_types(left)
                kinds = ", ".join(f"{count} {kind_of(type)}" for type, count in sorted(counted, key=lambda it: -it[1]))
                about = f"about, by a sample of {LEFT_SAMPLE}: {kinds}" if are_sampled else kinds
                fields = {"dispatcher": self._name, "count": len(left)}
                message = "%s: stop discarded %d queued events: %s%s"
                tell(log, logging.WARNING, message, self._name, len(left), about, self._kept, extra=fields)
                self._let_go(left)

        self.discard_retrying()

    def discard_retrying(self) -> None:
        """Count and log the events that wait for their next attempt: none comes. In a write-ahead log they stay."""
        left: list[QueuedEvent] = []
        take = self._state.retrying.popitem
        with contextlib.suppress(KeyError):
            while True:
                left.append(self._state.dropped.take("stop", take)[1])
        self._end_retries(left)

    def discard_late(self) -> None:
        """As `discard_retrying`, of those whose next attempt comes too late for the drain. Handler thread.

        An event that others wait for stays: they must not be handled before it.
        """
        left: list[QueuedEvent] = []
        while self.late:
            number = self.late.popleft()
            entry = self._state.retrying.get(number)
            if entry is not None and (entry.delivery is None or entry.delivery.behind is None):
                with contextlib.suppress(KeyError):  # another thread has taken it
                    left.append(self._state.dropped.take("stop", partial(self._state.retrying.pop, number)))
        self._end_retries(left)

    def _end_retries(self, left: list[QueuedEvent]) -> None:
        if left:
            contents = kinds_of(entry.event for entry in left)
            message = "%s: stop discarded %d events that waited for their next attempt: %s%s"
            fields = {"dispatcher": self._name, "count": len(left)}
            tell(log, logging.WARNING, message, self._name, len(left), contents, self._kept, extra=fields)
            for entry in left:
                if entry.delivery is not None:
                    entry.delivery.discard("stop")

    def _discard_deliveries(self, entries: list[Any]) -> None:
        for number, entry in enumerate(entries, 1):
            if not number % MOST_ANSWERED:
                sleep(SHORT_S)
            if type(entry) is QueuedEvent:
                self._close(entry)
                if entry.delivery is not None:
                    entry.delivery.discard("stop")

    def _let_go(self, entries: list[Any]) -> None:
        """Answer the asks of the entries, and free these. Many take seconds, which a stop does not have, so another
        thread does that."""
        letting_go = threading.Thread(target=self._do_let_go, args=(entries,), name=f"{self._name}-free", daemon=True)
        most = MOST_ANSWERED if self._state.has_deliveries else SAMPLE
        # If no thread is left, the caller does it.
        if len(entries) <= most or not try_to_start(letting_go):
            self._do_let_go(entries)

    def _do_let_go(self, entries: list[Any]) -> None:
        if self._state.has_deliveries:
            self._discard_deliveries(entries)
        _free(entries)

    def _close(self, entry: Any) -> None:
        if type(entry) is QueuedEvent and entry.key is not None:
            self._coalescing.close(entry)

    def after_fork(self) -> None:
        """In a child process: make a new lock, since a thread of the parent may have held it; accept nothing."""
        self._state.end_lock = threading.RLock()
        self._shut(FORKED, self._lingers)


def _free(entries: list[Any]) -> None:
    while entries:  # other threads run between these steps
        del entries[-10_000:]
