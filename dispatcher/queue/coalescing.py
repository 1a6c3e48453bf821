"""Coalescing: while an event of a key is queued, a newer one of that key takes its place.

The entry keeps its place in the queue and is given the newer event. The handler thread closes an entry when it takes
it, under the lock; from then on the next event of the key gets an entry of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import perf_counter_ns
from typing import Any

from dispatcher.queue.state import ClassAndKey, QueuedEvent, QueueState

KeyOf = Callable[[Any], Hashable]


class Coalescing:
    """The keys of one queue. Any thread, but for `close`."""

    def __init__(self, state: QueueState, is_waiting: Callable[[], bool]) -> None:
        """`is_waiting`: the handler thread waits for the next event, so a time in the queue is not worth a look."""
        self._state = state
        self._is_waiting = is_waiting
        self._keys: dict[type, KeyOf] = {}  # replaced under the queue's lock, never changed; any thread reads it

    def supersede_by(self, event_class: type, key_of: KeyOf) -> None:
        """From now on events of the class supersede queued ones of the same key."""
        with self._state.lock:
            self._keys = {**self._keys, event_class: key_of}
            self._state.set_gate(is_special=True)

    def key_of(self, event: Any) -> ClassAndKey | None:
        """The key of an event that may supersede another, or be superseded; on the producer's thread."""
        event_class = getattr(event, "type", None).__class__
        key_of = self._keys.get(event_class)
        key = key_of(event) if key_of is not None else None
        return (event_class, key) if key is not None else None

    def supersede(self, event: Any, key: ClassAndKey, accepted_seq: int) -> bool:
        """Put the event in the place of the queued one of its key; False: none is queued."""
        state = self._state
        with state.lock:
            queued = state.queued.get(key)
            if queued is None:
                return False
            queued.event = event
            state.settle(queued.accepted_seq)
            queued.accepted_seq = accepted_seq
            queued.is_superseded = True
            if state.is_stamping:
                queued.enqueued_ns = perf_counter_ns()
            state.dropped["superseded"] += 1
            return True

    def append_first(self, event: Any, key: ClassAndKey, accepted_seq: int) -> QueuedEvent | None:
        """Append the first event of its key; None, and nothing is done, if another of the key was faster."""
        state = self._state
        with state.lock:
            # Look again and append under one lock: of two first events of a key, one supersedes the other.
            if key in state.queued:
                return None
            stamped_ns = perf_counter_ns() if state.is_stamping and not self._is_waiting() else 0
            entry = state.queued[key] = QueuedEvent(event, stamped_ns, key, accepted_seq)
            state.entries.append(entry)
            return entry

    def close(self, entry: QueuedEvent) -> None:
        """The handler thread has taken the entry, which has a key: from now on nothing supersedes its event."""
        with self._state.lock:
            self._state.forget(entry)
