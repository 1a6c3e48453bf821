"""Several of one component on a dispatcher, each with events, handlers and timers of its own.

A scope posts each event in a `ScopedEvent`. Its type is a member of a twin: an Enum class that the scope makes for
each Enum class of its events, named after both, such as `batcher-a/JobEventType`. To the dispatcher, the events of two
scopes are of two classes: it routes, counts and stores them separately. Handlers get the original events.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from enum import Enum
from typing import Any, Unpack, overload

from dispatcher.errors import InvalidTypeError, InvalidValueError
from dispatcher.event import (
    A,
    Answered,
    AsyncioHandler,
    DispatcherEventHandler,
    Handler,
    HasType,
    ScopedEvent,
    handling_callable,
    is_async,
    lock_key_of,
    unscoped,
)
from dispatcher.interface import Dispatcher, ScheduledEvent
from dispatcher.queue.rules import RuleOptions, rule_of
from dispatcher.retry import Retry
from dispatcher.routes import Part, RegistersHandlers, require_function, require_members
from dispatcher.util.foreign import is_member, kind_of, text_of, type_of
from dispatcher.util.functions import require_kind, require_plain, takes_options


class HasScopes(RegistersHandlers):
    """A dispatcher that can be shared by equal components."""

    def scope(self, name: str) -> Scope:
        """Return the part of the dispatcher called `name`, for one of several equal components. The same one each time.

        It registers, posts, asks and schedules as the dispatcher does. Its handlers get only the events that are posted
        through it, also of the same Enum classes. Metrics and the journal show those as `NAME/CLASS`.

        Raises:
            TypeError, ValueError: `name` isn't a str, is empty, or has a "/" or a character that isn't printable.
        """
        return _scope_of(self, _checked(name))


class Scope(RegistersHandlers):
    """A part of a dispatcher for one component: a Dispatcher whose handlers get only what is posted through it.

    `dispatcher.scope("batcher-a")` makes it. Metrics, journal, logs and pages show its event classes with its name,
    such as `batcher-a/JobEventType`, and the keys of its timers as `batcher-a/KEY`. Any thread can use it.

    Its events share the dispatcher's queue, handler thread, order, limits and life. A key function of a MultiDispatcher
    gets an object with the attributes of the event, whose `type` is the scope's own.
    """

    def __init__(self, dispatcher: Any, scope: str) -> None:
        require_kind(dispatcher, "dispatcher", HasScopes)
        self.dispatcher: Dispatcher = dispatcher
        self.scope_name = scope
        self.name: str = f"{dispatcher.name}/{scope}"
        self._lock = threading.Lock()  # a leaf lock
        # The member of the twin for each member of an Enum class, by id: the class keeps its members alive. Replaced
        # under the lock, any thread reads.
        self._twins: dict[int, Enum] = {}
        self._classes: dict[type[Enum], type[Enum]] = {}  # the twin of each class; added under the lock, any reads
        self._registered: list[tuple[type[Enum], Handler, Handler]] = []  # what, and as what; guarded by the lock
        self._event_handler = DispatcherEventHandler(self.post)

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """Post as in Hadoop: `event_handler.handle(event)` is `post(event)`."""
        return self._event_handler

    def scope(self, name: str) -> Scope:
        """Return the scope `name` within this one: that is the dispatcher's scope `SCOPE/NAME`."""
        return _scope_of(self.dispatcher, f"{self.scope_name}/{_checked(name)}")

    # -- registering ---------------------------------------------------------------------------------------------------

    def _register(self, event_class: type[Enum], part: Part) -> None:
        require_members(event_class)
        require_function(part)
        twin = self._twin_of(event_class)
        for member in part.members:
            if id(member) not in self._twins:
                raise InvalidValueError(
                    f"{self.name}: {kind_of(member)} is a combination of flags or none, and a scope has the events of "
                    "single flags alone. Name those, or register for it on the dispatcher."
                )
        handler = _for_scope(part.handler)
        own = part._replace(
            handler=handler,
            members=tuple(self._twins[id(member)] for member in part.members),
            on_error=_on_error(part.on_error),
            coalesce_by=_unwrapping(part.coalesce_by, "coalesce_by", "returns an event's key"),
        )
        self.dispatcher._register(twin, own)  # type: ignore[attr-defined]  # a dispatcher, or a test's
        with self._lock:
            self._registered.append((event_class, part.handler, handler))

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Remove a handler, and return whether it was registered."""
        with self._lock:
            registered = [each for each in self._registered if each[0] is event_type]
        for each in registered:
            if each[1] == handler:  # not under the lock: that runs foreign code
                with self._lock:
                    self._registered = [other for other in self._registered if other is not each]
                return self.dispatcher.unregister(self._twin_of(event_type), each[2])
        return False

    def _twin_of(self, event_class: type[Enum]) -> type[Enum]:
        """The Enum class that stands for another one in this scope."""
        twin = self._classes.get(event_class)
        if twin is not None:
            return twin
        with self._lock:
            if event_class not in self._classes:
                names = event_class._member_names_
                make: Any = Enum
                made = make(f"{self.scope_name}/{event_class.__name__}", names)
                originals = {name: event_class._member_map_[name] for name in names}
                made._originals_ = originals
                members = {id(originals[name]): made._member_map_[name] for name in names}
                self._twins = {**self._twins, **members}
                self._classes[event_class] = made
            return self._classes[event_class]

    def scoped(self, event: Any) -> Any:
        """The event as the dispatcher gets it. What is no event, or has a combination of flags, stays as it is."""
        event_type = type_of(event)
        twin = self._twins.get(id(event_type))
        if twin is None:
            if not is_member(event_type):
                return event
            self._twin_of(type(event_type))
            twin = self._twins.get(id(event_type))
        return event if twin is None else ScopedEvent(twin, event)

    # -- posting -------------------------------------------------------------------------------------------------------

    def post(self, event: HasType[Enum], /) -> bool:
        """Post an event to the handlers of this scope, and return whether it was accepted. See AsyncDispatcher.post."""
        return self.dispatcher.post(self.scoped(event))

    def post_nowait(self, event: HasType[Enum]) -> bool:
        """Post as `post` does, without waiting for room or for the disk. See AsyncDispatcher.post_nowait."""
        return self.dispatcher.post_nowait(self.scoped(event))

    def post_later(self, event: HasType[Enum]) -> Future[bool]:
        """Return a future whose result is True once the event is accepted. See AsyncDispatcher.post_later."""
        return self.dispatcher.post_later(self.scoped(event))

    @overload
    def ask(self, event: Answered[A]) -> Future[A]: ...
    @overload
    def ask(self, event: HasType[Enum]) -> Future[Any]: ...
    def ask(self, event: Any) -> Future[Any]:
        """Return a future for what the event's handler returns or raises. See AsyncDispatcher.ask."""
        return self.dispatcher.ask(self.scoped(event))

    def attempt(self) -> int:
        """In a handler, return the number of its current attempt at the event, starting at 1."""
        return self.dispatcher.attempt()

    def is_redelivering(self) -> bool:
        """In a handler, whether an earlier run accepted the event, and possibly handled it."""
        return self.dispatcher.is_redelivering()

    # -- timers --------------------------------------------------------------------------------------------------------

    def post_after(self, seconds: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post an event after `seconds`. See AsyncDispatcher.post_after; keys are the scope's own."""
        return self._own(self.dispatcher.post_after(seconds, self.scoped(event), key=self._key(key)))

    def post_at(self, unix_s: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post an event at a time, in Unix seconds. See AsyncDispatcher.post_at; keys are the scope's own."""
        return self._own(self.dispatcher.post_at(unix_s, self.scoped(event), key=self._key(key)))

    @takes_options(RuleOptions, rule_of)
    def post_every(
        self,
        seconds: float | None = None,
        event: HasType[Enum] | Callable[[], HasType[Enum]] | None = None,
        *,
        key: str = "",
        **options: Unpack[RuleOptions],
    ) -> ScheduledEvent:
        """Post an event periodically. See AsyncDispatcher.post_every; keys are the scope's own."""
        made = self.scoped(event)
        if made is event and callable(event):
            made = _Factory(self, event)
        return self._own(self.dispatcher.post_every(seconds, made, key=self._key(key), **options))

    def scheduled(self, prefix: str = "") -> Mapping[str, ScheduledEvent]:
        """Return what is scheduled under keys of this scope that begin with `prefix`, by key, soonest first."""
        found = self.dispatcher.scheduled(f"{self.scope_name}/{prefix}")
        return {key.removeprefix(f"{self.scope_name}/"): self._own(each) for key, each in found.items()}

    def cancel(self, key: str) -> bool:
        """Cancel what is scheduled under `key` of this scope, and return whether something was."""
        return self.dispatcher.cancel(self._key(key))

    def _key(self, key: str) -> str:
        return f"{self.scope_name}/{key}" if key and isinstance(key, str) else key

    def _own(self, scheduled: ScheduledEvent) -> ScheduledEvent:
        return _OwnScheduled(scheduled, self.scope_name)

    def __repr__(self) -> str:
        return f"<Scope {self.name}>"


class _OwnScheduled:
    """What is scheduled in a scope, as its component sees it."""

    def __init__(self, scheduled: ScheduledEvent, scope: str) -> None:
        self._scheduled = scheduled
        self._scope = scope

    @property
    def key(self) -> str:
        return self._scheduled.key.removeprefix(f"{self._scope}/")

    @property
    def event(self) -> Any:
        event = self._scheduled.event
        return event.make if isinstance(event, _Factory) else unscoped(event)

    @property
    def rule(self) -> Mapping[str, Any]:
        return self._scheduled.rule

    @property
    def due(self) -> float | None:
        return self._scheduled.due

    @property
    def last_fired(self) -> float | None:
        return self._scheduled.last_fired

    def cancel(self) -> bool:
        return self._scheduled.cancel()

    def is_done(self) -> bool:
        return self._scheduled.is_done()

    def __repr__(self) -> str:
        return repr(self._scheduled)


class _Factory:
    """Makes the events of a scope's `post_every`."""

    def __init__(self, scope: Scope, make: Callable[[], Any]) -> None:
        self._scope = scope
        self.make = make
        self._call = require_plain(make, "the factory of post_every", "makes an event")

    def __call__(self) -> Any:
        return self._scope.scoped(self._call())

    def __repr__(self) -> str:
        return text_of(self.make)


class _ScopedHandler:
    """A handler that gets the event itself."""

    def __init__(self, handler: Handler, handle: Callable[[Any], Any]) -> None:
        self._handler = handler
        self.handle = handle

    def __repr__(self) -> str:
        return text_of(self._handler)


def _scope_of(dispatcher: Any, name: str) -> Scope:
    """The dispatcher's scope of that name, made by the first call."""
    scopes: dict[str, Scope] = dispatcher.__dict__.setdefault("_scopes", {})  # any thread, each with one call
    return scopes.get(name) or scopes.setdefault(name, Scope(dispatcher, name))


def _checked(name: str) -> str:
    """Raises TypeError, ValueError: it cannot be a scope's name."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"a scope's name is a str, not {text_of(name)}")
    if not name or "/" in name or not name.isprintable():
        raise InvalidValueError(f"a scope's name is printable, without '/', and not empty; got {name!r}")
    return name


def _for_scope(handler: Handler) -> Handler:
    """The handler for a ScopedEvent. Raises as `register`."""
    if isinstance(handler, AsyncioHandler):
        own = copy.copy(handler)
        own.handler = _ScopedHandler(handler.handler, _awaiting(handler.function))
        own.function = own.handler.handle
        if handler.key is not lock_key_of:
            own.key = _unwrapping(handler.key, "key", "returns an event's key")
        if handler.rate is not None:
            own.rate = replace(handler.rate, cost=_unwrapping(handler.rate.cost, "cost", "returns an event's cost"))
        return own
    if is_async(handler):
        function: Any = getattr(handler, "handle", handler)
        return _ScopedHandler(handler, _awaiting(function))
    handle = handling_callable(handler)
    return _ScopedHandler(handler, lambda event: handle(event.scoped_event))


def _awaiting(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def handle(event: Any) -> Any:
        return await function(event.scoped_event)

    return handle


def _on_error(on_error: Any) -> Any:
    """What `register` knows stays as it is, and so does what it refuses."""
    if not callable(on_error) or isinstance(on_error, type | Retry):
        return on_error
    decide = require_plain(on_error, "on_error", "decides about an error")
    return lambda event, error: decide(unscoped(event), error)


def _unwrapping(function: Any, name: str, does: str) -> Any:
    if function is None:
        return None
    call = require_plain(function, name, does, is_hot=True)
    return lambda event: call(unscoped(event))
