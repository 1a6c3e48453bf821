"""Several dispatchers that share the work by key, after Hadoop's MultiDispatcher.

Events with the same lock key go to the same partition, so their order is kept; different keys run side by side. An
event's key is its attribute `lock_key`; without one, or with None, it goes to partition 0.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from dispatcher.async_dispatcher import AsyncDispatcher, DispatcherEventHandler, OnError
from dispatcher.config import DispatcherConfig
from dispatcher.event import Handler
from dispatcher.service import CompositeService


class MultiDispatcher(CompositeService):
    """`partitions` AsyncDispatchers named `name-0`, `name-1`, ... behind one `event_handler`."""

    def __init__(
        self, config: DispatcherConfig | None = None, *, name: str = "MultiDispatcher", partitions: int = 4
    ) -> None:
        super().__init__(name)
        if partitions < 1:
            raise ValueError(f"partitions must be at least 1, not {partitions}")
        self._partitions = tuple(AsyncDispatcher(config, name=f"{name}-{i}") for i in range(partitions))
        for partition in self._partitions:
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

    def register(self, event_type: type[Enum], handler: Handler, *, on_error: OnError = "continue") -> None:
        """As AsyncDispatcher.register, on each partition: `handler` is called from several threads."""
        for partition in self._partitions:
            partition.register(event_type, handler, on_error=on_error)

    def is_drained(self) -> bool:
        """Each partition was drained at a moment during this call."""
        return all(partition.is_drained() for partition in self._partitions)

    def queue_size(self) -> int:
        return sum(partition.queue_size() for partition in self._partitions)

    def _post(self, event: Any) -> bool:
        key = getattr(event, "lock_key", None)
        return self._posts[0 if key is None else hash(key) % len(self._posts)](event)
