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
from dispatcher.util.rate_limit import RateLimit, RateLimiter

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

E = TypeVar("E", bound=Enum)
E_co = TypeVar("E_co", bound=Enum, covariant=True)
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
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
        self.type: E_co = type
        self.timestamp: float = timestamp

    def __repr__(self) -> str:
        about = f" {self.entity}" if self.entity is not None else ""
        return f"<{type(self).__name__} {kind_of(self.type)}{about}>"


class Answered(Generic[A_co]):
    """Tells type checkers what the handler of an event answers: `class Price(Event[PriceType], Answered[float])`.

    `ask` then returns a `Future[float]`, and `aio.ask` a float. At run time, it does nothing.
    """

    __slots__ = ()


class ScopedEvent:
    """An event of a scope, as its dispatcher has it: `type` is the scope's own, and everything else is of the event."""

    __slots__ = ("scoped_event", "type")

    def __init__(self, type: Enum, event: Any) -> None:
        self.type: Enum = type
        self.scoped_event: Any = event

    def __getattr__(self, name: str) -> Any:
        if name == "scoped_event":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.scoped_event, name)

    def __repr__(self) -> str:
        return repr(self.scoped_event)


def unscoped(event: Any) -> Any:
    """The event itself, if it is a ScopedEvent."""
    return event.scoped_event if type(event) is ScopedEvent else event


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
    `lock_key`, or None without one. Events with the key None run one after another, regardless of `per_key`.

    In addition, up to `max_waiting` events wait for their keys. When the next one would wait, or when an event waits
    only for one of the `capacity` coroutines to end, the dispatcher handles no more events until it can begin. The
    limits are per dispatcher, and so per partition of a MultiDispatcher.

    With a `rate`, for example `RateLimit(10)`, coroutines begin no faster than that, in the order of the posts. An
    event that waits for its turn takes no slot, and counts among the `max_waiting`. The rate covers all dispatchers and
    partitions with which you register this AsyncioHandler. With `per_key=True`, each key has it, on each of them.

    Raises:
        TypeError: `coroutine` is neither an `async def` function nor an object whose method `handle` is one, `key`
            isn't a plain callable, or `rate` isn't a RateLimit.
        ValueError: `capacity` or `per_key` is less than 1, or `max_waiting` is less than 0.
    """

    __slots__ = ("capacity", "function", "handler", "key", "limiter", "loop", "max_waiting", "per_key", "rate")

    def __init__(
        self,
        coroutine: Handler,
        *,
        loop: AbstractEventLoop | None = None,
        key: KeyOf | None = None,
        capacity: int = 100,
        per_key: int = 1,
        max_waiting: int = 1000,
        rate: RateLimit | None = None,
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
        if not isinstance(rate, RateLimit | None):
            raise InvalidTypeError(f"rate is a RateLimit, for example RateLimit(10), not {text_of(rate)}")
        # None of these fields changes.
        self.rate: RateLimit | None = rate
        self.limiter: RateLimiter | None = RateLimiter(rate) if rate is not None and not rate.per_key else None
        self.handler: Handler = coroutine
        self.function: Callable[[Any], Any] = function
        self.loop: AbstractEventLoop | None = loop
        self.key: KeyOf = key or lock_key_of
        self.capacity: int = capacity
        self.per_key: int = per_key
        self.max_waiting: int = max_waiting

    @property
    def is_ordered(self) -> bool:
        """Whether events with equal `lock_key` are handled one after another."""
        return self.per_key == 1 and self.key is lock_key_of

    def handle(self, event: Any) -> Any:
        """Raise TypeError: only a dispatcher can run it."""
        raise InvalidTypeError(f"{self!r} can be called only by the dispatcher that it is registered with")

    def __repr__(self) -> str:
        return f"<AsyncioHandler {text_of(self.handler)}>"


def lock_key_of(event: Any) -> Any:
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
        self.handle: Callable[[HasType[Enum]], bool] = handle
        """True: the event was accepted, and will be handled or counted as discarded. False: it was rejected, because
        the queue is full, the journal cannot be written, or the dispatcher drains or has stopped."""

    def __call__(self, event: HasType[Enum]) -> bool:
        return self.handle(event)
