"""A dispatcher for one consumer, after Hadoop's EventDispatcher: its own queue and thread.

It keeps a slow handler, such as a scheduler, from delaying the central dispatcher: register its `handle` there, and the
central thread only passes the event on.
"""

from __future__ import annotations

from typing import Any

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.config import DispatcherConfig
from dispatcher.event import Handler


class EventDispatcher(AsyncDispatcher):
    """Hands every event, whatever its class, to one handler on a thread of its own. Otherwise an AsyncDispatcher."""

    def __init__(
        self, handler: Handler, name: str = "EventDispatcher", config: DispatcherConfig | None = None, **options: Any
    ) -> None:
        self._handler = handler
        super().__init__(config, name=name, **options)

    def handle(self, event: Any) -> bool:
        """Queue an event; returns whether it was accepted. Any thread."""
        return self._event_handler.handle(event)

    def _default_handler(self) -> Handler:
        return self._handler
