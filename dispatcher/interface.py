"""What a component needs of a dispatcher that it is given: one for production, or one for its tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, Unpack, overload

from dispatcher.event import A, Answered, DispatcherEventHandler, E, EventHandler, F, Handler, HandlerFunction, HasType

if TYPE_CHECKING:
    from dispatcher.queue.rules import RuleOptions
    from dispatcher.routes import HandlerOptions


class ScheduledEvent(Protocol):
    """What `post_after`, `post_at`, `post_every` and `scheduled` return. You can use it from any thread."""

    @property
    def key(self) -> str:
        """The key that holds it, or ""."""

    @property
    def event(self) -> Any:
        """The event to post, or a factory that makes it.

        None if an earlier run has passed a factory, or an event whose class this run hasn't declared.
        """

    @property
    def rule(self) -> Mapping[str, Any]:
        """The arguments of `post_every` for its times, such as `{"cron": "0 7 * * *", "tz": "UTC"}`.

        Empty if the event is posted once, or if an earlier release has written it.
        """

    @property
    def due(self) -> float | None:
        """When it's due next, in Unix seconds by the clocks as they are now, or None if never again."""

    @property
    def last_fired(self) -> float | None:
        """The last time that `post_every` has posted for, in Unix seconds, also in an earlier run, or None."""

    def cancel(self) -> bool:
        """Stop it from firing, or return False if it has fired for the last time.

        In write-ahead mode, the cancellation is in the journal on return, as durable as a post: the event doesn't come
        back after a crash.

        Raises:
            JournalError: it won't fire in this run, but the journal can't be written, so it can after the next start.
            ForkedProcessError: this process is a fork of the one that created the dispatcher.
        """

    def is_done(self) -> bool:
        """Whether it won't fire again: it has fired, was cancelled, or the dispatcher has ended."""


class Dispatcher(Protocol):
    """An AsyncDispatcher, a MultiDispatcher, a `scope` of one or, in tests, an InlineDispatcher.

    AsyncDispatcher describes the methods.

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
    ) -> None:
        """Give all events whose type is a member of `event_type` to `handler`. See AsyncDispatcher.register."""

    def on(
        self,
        *event_types: type[Enum] | Enum,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[F], F]:
        """Decorate a handler, for an Enum class or for some of its members."""

    def scope(self, name: str) -> Dispatcher:
        """Return the part called `name`, for one of several equal components on a dispatcher."""

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Remove a handler, and return whether it was registered."""

    def post(self, event: HasType[Enum], /) -> bool:
        """Post an event, and return whether it was accepted."""

    def post_nowait(self, event: HasType[Enum]) -> bool:
        """Post as `post` does, without waiting for room or for the disk."""

    def post_later(self, event: HasType[Enum]) -> Future[bool]:
        """Return a future whose result is True once the event is accepted."""

    @overload
    def ask(self, event: Answered[A]) -> Future[A]: ...
    @overload
    def ask(self, event: HasType[Enum]) -> Future[Any]: ...
    def ask(self, event: Any) -> Future[Any]:
        """Return a future for what the event's handler returns or raises."""

    def post_after(self, seconds: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post an event after `seconds`, in place of the post scheduled under `key`."""

    def post_at(self, unix_s: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post an event at a time, in Unix seconds, in place of the post scheduled under `key`."""

    def post_every(
        self,
        seconds: float | None = None,
        event: HasType[Enum] | Callable[[], HasType[Enum]] | None = None,
        *,
        key: str = "",
        **options: Unpack[RuleOptions],
    ) -> ScheduledEvent:
        """Post an event periodically, or at the times of a cron expression."""

    def scheduled(self, prefix: str = "") -> Mapping[str, ScheduledEvent]:
        """Return the scheduled posts whose keys begin with `prefix`, by key, soonest first."""

    def cancel(self, key: str) -> bool:
        """Cancel the post scheduled under `key`, and return whether there was one."""

    def attempt(self) -> int:
        """In a handler, return the number of its current attempt at the event, starting at 1."""

    def is_redelivering(self) -> bool:
        """In a handler, whether an earlier run accepted the event, and possibly handled it."""
