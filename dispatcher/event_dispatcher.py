"""A dispatcher for one consumer, after Hadoop's EventDispatcher: its own queue and thread.

It keeps a slow handler, such as a scheduler, from holding up the central dispatcher: register its `handle` there, and
the central thread does no more than pass the event on.
"""

from __future__ import annotations

from typing import Any

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.config import DispatcherConfig
from dispatcher.event import Handler, handling_callable


class EventDispatcher(AsyncDispatcher):
    """Hands every event, whatever its class, to one handler on a thread of its own. Otherwise an AsyncDispatcher."""

    def __init__(
        self, handler: Handler, name: str = "EventDispatcher", config: DispatcherConfig | None = None, **options: Any
    ) -> None:
        super().__init__(config, name=name, **options)
        handling_callable(handler)  # raises for what cannot handle
        self._handler = handler

    def handle(self, event: Any) -> bool:
        """Queue an event; says whether it was accepted. Any thread."""
        event_class = event.type.__class__
        if event_class not in self._registrations:
            self._register_once(event_class)
        return self._event_handler.handle(event)

    def _register_once(self, event_class: type) -> None:
        # Two threads may bring the first two events of a class: the second must not add the handler again.
        with self._register_lock:
            known = event_class in self._registrations
            if not known:
                self._set_registration(event_class, self._handler, "continue")
