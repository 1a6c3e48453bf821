"""How long the oldest queued event has waited, and how long a bounded queue has been full.

Most posts note no time, so both are estimated from periodic checks. A check notes how many events had been queued by
then. An event that is still queued and among those has waited since that check, or longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from time import perf_counter_ns
from typing import Final

from dispatcher.dispatching.progress import Progress
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.state import enqueued_ns_of
from dispatcher.util.histogram import snapshot

_MOST_CHECKS: Final = 1000
_MOST_LOOKED_AT: Final = 1000


class Backlog:
    """The backlog of one queue. One thread calls `check`, any thread the other methods; no lock is taken."""

    def __init__(self, queue: EventQueue, progress: Progress, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._queue, self._progress, self._clock_ns = queue, progress, clock_ns  # never change
        # Times and the numbers of events queued by then, oldest first; the checking thread appends and replaces it, any
        # thread copies it.
        self._checks: deque[tuple[int, int]] = deque()
        self._full_since_ns: int | None = None  # the checking thread writes, any reads

    def check(self) -> None:
        """Note the length of the queue. Periodically, on one thread."""
        now_ns, left = self._clock_ns(), self._left()
        queued = left + len(self._queue.entries)
        while self._checks and self._checks[0][1] <= left:
            self._checks.popleft()
        if not self._checks or self._checks[-1][1] < queued:  # only the first check that saw an event matters
            self._checks.append((now_ns, queued))
        if len(self._checks) > _MOST_CHECKS:  # a long wait need not be known to the second
            self._checks = deque(islice(self._checks, 0, None, 2))
        if not self._queue.room.is_full():
            self._full_since_ns = None
        elif self._full_since_ns is None:
            self._full_since_ns = now_ns

    def oldest_wait_s(self) -> float | None:
        """How long the oldest event has waited, at least; None: the queue is empty.

        It is exact if the event's post noted the time, and otherwise lacks at most the time between two checks.
        """
        first = snapshot(lambda: list(islice(self._queue.entries, _MOST_LOOKED_AT)))
        if not first:
            return None
        now_ns, left = self._clock_ns(), self._left()
        checked_ns = next((at_ns for at_ns, queued in snapshot(self._checks.copy) if queued > left), now_ns)
        # An event behind the oldest one has not waited longer.
        stamped_ns = next(filter(None, map(enqueued_ns_of, first)), now_ns)
        return max(0, now_ns - min(checked_ns, stamped_ns)) / 1e9

    def full_since_s(self) -> float | None:
        """How long the queue has been at its capacity, at least; None: it is not, or has none."""
        since_ns = self._full_since_ns
        if not self._queue.room.is_full():
            return None
        return 0.0 if since_ns is None else max(0, self._clock_ns() - since_ns) / 1e9

    def _left(self) -> int:
        """How many events have left the queue at its front."""
        dropped = self._queue.state.dropped.counts()
        return self._progress.taken() + dropped.get("drop_oldest", 0) + dropped.get("stop", 0)
