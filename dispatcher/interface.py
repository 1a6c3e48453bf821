"""What a component needs of a dispatcher that it is given: one for production, or one for its tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from dispatcher.event import DispatcherEventHandler, E, EventHandler, F, Handler, HandlerFunction, HasType

if TYPE_CHECKING:
    from dispatcher.routes import HandlerOptions


class ScheduledEvent(Protocol):
    """An event that is posted at a time, or again and again."""

    @property
    def due(self) -> float | None:
        """When it is due next, in Unix seconds; None: never again."""

    def cancel(self) -> bool:
        """Fire no more; returns False if it has fired for the last time."""

    def is_done(self) -> bool:
        """Whether it will not fire again."""


class Dispatcher(Protocol):
    """An AsyncDispatcher, a MultiDispatcher or, in tests, an InlineDispatcher. AsyncDispatcher describes the methods.

    Use this type in a component that registers handlers and posts, and doesn't start or stop the dispatcher.
    """

    name: str

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """Post as in Hadoop: `event_handler.handle(event)` is `post(event)`."""

    def register(
        self,
        event_type: type[E],
        handler: HandlerFunction[E] | EventHandler,
        **options: Unpack[HandlerOptions],
    ) -> None: ...

    def on(
        self,
        *event_types: type[Enum] | Enum,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[F], F]:
        """Decorate a handler, for an Enum class or for some of its members."""

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Remove a handler, and return whether it was registered."""

    def post(self, event: HasType[Enum], /) -> bool:
        """Post an event, and return whether it was accepted."""

    def post_nowait(self, event: HasType[Enum]) -> bool:
        """Post as `post` does, without waiting for room or for the disk."""

    def post_later(self, event: HasType[Enum]) -> Future[bool]:
        """Return a future whose result is True once the event is accepted."""

    def ask(self, event: HasType[Enum]) -> Future[Any]:
        """Return a future for what the event's handler returns or raises."""

    def post_after(self, seconds: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post an event after `seconds`, in place of what is scheduled under `key`."""

    def post_at(self, unix_s: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post an event at a time, in Unix seconds, in place of what is scheduled under `key`."""

    def post_every(
        self,
        seconds: float,
        event_or_factory: HasType[Enum] | Callable[[], HasType[Enum]],
        *,
        first: float | None = None,
        jitter: float = 0.0,
        key: str = "",
    ) -> ScheduledEvent:
        """Post an event periodically."""

    def scheduled(self, prefix: str = "") -> Mapping[str, ScheduledEvent]:
        """Return what is scheduled under keys that begin with `prefix`, by key, soonest first."""

    def cancel(self, key: str) -> bool:
        """Cancel what is scheduled under `key`, and return whether something was."""

    def attempt(self) -> int:
        """In a handler, return the number of its current attempt at the event, starting at 1."""

    def is_redelivering(self) -> bool:
        """In a handler, whether an earlier run accepted the event, and possibly handled it."""
