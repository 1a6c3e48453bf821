"""Several handlers of one event class as one handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.event import Handler, handling_callable


class MultiListenerHandler:
    """Calls its handlers in the order they were added. What one raises keeps the event from those after it.

    Add and remove before the dispatcher starts, or on its handler thread: the list is replaced as a whole, so an event
    that is being handled still goes to the handlers it found.
    """

    __slots__ = ("_handlers", "_handles")

    def __init__(self, *handlers: Handler) -> None:
        self._handlers: tuple[Handler, ...] = ()
        self._handles: tuple[Callable[[Any], Any], ...] = ()
        for handler in handlers:
            self.add_handler(handler)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return self._handlers

    def add_handler(self, handler: Handler) -> None:
        handle = handling_callable(handler)
        self._handlers = (*self._handlers, handler)
        self._handles = (*self._handles, handle)

    def remove_handler(self, handler: Handler) -> bool:
        """Remove the first handler equal to `handler`; says whether it was there."""
        if handler not in self._handlers:
            return False
        index = self._handlers.index(handler)
        self._handlers = self._handlers[:index] + self._handlers[index + 1 :]
        self._handles = self._handles[:index] + self._handles[index + 1 :]
        return True

    def handle(self, event: Any) -> None:
        for handle in self._handles:
            handle(event)
