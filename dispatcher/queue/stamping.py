"""Which posts note their time, so that the time of an event in the queue can be measured: all, some, or none."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Final, Literal

from dispatcher.queue.entries import QueuedEvent
from dispatcher.queue.state import OPEN, STAMP, STAMP_ALL, QueueState

Times = Literal["all", "sampled", "none"]

_STAMP_EVERY_NS: Final = 1_000_000
"""When sampling: at most one post in this time notes it."""


class Stamping:
    """The time stamps of one queue's posts."""

    def __init__(self, state: QueueState, times: Times) -> None:
        self._state = state
        self._samples: Final = times == "sampled"
        self._since_ns = 0  # handler thread: when the next post was last asked for its time
        with state.lock:
            state.set_gate(stamp_gate={"all": STAMP_ALL, "sampled": STAMP, "none": OPEN}[times])

    def stamped(self, event: Any) -> QueuedEvent:
        """The event with the time of its post, which is now. Any thread."""
        if self._samples:
            with self._state.lock:
                self._state.set_gate(stamp_gate=OPEN)
        return QueuedEvent(event, perf_counter_ns())

    def stamp_again(self, now_ns: int) -> None:
        """When sampling: have the next post note its time, if the last did so long enough ago. Handler thread."""
        if now_ns - self._since_ns >= _STAMP_EVERY_NS:
            self._since_ns = now_ns
            if not self._state.is_stamping:
                with self._state.lock:
                    self._state.set_gate(stamp_gate=STAMP)
