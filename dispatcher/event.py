"""Events and their handlers.

An event is any object whose `.type` is an Enum member: the member's Enum class decides which handlers get it.
`Event` is a plain base class for events.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from dispatcher.util.foreign import kind_of, text_of

T = TypeVar("T", bound=Enum)


class Event(Generic[T]):
    """Something that happened: `type` says what, `timestamp` when (Unix seconds; now, if not given).

    Subclasses add attributes, best as slots. The journal records two of them if a subclass has them: `entity` (str:
    what the event is about) and `payload` (a mapping that JSON can hold, or None).
    """

    __slots__ = ("timestamp", "type")

    entity: str | None = None
    payload: Any = None

    def __init__(self, type: T, timestamp: float | None = None) -> None:
        self.type = type
        self.timestamp = time.time() if timestamp is None else timestamp

    def __repr__(self) -> str:
        about = f" {self.entity}" if self.entity is not None else ""
        return f"<{type(self).__name__} {kind_of(self.type)}{about}>"


@runtime_checkable
class EventHandler(Protocol):
    """Handles events of its registered classes, on the dispatcher's handler thread. A plain callable also works."""

    def handle(self, event: Any) -> Any:
        """Handle one event. The dispatcher counts and logs an error, then follows the registered `on_error`."""


Handler = EventHandler | Callable[[Any], Any]


def handling_callable(handler: Handler) -> Callable[[Any], Any]:
    """The callable that handles an event: `handler.handle`, or `handler` itself.

    Raises:
        TypeError: it is neither, or it is a coroutine function, whose result the dispatcher would not await.
    """
    handle = getattr(handler, "handle", handler)
    if not callable(handle):
        raise TypeError(f"a handler is a callable or has a method handle(event); {text_of(handler)} is neither")
    if inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(type(handle).__call__):
        raise TypeError(
            f"{text_of(handler)} is an `async def` function: the handler thread has no event loop to await it. "
            "Register a plain function that hands the event to your loop with "
            "asyncio.run_coroutine_threadsafe(coroutine, loop)."
        )
    return handle


class MultiListenerHandler:
    """Calls its handlers in the order they were added. If one raises, those after it do not get the event.

    Add and remove handlers before the dispatcher starts, or on its handler thread. The tuple is replaced as a whole, so
    an event that is being handled still goes to the handlers that were there when its handling began.
    """

    __slots__ = ("_handles", "handlers")

    def __init__(self, *handlers: Handler) -> None:
        self.handlers: tuple[Handler, ...] = ()  # replaced by the thread that adds or removes; any thread reads
        self._handles: tuple[Callable[[Any], Any], ...] = ()  # as handlers, whose callables they are
        for handler in handlers:
            self.add_handler(handler)

    def add_handler(self, handler: Handler) -> None:
        handle = handling_callable(handler)
        self.handlers = (*self.handlers, handler)
        self._handles = (*self._handles, handle)

    def remove_handler(self, handler: Handler) -> bool:
        """Remove the first handler equal to `handler`; returns whether it was there."""
        if handler not in self.handlers:
            return False
        index = self.handlers.index(handler)
        self.handlers = self.handlers[:index] + self.handlers[index + 1 :]
        self._handles = self._handles[:index] + self._handles[index + 1 :]
        return True

    def handle(self, event: Any) -> None:
        for handle in self._handles:
            handle(event)


class DispatcherEventHandler:
    """Where producers post. Bind `handle` once, call it often; any thread may."""

    __slots__ = ("handle",)

    def __init__(self, handle: Callable[[Any], bool]) -> None:
        self.handle = handle
        """True: the event was accepted, and will be handled or counted as discarded. False: it was refused, because the
        queue is full, the journal cannot be written, or the dispatcher drains or has stopped."""

    def __call__(self, event: Any) -> bool:
        return self.handle(event)
