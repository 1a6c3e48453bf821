"""Events and their handlers.

An event is any object whose `.type` is an Enum member: the member's Enum class decides which handlers get it.
`Event` is a plain base class for events.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from dispatcher.errors import InvalidTypeError, InvalidValueError
from dispatcher.util.foreign import kind_of, text_of
from dispatcher.util.functions import (
    called_class,
    deferred_kind,
    is_coroutine_function,
    require_plain,
    running_callable,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

E = TypeVar("E", bound=Enum)
E_co = TypeVar("E_co", bound=Enum, covariant=True)
F = TypeVar("F", bound=Callable[[Any], Any])


class HasType(Protocol[E_co]):
    """Any event: an object whose `type` is an Enum member. `HasType[JobEventType]` is any event of that class."""

    @property
    def type(self) -> E_co:
        """The member of an Enum class that routes the event."""


class Event(Generic[E_co]):
    """An event: `type` is a member of an Enum class, `timestamp` the time in Unix seconds.

    By default `timestamp` is -1, as in Hadoop. Reading the clock would cost as much as the rest of the event, and few
    handlers need the time. If yours do, pass `time.time()`. A journal notes the times of each event anyway.

    Add attributes in a subclass, preferably as slots. The journal records two of them: `entity`, a str for what the
    event is about, and `payload`, a mapping for JSON, or None.
    """

    __slots__ = ("timestamp", "type")

    entity: str | None = None
    payload: Any = None

    def __init__(self, type: E_co, timestamp: float = -1.0) -> None:
        self.type = type
        self.timestamp = timestamp

    def __repr__(self) -> str:
        about = f" {self.entity}" if self.entity is not None else ""
        return f"<{type(self).__name__} {kind_of(self.type)}{about}>"


@runtime_checkable
class EventHandler(Protocol):
    """Handles events of its registered classes, on the dispatcher's handler thread. A plain callable also works."""

    def handle(self, event: Any) -> Any:
        """Handle one event. If you raise an error, it's counted and logged, and the registered `on_error` applies."""


Handler = EventHandler | Callable[[Any], Any]

if TYPE_CHECKING:

    class _AnyEventOf(Event[E], Any):  # type: ignore[misc]
        """Stands for the user's event classes of an Enum, which no type can name: checkers take a subclass of Any for
        each of them, but not for `Event` of another Enum."""


class HandlerFunction(Protocol[E]):  # type: ignore[misc]  # E: what a handler accepts, and so it is contravariant
    """A function that handles the events of one Enum class."""

    def __call__(self, event: _AnyEventOf[E], /) -> Any: ...


KeyOf = Callable[[Any], Hashable]
"""Returns the key of an event."""


def handling_callable(handler: Handler) -> Callable[[Any], Any]:
    """The callable that handles an event: `handler.handle`, or `handler` itself.

    Raises:
        TypeError: it is neither; it is a class instead of an instance; or calling it would not run it: it is a
            generator function, or a coroutine function, which only an event loop can run.
    """
    handle = _handle_of(handler)
    if is_async(handler):
        raise InvalidTypeError(
            f"{text_of(handler)} is an `async def` handler, and there is no event loop to run it. Give the dispatcher "
            "your loop, AsyncDispatcher(loop=loop), or register aio.AsyncioHandler(coroutine, loop=loop). Handlers "
            "that share an Enum class must be plain functions."
        )
    kind = deferred_kind(handle)
    if kind is not None:
        raise InvalidTypeError(
            f"{text_of(handler)} is {kind}: calling it makes a generator and runs nothing. Register a plain function; "
            "it can loop over that generator."
        )
    return running_callable(handle)


def is_async(handler: Any) -> bool:
    """Whether the handler's events are handled by coroutines."""
    return isinstance(handler, AsyncioHandler) or is_coroutine_function(getattr(handler, "handle", handler))


def _handle_of(handler: Any) -> Callable[[Any], Any]:
    """What is called with an event, if it can be: see `handling_callable`."""
    handle = getattr(handler, "handle", handler)
    if not callable(handle):
        raise InvalidTypeError(f"a handler is a callable or has a method handle(event); {text_of(handler)} is neither")
    made = handler if isinstance(handler, type) and not _is_of_class(handler, handle) else called_class(handle)
    if made is not None:
        raise InvalidTypeError(
            f"{text_of(handler)} is a class: calling it makes an instance and handles no event. Register an instance, "
            f"{made.__name__}(...), that has a method handle(event)."
        )
    return handle  # type: ignore[no-any-return]


def _is_of_class(owner: type, handle: Any) -> bool:
    """Whether the class's `handle` needs no instance: it is a class method or a static method."""
    return inspect.ismethod(handle) or isinstance(inspect.getattr_static(owner, "handle", None), staticmethod)


class AsyncioHandler:
    """An `async def` handler for you to register. Its coroutines run on `loop`, by default the dispatcher's.

    Up to `capacity` coroutines run concurrently, and up to `per_key` of them for events with equal keys. These begin in
    the order of the posts. `key(event)` is called on the handler thread. By default it's the event's attribute
    `lock_key`, or None without one. Events with the key None run one after another, whatever `per_key` is.

    In addition, up to `max_waiting` events wait for their keys. When the next one would wait, or when an event waits
    only for one of the `capacity` coroutines to end, the dispatcher handles no more events until it can begin. The
    limits are per dispatcher, and so per partition of a MultiDispatcher.

    Raises:
        TypeError: `coroutine` is neither an `async def` function nor an object whose method `handle` is one, or `key`
            isn't a plain callable.
        ValueError: `capacity` or `per_key` is less than 1, or `max_waiting` is less than 0.
    """

    __slots__ = ("capacity", "function", "handler", "key", "loop", "max_waiting", "per_key")

    def __init__(
        self,
        coroutine: Handler,
        *,
        loop: AbstractEventLoop | None = None,
        key: KeyOf | None = None,
        capacity: int = 100,
        per_key: int = 1,
        max_waiting: int = 1000,
    ) -> None:
        function: Any = _handle_of(coroutine)
        if not is_coroutine_function(function):
            raise InvalidTypeError(
                f"AsyncioHandler takes an `async def` function, or an object whose method handle(event) is one; "
                f"{text_of(coroutine)} is neither. Register a plain handler as it is."
            )
        if key is not None:
            key = require_plain(key, "key", "returns an event's key", is_hot=True)
        for name, value, least in (("capacity", capacity, 1), ("per_key", per_key, 1), ("max_waiting", max_waiting, 0)):
            if value < least:
                raise InvalidValueError(f"{name} must be at least {least}, not {value}")
        # None of these fields changes.
        self.handler = coroutine
        self.function: Callable[[Any], Any] = function
        self.loop = loop
        self.key = key or _lock_key
        self.capacity = capacity
        self.per_key = per_key
        self.max_waiting = max_waiting

    @property
    def is_ordered(self) -> bool:
        """Whether events with equal `lock_key` are handled one after another."""
        return self.per_key == 1 and self.key is _lock_key

    def handle(self, event: Any) -> Any:
        """Raise TypeError: only a dispatcher can run it."""
        raise InvalidTypeError(f"{self!r} can be called only by the dispatcher that it is registered with")

    def __repr__(self) -> str:
        return f"<AsyncioHandler {text_of(self.handler)}>"


def _lock_key(event: Any) -> Any:
    return getattr(event, "lock_key", None)


class MultiListenerHandler:
    """Calls its handlers in the order you added them. If one raises, those after it don't get the event.

    Add and remove handlers before the dispatcher starts, or on its handler thread. The current event still goes to the
    handlers present when its handling began.
    """

    __slots__ = ("_handles", "handlers")

    def __init__(self, *handlers: Handler) -> None:
        self.handlers: tuple[Handler, ...] = ()  # replaced by the thread that adds or removes; any thread reads
        self._handles: tuple[Callable[[Any], Any], ...] = ()  # as handlers, whose callables they are
        for handler in handlers:
            self.add_handler(handler)

    def add_handler(self, handler: Handler) -> None:
        """Add a handler after the others."""
        handle = handling_callable(handler)
        self.handlers = (*self.handlers, handler)
        self._handles = (*self._handles, handle)

    def remove_handler(self, handler: Handler) -> bool:
        """Remove the first handler equal to `handler`, and return whether it was there."""
        if handler not in self.handlers:
            return False
        index = self.handlers.index(handler)
        self.handlers = self.handlers[:index] + self.handlers[index + 1 :]
        self._handles = self._handles[:index] + self._handles[index + 1 :]
        return True

    def handle(self, event: Any) -> None:
        """Hand the event to each handler."""
        for handle in self._handles:
            handle(event)


class DispatcherEventHandler:
    """Where producers post. Bind `handle` once, call it often; any thread may."""

    __slots__ = ("handle",)

    def __init__(self, handle: Callable[[HasType[Enum]], bool]) -> None:
        self.handle = handle
        """True: the event was accepted, and will be handled or counted as discarded. False: it was refused, because the
        queue is full, the journal cannot be written, or the dispatcher drains or has stopped."""

    def __call__(self, event: HasType[Enum]) -> bool:
        return self.handle(event)
