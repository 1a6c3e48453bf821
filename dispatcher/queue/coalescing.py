"""Coalescing: while an event with a key is queued, a newer event with that key replaces it.

The entry keeps its position in the queue and gets the newer event. The thread that takes an entry closes it; after
that, the next event with the key gets an entry of its own.

Comparing keys runs foreign code, and a post may interrupt another one of its own thread, so there is no lock. Each of
these steps is atomic:

- `setdefault` chooses between two first events of a key. Whoever finds the entry of a post that has not queued it yet
  queues it: `place` lets only one of the two do so. So an event that was accepted is in the queue.
- A newer event is appended to the entry's versions, and then the oldest version is removed: there is at least one.
- Closing appends CLOSED. versions = [v1, CLOSED, v2]: v1 is handled; the producer of v2 sees CLOSED ahead and posts a
  new entry. The closed one has left `queued` before, so that producer does not find it again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import dropwhile, takewhile
from operator import length_hint
from time import perf_counter_ns
from typing import Any

from dispatcher.event import KeyOf
from dispatcher.queue.delivery import Delivery
from dispatcher.queue.entries import CLOSED, ClassAndKey, QueuedEvent, QueueState, Stamping, Version
from dispatcher.util.foreign import reraise_interrupt, type_of
from dispatcher.util.histogram import snapshot


class Coalescing:
    """The keys of one queue. Any thread."""

    def __init__(self, state: QueueState, stamping: Stamping, is_waiting: Callable[[], bool]) -> None:
        """`is_waiting()`: the handler thread waits for an event, so the time in the queue need not be measured."""
        self._state = state
        self._stamping = stamping
        self._is_waiting = is_waiting
        self._superseded = state.dropped.turns("superseded")  # any thread, in single steps
        self._keys: dict[type, KeyOf] = {}  # any thread, in single steps
        self.queued: dict[ClassAndKey, QueuedEvent] = {}  # open entries; any thread, in single steps

    def supersede_by(self, event_class: type, key_of: KeyOf | None) -> None:
        """Let new events of the class supersede queued ones with the same key; None: no event does. The gate must be
        LOOK."""
        if key_of is not None:
            self._keys[event_class] = key_of
        else:
            self._keys.pop(event_class, None)

    def key_of(self, event: Any) -> ClassAndKey | None:
        """The key of an event, computed on the producer's thread; None: it neither supersedes nor is superseded.

        Raises:
            Exception: raised by the user's function, or by the key's `__hash__`.
        """
        if not self._keys:
            return None
        event_class = type(type_of(event))
        key_of = self._keys.get(event_class)
        key = key_of(event) if key_of is not None else None
        if key is None:
            return None
        hash(key)  # raises before anything is accepted
        return event_class, key

    def supersede(
        self, event: Any, key: ClassAndKey, accepted_seq: int, delivery: Delivery | None
    ) -> QueuedEvent | None:
        """The queued entry of the same key, which now holds the event; None: none is queued.

        Raises:
            Exception: raised by comparing keys.
        """
        queued = self.queued.get(key)
        if queued is None:
            return None
        now_ns = perf_counter_ns() if self._stamping.due else 0
        return queued if self._replace(queued, (event, now_ns, accepted_seq, True, delivery)) else None

    def entry(self, event: Any, key: ClassAndKey, accepted_seq: int, delivery: Delivery | None) -> QueuedEvent:
        """An entry for the event, for `register`."""
        stamped_ns = perf_counter_ns() if self._stamping.due and not self._is_waiting() else 0
        return QueuedEvent(event, stamped_ns, key, accepted_seq, delivery)

    def register(self, entry: QueuedEvent) -> QueuedEvent:
        """The entry that holds the event from now on: this one, or the queued one of its key. It may not be queued yet.

        Raises:
            Exception: raised by comparing keys. The entry was not registered.
        """
        key, (event, enqueued_ns, accepted_seq, _, delivery) = entry.key, entry.versions[0]
        assert key is not None
        for attempt in range(3):
            queued = self.queued.setdefault(key, entry)
            if queued is entry or self._replace(queued, (event, enqueued_ns, accepted_seq, True, delivery)):
                return queued
            if attempt:  # closed, and still there: its key raised, or did not equal itself, when it was to go
                self.queued.pop(key, None)
        entry.event, entry.delivery, entry.key = event, delivery, None
        return entry

    def is_registered(self, entry: QueuedEvent) -> bool:
        """Whether `register` has got as far as to register the entry. Compares no keys."""
        return any(queued is entry for queued in snapshot(self.queued.copy).values())

    def enqueue(self, entry: QueuedEvent) -> bool:
        """Put the entry into the queue, if no other thread has; returns whether this call may have."""
        if not length_hint(entry.place):
            return False
        self._state.entries.extend(entry.place)
        return True

    def _replace(self, entry: QueuedEvent, version: Version) -> bool:
        """Give an entry a newer event, unless it is closed."""
        versions = entry.versions
        if versions[-1] is CLOSED:
            return False
        versions.append(version)
        second = versions[1:2]
        # The first is not CLOSED: at least one version precedes that.
        if (not second or second[0] is not version) and _is_late(versions.copy(), version):
            return False
        oldest = versions.pop(0)
        next(self._superseded)
        if oldest[2]:
            self._state.settle(oldest[2])
        if oldest[4] is not None:
            oldest[4].discard("superseded")
        return True

    def close(self, entry: QueuedEvent) -> None:
        """On the thread that has taken the entry from the queue: from now on no event supersedes its event."""
        versions = entry.versions
        try:
            self.queued.pop(entry.key, None)  # type: ignore[arg-type]
        except BaseException as error:  # raised by a key; `register` copes with an entry that stays
            reraise_interrupt(error)
        finally:
            versions.append(CLOSED)
        if versions[1] is CLOSED:  # then no producer is about to remove the first
            last = versions[0]
        else:
            *_, last = takewhile(lambda version: version is not CLOSED, versions.copy())
        entry.event, entry.enqueued_ns, entry.accepted_seq, entry.is_superseded, entry.delivery = last


def _is_late(versions: list[Version], version: Version) -> bool:
    """Whether CLOSED precedes the version. If it is gone, newer events have superseded it already."""
    since_closed = dropwhile(lambda other: other is not CLOSED, versions)
    return any(other is version for other in since_closed)
