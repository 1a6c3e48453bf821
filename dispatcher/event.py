"""Events and their handlers.

An event is any object whose `.type` is an Enum member: the member's Enum class decides which handlers get it.
`Event` is the plain base for those who have no class of their own.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

T = TypeVar("T", bound=Enum)


class Event(Generic[T]):
    """Something that happened: `type` says what, `timestamp` when (Unix seconds; now, if not given).

    Subclasses add what else there is to say, best as slots. Two attributes mean something to the journal, where a
    subclass has them: `entity` (str: what the event is about) and `payload` (a mapping fit for JSON, or None).
    """

    __slots__ = ("timestamp", "type")

    entity: str | None = None
    payload: Any = None

    def __init__(self, type: T, timestamp: float | None = None) -> None:
        self.type = type
        self.timestamp = time.time() if timestamp is None else timestamp

    def __repr__(self) -> str:
        about = f" {self.entity}" if self.entity is not None else ""
        return f"<{type(self).__name__} {type(self.type).__name__}.{self.type.name}{about}>"


@runtime_checkable
class EventHandler(Protocol):
    """Takes events of the classes it is registered for, always on the dispatcher's one handler thread.

    A plain callable is accepted everywhere too.
    """

    def handle(self, event: Any) -> Any:
        """Handle one event. What it raises is counted and logged, and the next event is handled."""


Handler = EventHandler | Callable[[Any], Any]


def handling_callable(handler: Handler) -> Callable[[Any], Any]:
    """The callable that handles an event: `handler.handle`, or `handler` itself.

    Raises:
        TypeError: it is neither, or it is a coroutine function, whose result nobody would await.
    """
    handle = getattr(handler, "handle", handler)
    if not callable(handle):
        raise TypeError(f"a handler is a callable or has a method handle(event); {handler!r} is neither")
    if inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(type(handle).__call__):
        raise TypeError(
            f"{handler!r} is an `async def` function: the handler thread has no event loop to await it. "
            "Register a plain function that hands the event to your loop with "
            "asyncio.run_coroutine_threadsafe(coroutine, loop)."
        )
    return handle
