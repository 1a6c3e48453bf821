"""Several dispatchers that split the events by key, after Hadoop's MultiDispatcher.

Events with the same lock key go to the same partition, so their order is kept; different keys run in parallel. An
event's key is its attribute `lock_key`; without one, or with None, it goes to partition 0.
"""

from __future__ import annotations

from concurrent.futures import Future
from enum import Enum
from itertools import chain
from typing import Any

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.config import DispatcherConfig, dispatcher_config
from dispatcher.dispatcher_group import DispatcherGroup
from dispatcher.event import DispatcherEventHandler, Handler, KeyOf
from dispatcher.queue.contents import sums
from dispatcher.routes import OnError
from dispatcher.util.foreign import text_of


class MultiDispatcher(DispatcherGroup):
    """A DispatcherGroup of `partitions` AsyncDispatchers, named `name-0`, `name-1`, ..., behind one `event_handler`."""

    def __init__(
        self,
        config: DispatcherConfig | None = None,
        *,
        name: str = "MultiDispatcher",
        partitions: int = 4,
        **options: Any,
    ) -> None:
        if type(partitions) is not int:
            raise TypeError(f"partitions must be an int, not {text_of(partitions)}")
        if partitions < 1:
            raise ValueError(f"partitions must be at least 1, not {partitions}")
        if options.get("journal") is not None:
            raise ValueError(f"{name}: a journal has one dispatcher; its rows are in the order of one handler thread")
        config = dispatcher_config(config, options.pop("queue_capacity", None))
        super().__init__(
            name,
            [AsyncDispatcher(config, name=f"{name}-{i}", **options) for i in range(partitions)],
            drain_timeout_s=config.drain_timeout_s,
            drains_on_stop=config.drain_events_on_stop,
        )
        self._posts = tuple(partition.event_handler.handle for partition in self.partitions)
        self._event_handler = DispatcherEventHandler(self._post)

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """As AsyncDispatcher.event_handler. Any thread."""
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
        for partition in self.partitions:
            partition.register(event_type, handler, on_error=on_error, coalesce_by=coalesce_by)

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """As AsyncDispatcher.unregister, on each partition."""
        found = [partition.unregister(event_type, handler) for partition in self.partitions]
        return any(found)

    def queue_size(self) -> int:
        return sum(partition.queue_size() for partition in self.partitions)

    def queue_contents(self) -> dict[Enum, int]:
        """As AsyncDispatcher.queue_contents, for all partitions."""
        return sums(chain.from_iterable(partition.core.queue.contents.by_type()[0] for partition in self.partitions))

    def post_without_waiting(self, event: Any) -> bool:
        """As AsyncDispatcher.post_without_waiting."""
        return self.partition_of(event).post_without_waiting(event)

    def post_later(self, event: Any) -> Future[bool]:
        """As AsyncDispatcher.post_later."""
        return self.partition_of(event).post_later(event)

    def partition_of(self, event: Any) -> AsyncDispatcher:
        """The partition that handles the event. Any thread."""
        return self.partitions[self._place(event)]

    def _post(self, event: Any) -> bool:
        return self._posts[self._place(event)](event)

    def _place(self, event: Any) -> int:
        key = getattr(event, "lock_key", None)
        return 0 if key is None else hash(key) % len(self.partitions)
