"""Coalescing: while an event with a key is queued, a newer event with that key replaces it.

The entry keeps its position in the queue and gets the newer event. The handler thread closes an entry, under the lock,
when it takes it; after that, the next event with the key gets an entry of its own.
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
        """`is_waiting()`: the handler thread waits for an event, so the time in the queue need not be measured."""
        self._state = state
        self._is_waiting = is_waiting
        self._keys: dict[type, KeyOf] = {}  # replaced under the queue's lock; any thread reads it

    def supersede_by(self, event_class: type, key_of: KeyOf) -> None:
        """Let new events of the class supersede queued ones with the same key."""
        with self._state.lock:
            self._keys = {**self._keys, event_class: key_of}
            self._state.set_gate(is_special=True)

    def key_of(self, event: Any) -> ClassAndKey | None:
        """The key of an event, computed on the producer's thread; None: it neither supersedes nor is superseded."""
        event_class = getattr(event, "type", None).__class__
        key_of = self._keys.get(event_class)
        key = key_of(event) if key_of is not None else None
        return (event_class, key) if key is not None else None

    def supersede(self, event: Any, key: ClassAndKey, accepted_seq: int) -> bool:
        """Replace the queued event of the same key; False if none is queued."""
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
        """Append the first event of its key. Returns None, and does nothing, if another one of the key was faster."""
        state = self._state
        with state.lock:
            # Check and append under one lock: of two events that arrive first, one must supersede the other.
            if key in state.queued:
                return None
            stamped_ns = perf_counter_ns() if state.is_stamping and not self._is_waiting() else 0
            entry = state.queued[key] = QueuedEvent(event, stamped_ns, key, accepted_seq)
            state.entries.append(entry)
            return entry

    def close(self, entry: QueuedEvent) -> None:
        """On the handler thread, which has taken the entry: from now on no event supersedes its event."""
        with self._state.lock:
            self._state.forget(entry)
