"""Several dispatchers that share the work by key, after Hadoop's MultiDispatcher.

Events with the same lock key go to the same partition, so their order is kept; different keys run side by side. An
event's key is its attribute `lock_key`; without one, or with None, it goes to partition 0.
"""

from __future__ import annotations

import threading
from enum import Enum
from time import monotonic
from typing import Any

from dispatcher.async_dispatcher import AsyncDispatcher, DispatcherEventHandler
from dispatcher.config import DispatcherConfig
from dispatcher.event import Handler
from dispatcher.event_queue import FORKED, EventQueue, KeyOf
from dispatcher.routes import OnError
from dispatcher.service import CompositeService, Service, ServiceState


class MultiDispatcher(CompositeService):
    """`partitions` AsyncDispatchers named `name-0`, `name-1`, ... behind one `event_handler`.

    They stop together: while one of them has work, what its handlers post to the others is accepted and handled. One
    that fails fails them all.
    """

    def __init__(
        self,
        config: DispatcherConfig | None = None,
        *,
        name: str = "MultiDispatcher",
        partitions: int = 4,
        **options: Any,
    ) -> None:
        super().__init__(name)
        if partitions < 1:
            raise ValueError(f"partitions must be at least 1, not {partitions}")
        config = config or DispatcherConfig()
        self._drain_on_stop = config.drain_events_on_stop
        self._drain_timeout_s = config.drain_timeout_s
        self._partitions = tuple(AsyncDispatcher(config, name=f"{name}-{i}", **options) for i in range(partitions))
        for partition in self._partitions:
            partition._siblings = self._partitions
            partition.register_service_listener(self._on_partition)
            self.add_service(partition)
        self._posts = tuple(partition.event_handler.handle for partition in self._partitions)
        self._event_handler = DispatcherEventHandler(self._post)

    @property
    def partitions(self) -> tuple[AsyncDispatcher, ...]:
        return self._partitions

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """Where to post; `event_handler.handle(event) -> bool`. Any thread."""
        return self._event_handler

    def register(
        self,
        event_type: type[Enum],
        handler: Handler,
        *,
        on_error: OnError = "continue",
        coalesce_by: KeyOf | None = None,
    ) -> None:
        """As AsyncDispatcher.register, on each partition: `handler` is called from several threads."""
        for partition in self._partitions:
            partition.register(event_type, handler, on_error=on_error, coalesce_by=coalesce_by)

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Take back a registration; says whether there was one."""
        found = [partition.unregister(event_type, handler) for partition in self._partitions]
        return any(found)

    def set_drain_events_on_stop(self, drain: bool = True) -> None:
        """Whether `stop` handles what is queued (True, the default) or discards it. Call it before `stop`."""
        self._drain_on_stop = drain
        for partition in self._partitions:
            partition.set_drain_events_on_stop(drain)

    def is_drained(self) -> bool:
        """All partitions were drained at one moment during this call."""
        done = [partition._dispatching.done for partition in self._partitions]
        # Nothing was taken by any partition between the two looks, so what was seen of each holds for all.
        return all(partition.is_drained() for partition in self._partitions) and (
            done == [partition._dispatching.taken for partition in self._partitions]
        )

    def await_drained(self, timeout: float | None = None) -> bool:
        """As AsyncDispatcher.await_drained, of all partitions."""
        if self._partitions[0]._is_inside():
            raise RuntimeError(f"{self.name}: a handler cannot wait until its own dispatcher is drained")
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            for partition in self._partitions:
                left_s = None if deadline is None else max(0.0, deadline - monotonic())
                if not partition.await_drained(left_s):
                    return False
            if self.is_drained():
                return True

    def queue_size(self) -> int:
        return sum(partition.queue_size() for partition in self._partitions)

    def queue_contents(self) -> dict[Enum, int]:
        """What waits, by event type."""
        contents: dict[Enum, int] = {}
        for partition in self._partitions:
            for event_type, count in partition.queue_contents().items():
                contents[event_type] = contents.get(event_type, 0) + count
        return contents

    def is_stopped(self) -> bool:
        """No event will be handled any more, and the handler threads have ended."""
        return all(partition.is_stopped() for partition in self._partitions)

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """As in Service, and until the handler threads have ended, also when a handler made the stop."""
        deadline = None if timeout is None else monotonic() + timeout
        if not super().wait_for_service_to_stop(timeout):
            return False
        return all(
            partition.wait_for_service_to_stop(None if deadline is None else max(0.0, deadline - monotonic()))
            for partition in self._partitions
        )

    def service_stop(self) -> None:
        """Drain all partitions together, then stop each, within the drain timeout and a second."""
        if any(partition._queue.phase == FORKED for partition in self._partitions):
            super().service_stop()  # there is nothing to wait for
        elif self._partitions[0]._is_inside():  # a handler cannot wait for itself
            threading.Thread(target=self._stop_partitions, name=f"{self.name}-stop").start()
        else:
            self._stop_partitions()

    def _stop_partitions(self) -> None:
        deadline = monotonic() + self._drain_timeout_s
        try:
            if self._drain_on_stop and all(each.in_state(ServiceState.STARTED) for each in self._partitions):
                for partition in self._partitions:
                    partition._begin_joint_drain()
                queues = [partition._queue for partition in self._partitions]
                while self.await_drained(deadline - monotonic()):
                    if EventQueue.end_together(queues, self._is_at_rest):
                        break
        except BaseException:  # KeyboardInterrupt: who waits has no patience left
            deadline = 0.0
            raise
        finally:
            for partition in self._partitions:
                partition._drain_timeout_s = max(0.0, deadline - monotonic())
            # Side by side: each may have to give up on a handler that hangs.
            stops = [threading.Thread(target=each.stop, name=f"{each.name}-stop") for each in self._partitions]
            for stop in stops:
                stop.start()
            for stop in stops:
                stop.join()

    def _is_at_rest(self) -> bool:
        """No partition has an event in its hands."""
        return all(each._dispatching.taken == each._dispatching.done for each in self._partitions)

    def _on_partition(self, partition: Service) -> None:
        """A partition that fails takes the others along: keys of its own would be stuck."""
        cause = partition.failure_cause
        if partition.in_state(ServiceState.STOPPED) and cause is not None and self.in_state(ServiceState.STARTED):
            self.note_failure(cause)
            self.stop()

    def post_without_waiting(self, event: Any) -> bool:
        """As AsyncDispatcher.post_without_waiting."""
        return self._partitions[self._place(event)].post_without_waiting(event)

    def _post(self, event: Any) -> bool:
        return self._posts[self._place(event)](event)

    def _place(self, event: Any) -> int:
        key = getattr(event, "lock_key", None)
        return 0 if key is None else hash(key) % len(self._partitions)
