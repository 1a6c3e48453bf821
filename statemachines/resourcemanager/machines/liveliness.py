"""YARN's liveliness monitors: ids that must report before a deadline.

A monitor has deadlines and no timer. In real time `expire_due` is called periodically; in virtual time the clock jumps
to `next_deadline_ms`. So a ping, or a container that is acquired and launched at once, costs one dict operation.

An id is no longer monitored when its `expire` is called. `expire` may register any id, which is not checked before the
next `expire_due`. If `expire` raises, the other due ids stay monitored for the next `expire_due`.

Threading: handler thread only (invariant 1); any thread may call `len`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile

from dispatcher.service import Service
from statemachines.heap import LazyHeap


class LivelinessMonitor(Service):
    """Ids with one common interval to report in, after YARN's AbstractLivelinessMonitor."""

    def __init__(
        self, name: str, interval_ms: int | None, now_ms: Callable[[], int], expire: Callable[[str], None]
    ) -> None:
        """`interval_ms` None: ids never expire. `expire(id)` is called once for each id that was silent for longer.

        `now_ms` should be monotonic: a clock set forward expires ids that had no time to report, one set back delays
        expiry.
        """
        super().__init__(name)
        self.interval_ms = interval_ms
        self._now_ms = now_ms
        self._expire = expire
        # By id: its last report, the oldest first, as each report moves its id to the end. A plain dict would scan all
        # removed entries for its first one.
        self._heard_ms: OrderedDict[str, int] = OrderedDict()

    def register(self, id: str) -> None:
        """Begin or restart monitoring."""
        if self.interval_ms is not None:
            heard_ms = self._heard_ms
            is_known = id in heard_ms
            heard_ms[id] = self._now_ms()
            if is_known:
                heard_ms.move_to_end(id)

    def unregister(self, id: str) -> None:
        """End monitoring, if any."""
        if id in self._heard_ms:  # most containers have been unregistered by their launch
            del self._heard_ms[id]

    def received_ping(self, id: str) -> None:
        """Restart the interval of a monitored id."""
        if id in self._heard_ms:
            self._heard_ms[id] = self._now_ms()
            self._heard_ms.move_to_end(id)

    def __contains__(self, id: str) -> bool:
        return id in self._heard_ms

    def __len__(self) -> int:
        return len(self._heard_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next id expires unless it reports; None: none can."""
        for heard_ms in self._heard_ms.values():
            assert self.interval_ms is not None  # nothing is registered otherwise
            return heard_ms + self.interval_ms
        return None

    def expire_due(self) -> None:
        """Expire all due ids, the longest silent first."""
        if self.interval_ms is None:
            return
        latest_ms = self._now_ms() - self.interval_ms
        for id, heard_ms in list(takewhile(lambda item: item[1] <= latest_ms, self._heard_ms.items())):
            # The `expire` of an earlier id may have unregistered or restarted this one.
            if self._heard_ms.get(id) == heard_ms:
                del self._heard_ms[id]
                self._expire(id)


class DeadlineMonitor(Service):
    """Ids with individual deadlines, after YARN's RMAppLifetimeMonitor. Otherwise as LivelinessMonitor."""

    def __init__(self, name: str, now_ms: Callable[[], int], expire: Callable[[str], None]) -> None:
        super().__init__(name)
        self._now_ms = now_ms
        self._expire = expire
        self._deadlines_ms: dict[str, int] = {}
        self._heap: LazyHeap[str] = LazyHeap(lambda id: (self._deadlines_ms[id], id))

    def register(self, id: str, deadline_ms: int) -> None:
        """Begin monitoring, or change the deadline."""
        self._deadlines_ms[id] = deadline_ms
        self._heap.add(id)

    def unregister(self, id: str) -> None:
        """End monitoring, if any."""
        if self._deadlines_ms.pop(id, None) is not None:
            self._heap.discard(id)

    def deadline_ms(self, id: str) -> int | None:
        """The deadline of an id; None if it is not monitored."""
        return self._deadlines_ms.get(id)

    def __contains__(self, id: str) -> bool:
        return id in self._deadlines_ms

    def __len__(self) -> int:
        return len(self._deadlines_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next id expires; None: none can."""
        entry = self._heap.least() if self._deadlines_ms else None
        return self._deadlines_ms[entry[2]] if entry is not None else None

    def expire_due(self) -> None:
        """Expire all due ids, by their deadlines."""
        now_ms, heap = self._now_ms(), self._heap
        due: dict[str, int] = {}
        while (entry := heap.least()) is not None and (deadline_ms := self._deadlines_ms[entry[2]]) <= now_ms:
            due[entry[2]] = deadline_ms
            heap.discard(entry[2])
        try:
            while due:
                id = next(iter(due))
                deadline_ms = due.pop(id)
                # The `expire` of an earlier id may have unregistered this one, or changed its deadline.
                if self._deadlines_ms.get(id) == deadline_ms:
                    self.unregister(id)
                    self._expire(id)
        finally:
            for id in due:
                if id in self._deadlines_ms:
                    heap.add(id)
