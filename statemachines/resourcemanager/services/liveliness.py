"""What is expected to report in time, and what happens if it does not: YARN's monitors, on one mechanism.

A monitor keeps deadlines and no timer of its own. In real time something looks at it now and then (`expire_due`); in
virtual time the clock jumps to the next deadline (`next_deadline_ms`) when nothing comes before it. So a ping, or a
container that is acquired and launched at once, costs one dict operation.

An id is no longer monitored when its `expire` is called, and `expire` may register it, or any other, again: what it
registers has its own time, and is not looked at before the next `expire_due`. If `expire` raises, the ids that were due
after it are still monitored, so the next `expire_due` gets to them.

Threading: handler thread only (invariant 1); `len` is any thread's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile

from dispatcher.service import Service
from dispatcher.util.heap import LazyHeap


class LivelinessMonitor(Service):
    """Ids that all have the same time to report, after YARN's AbstractLivelinessMonitor.

    `expire(id)` is called once for each id that did not; it is no longer monitored then.
    """

    def __init__(
        self, name: str, interval_ms: int | None, now_ms: Callable[[], int], expire: Callable[[str], None]
    ) -> None:
        """`interval_ms`: the time to report; None: what is registered never expires.

        `now_ms` is best of a clock that nobody sets: set forward, it expires those that had no time to report; set
        back, it notices that much later who is silent.
        """
        super().__init__(name)
        self.interval_ms = interval_ms
        self._now_ms = now_ms
        self._expire = expire
        # By id, when it was last heard of; the oldest first, as whatever is heard of moves to the end. A plain dict
        # finds its first entry by passing over all that were removed before it: each look would cost a whole table.
        self._heard_ms: OrderedDict[str, int] = OrderedDict()

    def register(self, id: str) -> None:
        """Begin to monitor, or begin anew."""
        if self.interval_ms is not None:
            self._heard_ms[id] = self._now_ms()
            self._heard_ms.move_to_end(id)

    def unregister(self, id: str) -> None:
        """End the monitoring; nothing if there is none."""
        self._heard_ms.pop(id, None)

    def received_ping(self, id: str) -> None:
        """It lives; nothing if it is not monitored."""
        if id in self._heard_ms:
            self._heard_ms[id] = self._now_ms()
            self._heard_ms.move_to_end(id)

    def __contains__(self, id: str) -> bool:
        return id in self._heard_ms

    def __len__(self) -> int:
        return len(self._heard_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next id expires, if it is not heard of before; None: nothing can."""
        for heard_ms in self._heard_ms.values():
            assert self.interval_ms is not None  # nothing is registered otherwise
            return heard_ms + self.interval_ms
        return None

    def expire_due(self) -> None:
        """Expire all ids whose time is over, those that were silent for longest first."""
        if self.interval_ms is None:
            return
        latest_ms = self._now_ms() - self.interval_ms
        for id, heard_ms in list(takewhile(lambda item: item[1] <= latest_ms, self._heard_ms.items())):
            # Those expired before may have ended the monitoring of this one, or begun it anew.
            if self._heard_ms.get(id) == heard_ms:
                del self._heard_ms[id]
                self._expire(id)


class DeadlineMonitor(Service):
    """Ids with a deadline of their own each, after YARN's RMAppLifetimeMonitor. Otherwise as LivelinessMonitor."""

    def __init__(self, name: str, now_ms: Callable[[], int], expire: Callable[[str], None]) -> None:
        super().__init__(name)
        self._now_ms = now_ms
        self._expire = expire
        self._deadlines_ms: dict[str, int] = {}
        self._heap: LazyHeap[str] = LazyHeap(lambda id: (self._deadlines_ms[id], id))

    def register(self, id: str, deadline_ms: int) -> None:
        """Begin to monitor, or move the deadline."""
        self._deadlines_ms[id] = deadline_ms
        self._heap.add(id)

    def unregister(self, id: str) -> None:
        """End the monitoring; nothing if there is none."""
        self._heap.discard(id)
        self._deadlines_ms.pop(id, None)

    def deadline_ms(self, id: str) -> int | None:
        """The deadline of an id; None if it is not monitored."""
        return self._deadlines_ms.get(id)

    def __contains__(self, id: str) -> bool:
        return id in self._deadlines_ms

    def __len__(self) -> int:
        return len(self._deadlines_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next id expires; None: nothing can."""
        entry = self._heap.least()
        return self._deadlines_ms[entry[2]] if entry is not None else None

    def expire_due(self) -> None:
        """Expire all ids whose time is over, by their deadlines."""
        now_ms, heap = self._now_ms(), self._heap
        due: dict[str, int] = {}
        while (entry := heap.least()) is not None and (deadline_ms := self._deadlines_ms[entry[2]]) <= now_ms:
            due[entry[2]] = deadline_ms
            heap.discard(entry[2])
        try:
            while due:
                id = next(iter(due))
                deadline_ms = due.pop(id)
                # Those expired before may have ended the monitoring of this one, or moved its deadline.
                if self._deadlines_ms.get(id) == deadline_ms:
                    self.unregister(id)
                    self._expire(id)
        finally:
            for id in due:
                if id in self._deadlines_ms:
                    heap.add(id)
