"""The handlers of each event type, and how many of its events were handled and have failed.

Registrations are per Enum class and change under a lock. The handler thread looks events up by the identity of their
type: hashing an Enum member runs Python code.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from dispatcher.errors import InvalidTypeError, InvalidValueError, UnregisteredEventTypeError
from dispatcher.event import (
    AsyncioHandler,
    E,
    EventHandler,
    F,
    Handler,
    HandlerFunction,
    KeyOf,
    MultiListenerHandler,
    is_async,
)
from dispatcher.retry import OnError, Retry
from dispatcher.util.foreign import class_name, is_member, kind_of, text_of, type_name, type_of
from dispatcher.util.functions import require_plain, takes_options

SEVERITY: dict[Any, int] = {"continue": 0, "stop": 1, "exit": 2}
Bind = Callable[[Handler, bool, OnError], Callable[[Any], Any]]
"""`bind(handler, keeps_context, on_error)` makes the callable that hands an event to a handler, in the context of its
post if the class keeps that."""
SetUpClass = Callable[[type, KeyOf | None, bool, bool], None]
"""`set_up_class(event_class, key_of, keeps_context, is_durable)` tells the queue by which key the events of a class
supersede each other (None: they do not), whether their posts keep the context, and whether they are written ahead."""


NO_TYPE: Final = object()
"""The type of no event."""


class Turn(NamedTuple):
    """What a batch calls with the next event of a type, and the type, whose later events in it may take the same turn.

    Turns are compared by identity.
    """

    handle: Callable[[Any], Any]
    event_type: Any


class HandlerOptions(TypedDict, total=False):
    """The options of `register` and `on`, which `AsyncDispatcher.register` describes. `Part` has their defaults."""

    on_error: OnError
    coalesce_by: KeyOf | None
    context: bool
    events: type | Iterable[type]
    durable: bool


class Part(NamedTuple):
    """A handler with its options, of a class or of some of its members."""

    handler: Handler
    members: tuple[Enum, ...] = ()
    """Those whose events it gets; none: it is of the class itself."""
    on_error: OnError = "continue"
    coalesce_by: KeyOf | None = None
    context: bool = False
    events: tuple[type, ...] = ()
    durable: bool = True


class RegistersHandlers:
    """What all dispatchers do to register handlers. You can call it from any thread."""

    @abstractmethod
    def _register(self, event_class: type[Enum], part: Part) -> None:
        """Register a handler of the class, or of members of it. Several threads call it."""

    @takes_options(HandlerOptions, Part)
    def register(
        self,
        event_type: type[E],
        handler: HandlerFunction[E] | EventHandler,
        **options: Unpack[HandlerOptions],
    ) -> None:
        """Give all events whose type is a member of `event_type` to `handler`, on the handler thread.

        Several handlers of a class run in the order you register them, under the strictest `on_error` among them. When
        a handler raises, you can `continue` with the next event, `stop` the dispatcher, or `exit` the process.

        An `async def` handler runs on the dispatcher's `loop`, and must be the only handler of its class. Up to 100
        coroutines run concurrently, and their events are in hand until they end. Events with equal `lock_key` run one
        after another, as do all events without a key. To use another loop, key or capacity, wrap the handler in
        `aio.AsyncioHandler`.

        `coalesce_by(event)` returns a key, on the producer's thread: a str, int, bytes, Enum member, or a tuple of
        these, as keys are compared under a lock. A newer event of the class replaces a queued one with its key, which
        counts as superseded. An event with the key None replaces nothing. It applies to all events of the class until
        you unregister this handler. Of several, the last one registered applies.

        With `context=True`, your handlers see the context variables of the post, in a private copy. The context is
        empty for earlier and redelivered events.

        `events` declares the classes of the events, pydantic models or dataclasses, which a journal in write-ahead mode
        stores as JSON. In that mode a registration needs it, and posting an event of another class raises
        EventNotDeclaredError. With `durable=False`, the journal doesn't store the posts of the Enum class: they cost no
        write, and don't come back after a crash.

        You can call this from any thread, preferably before `start`. A later call takes effect with the next event
        handled or, for coalescing, the next one posted. If the running handler yields to mail, that's the next batch.

        Raises:
            TypeError: `event_type` isn't an Enum class with members, or `events` contains something other than pydantic
                models and dataclasses. Also if `handler` or `coalesce_by` isn't callable, if calling it runs nothing
                because it's a generator function or, for `handler`, a class, or if `handler` is an `async def` and
                there's no loop.
            ValueError: `on_error` is unknown, one of several handlers of the class is an `async def`, some of them have
                `durable=False` and others don't, or `events` declares two classes of the same name. Also if a journal
                in write-ahead mode would store the class, and no `events` are declared for it.
        """
        self._register(event_type, _part(handler, (), options))

    @takes_options(HandlerOptions, Part)
    def on(
        self,
        *event_types: type[Enum] | Enum,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[F], F]:
        """Decorate a handler: `@dispatcher.on(JobEventType)` is `register(JobEventType, function)`.

        With members, for example `@dispatcher.on(JobEventType.SUBMITTED, JobEventType.FAILED)`, your function gets the
        events of these types, and the handlers of the class get only the others. If the class has no handler, its other
        events fail with UnregisteredEventTypeError. It takes the options of `register`, for the events of these
        members. An event is superseded only by an event of the same `on`.

        The functions for the members of a class must be either all plain or all `async def`. The latter share one order
        by `lock_key` and a capacity of 100.

        The decorator returns the function unchanged. To undo it, call `unregister(JobEventType, function)`.

        Raises:
            TypeError: there's no argument, or one is neither an Enum class nor a member. The decorator also raises it
                as `register` does.
            ValueError: from the decorator, if a member already has a function, if a class has both plain functions and
                `async def`, or as `register`.
        """
        if not event_types:
            raise InvalidTypeError("on takes Enum classes or members of them: `@dispatcher.on(JobEventType.SUBMITTED)`")
        members: dict[type[Enum], dict[int, Enum]] = {}  # by id: members of two Enums can be equal
        classes: dict[type[Enum], None] = {}
        each: Any
        for each in event_types:
            if is_member(each):
                members.setdefault(type(each), {})[id(each)] = each
            elif isinstance(each, type) and issubclass(each, Enum):
                classes[each] = None
            else:
                raise InvalidTypeError(
                    f"on takes Enum classes and members of them, got {text_of(each)}. It is called before it "
                    "decorates: `@dispatcher.on(JobEventType.SUBMITTED)`"
                )

        def decorate(function: F) -> F:
            for event_class in classes:
                self._register(event_class, _part(function, (), options))
            for event_class, of_class in members.items():
                self._register(event_class, _part(function, tuple(of_class.values()), options))
            return function

        return decorate


def _part(handler: Handler, members: tuple[Enum, ...], options: HandlerOptions) -> Part:
    events = options.get("events", ())
    checked: dict[str, Any] = {**options, "events": (events,) if isinstance(events, type) else tuple(events)}
    return Part(handler, members, **checked)


class AsyncMembers:
    """The `async def` functions of members of one Enum class as one handler, so that all their events share its order
    by key and its capacity."""

    def __init__(self, event_class: type[Enum]) -> None:
        self._event_class = event_class  # never changes
        # By the member's id. Added under the routing table's lock, and never removed, because events
        # in hand may not have begun; event loops read.
        self._functions: dict[int, Callable[[Any], Any]] = {}

    def add(self, members: Sequence[Enum], handler: Handler) -> None:
        function: Any = getattr(handler, "handle", handler)
        for member in members:
            self._functions[id(member)] = function

    async def handle(self, event: Any) -> Any:
        return await self._functions[id(event.type)](event)

    def __repr__(self) -> str:
        return f"<functions of members of {self._event_class.__name__}>"


class KeyOfMember:
    """Coalescing by the `coalesce_by` of the handlers that an event's type has.

    An event supersedes another only if the same `on` covers both. Equal keys of different `on`s are different keys.
    """

    def __init__(self, of_class: KeyOf | None, parts: Sequence[tuple[tuple[Enum, ...], KeyOf | None]]) -> None:
        self._of_class = (0, of_class)  # never changes
        self._of_member = {  # never changes
            id(member): (number, key_of)
            for number, (members, key_of) in enumerate(parts, start=1)
            for member in members
        }

    def __call__(self, event: Any) -> tuple[int, Any] | None:
        number, key_of = self._of_member.get(id(type_of(event)), self._of_class)
        key = key_of(event) if key_of is not None else None
        return None if key is None else (number, key)


class Assigned(NamedTuple):
    """What handles the events of a type, and what happens if it raises."""

    handle: Callable[[Any], Any]
    on_error: OnError
    handlers: tuple[Handler, ...]
    """Those that `handle` calls."""


class Registration:
    """The handlers of one event class, in order. Immutable."""

    __slots__ = ("_of_class", "_of_member", "async_members", "coalesce_by", "is_durable", "keeps_context", "parts")

    def __init__(self, parts: tuple[Part, ...], bind: Bind, async_members: AsyncMembers) -> None:
        """`async_members`: the same one for all registrations of the class while it has any."""
        self.parts: tuple[Part, ...] = parts
        self.async_members: AsyncMembers = async_members
        keeps_context = any(part.context for part in parts)
        self.keeps_context: bool = keeps_context
        self.is_durable: bool = parts[0].durable  # `require_compatible`: all say the same
        self._of_class: Assigned | None = None  # the members without a function of their own
        whole = [part for part in parts if not part.members]
        if whole:
            handlers = tuple(part.handler for part in whole)
            handler = handlers[0] if len(handlers) == 1 else MultiListenerHandler(*handlers)
            on_error = whole[0].on_error
            if len(whole) > 1:
                on_error = max((part.on_error for part in whole), key=SEVERITY.__getitem__)
            self._of_class = Assigned(bind(handler, keeps_context, on_error), on_error, handlers)
        self._of_member: dict[int, Assigned] = {}  # by the member's id
        for part in parts:
            if part.members:
                handler = self._handler_of_members(part)
                assigned = Assigned(bind(handler, keeps_context, part.on_error), part.on_error, (handler,))
                self._of_member.update({id(member): assigned for member in part.members})
        keys_of: list[KeyOf | None] = [part.coalesce_by for part in whole if part.coalesce_by is not None]
        self.coalesce_by: KeyOf | None = keys_of[-1] if keys_of else None
        if self._of_member and any(part.coalesce_by is not None for part in parts):
            of_members = [(part.members, part.coalesce_by) for part in parts if part.members]
            self.coalesce_by = KeyOfMember(self.coalesce_by, of_members)

    def _handler_of_members(self, part: Part) -> Handler:
        if not is_async(part.handler):
            return part.handler
        self.async_members.add(part.members, part.handler)
        return self.async_members

    def of(self, event_type: Any) -> Assigned | None:
        """What handles the events of that type; None: nothing does."""
        return self._of_member.get(id(event_type), self._of_class)


@dataclass(slots=True, eq=False, repr=False)
class Route:
    """One event type: its handler, and the counts of its events."""

    event_type: Any  # never changes
    event_class: str = field(init=False)  # never changes
    name: str = field(init=False)  # never changes

    # What a registration gives it: replaced under the table's lock, read by any thread.
    handle: Callable[[Any], Any] = field(init=False)
    plain_turn: Turn = field(init=False)  # calls `handle`
    on_error: OnError = field(init=False)
    registered: bool = field(init=False)

    # Plain or timed; the handler thread replaces it, and other threads under the table's lock.
    turn: Turn = field(init=False)
    timed_turn: Turn | None = None  # times one event; set once, by the handler thread
    # Counts: handler thread writes, any reads.
    handled: int = 0
    failed: int = 0
    retried: int = 0  # failed attempts that another one follows
    slow: int = 0  # runs longer than handler_warn_after_s
    # Events timed by themselves, and the sums of their times; handler thread writes, any reads.
    timed: int = 0
    handling_ns: int = 0
    queue_timed: int = 0
    queue_ns: int = 0
    journal_kind: int = -1  # the journal's number for handled events of the type; -1: unknown; handler thread

    def __post_init__(self) -> None:
        self.event_class = class_name(self.event_type)
        # Only members of Enums have a name. Other values are counted together: there may be any number of them.
        self.name = type_name(self.event_type) if is_member(self.event_type) else "(no Enum member)"


def require_members(event_type: Any) -> None:
    """Raises TypeError if no event can have a type of this class."""
    if not (isinstance(event_type, type) and issubclass(event_type, Enum)):
        raise InvalidTypeError(f"register takes an Enum class first, got {text_of(event_type)}")
    if not event_type._member_names_:  # its other attributes may be members of that name
        raise InvalidTypeError(
            f"register takes an Enum class with members first; {event_type.__name__} has none, so no event has a type "
            "of this class. Register each of its subclasses that has members."
        )


def require_function(part: Part) -> None:
    """Raises TypeError for an AsyncioHandler of members: its loop, key and capacity are for a class."""
    if part.members and isinstance(part.handler, AsyncioHandler):
        raise InvalidTypeError(
            f"{kind_of(part.members[0])}: {text_of(part.handler)} is for an Enum class. Register it for the class, or "
            "decorate its `async def` function for the members."
        )


def require_compatible(event_class: type[Enum], parts: Sequence[Part]) -> None:
    """Raises ValueError if these handlers cannot share a class."""
    whole = [part for part in parts if not part.members]
    if len(whole) > 1 and any(not isinstance(part.on_error, str) for part in whole):
        raise InvalidValueError(
            f"{event_class.__name__}: a handler whose on_error is a Retry or a function is the only one of its Enum "
            "class, because another attempt would run the others again. Call them from it."
        )
    if len({part.durable for part in parts}) > 1:
        raise InvalidValueError(
            f"{event_class.__name__}: some handlers are registered with durable=False and others are not, but the "
            "events of an Enum class are all stored or none is. Register all the same way, or give the events that "
            "need not survive an Enum class of their own."
        )
    taken: set[int] = set()
    for member in chain.from_iterable(part.members for part in parts):
        if id(member) in taken:
            raise InvalidValueError(
                f"{kind_of(member)} has a function already, and a member has one. Call the other one from it, or "
                "unregister one of the two."
            )
        taken.add(id(member))
    kinds = {is_async(part.handler) for part in parts}
    if len(parts) < 2 or True not in kinds:
        return
    if whole:
        raise InvalidValueError(
            f"{event_class.__name__}: an `async def` handler is the only one of its Enum class, because an event ends "
            "with its coroutine. Call the other handler from the coroutine, or unregister one of the two."
        )
    if False in kinds:
        raise InvalidValueError(
            f"{event_class.__name__}: the functions of its members are all `async def` or all plain, so that events "
            "of equal keys keep their order. Make them one kind."
        )


class RoutingTable:
    """The registrations and the routes of one dispatcher. `register` and `unregister` are for any thread.

    `default` handles the classes without a registration; None: their events fail. `bind` is for any thread.
    `set_up_class` is called under the table's lock, after each change of a class.
    """

    def __init__(self, name: str, default: Handler | None, bind: Bind, set_up_class: SetUpClass) -> None:
        self._name = name
        self._bind = bind
        self._set_up_class = set_up_class
        self._default = (
            Assigned(bind(default, False, "continue"), "continue", (default,)) if default is not None else None
        )
        self._lock = threading.Lock()  # held while a class is bound and set up, so before the inbox's lock
        self._registrations: dict[type, Registration] = {}  # guarded by _lock
        # By the id of the type, which the route keeps alive. The handler thread adds routes under _lock and reads them
        # without it; no route is ever removed.
        self.by_type: dict[int, Route] = {}
        self._of_class: dict[type, list[Route]] = {}  # guarded by _lock: the same routes by Enum class
        self.untimed: deque[Route] = deque()  # those whose next event is not timed by itself; handler thread
        self.has_changed: bool = False  # any thread sets it, after a change; the handler thread resets it
        self.others: Route = Route(None)  # events whose type is not an Enum member; never changes
        self.others.event_class = "(none)"
        self._connect(self.others)
        self.others.handle = self._refuse
        self.others.turn = self.others.plain_turn = Turn(self._refuse, NO_TYPE)

    def register(self, event_type: type[Enum], part: Part) -> None:
        """Add a handler to the class, or in its place to members of it. Raises as `RegistersHandlers.register`."""
        require_members(event_type)
        require_function(part)
        if part.coalesce_by is not None:
            key_of = require_plain(part.coalesce_by, "coalesce_by", "returns an event's key", is_hot=True)
            part = part._replace(coalesce_by=key_of)
        self._check_policy(event_type, part)
        self._bind(part.handler, part.context, part.on_error)  # raises if it is not a handler
        with self._lock:
            present = self._registrations.get(event_type)
            parts = (*(present.parts if present is not None else ()), part)
            require_compatible(event_type, parts)
            async_members = present.async_members if present is not None else AsyncMembers(event_type)
            self._registrations[event_type] = Registration(parts, self._bind, async_members)
            self._reconnect(event_type)

    @staticmethod
    def _check_policy(event_type: type[Enum], part: Part) -> None:
        on_error = part.on_error
        if isinstance(on_error, str) and on_error in SEVERITY:
            return
        if isinstance(on_error, Retry):
            handler = part.handler
            if on_error.ordered_by_key and isinstance(handler, AsyncioHandler) and not handler.is_ordered:
                raise InvalidValueError(
                    f"{event_type.__name__}: Retry(ordered_by_key=True) needs an AsyncioHandler with per_key=1 and "
                    "without a key function: others would let events of one lock_key overtake each other."
                )
            return
        if not callable(on_error) or isinstance(on_error, type):  # the class Retry, instead of a Retry()
            raise InvalidValueError(
                f"on_error is one of {', '.join(SEVERITY)}, a Retry, or a function of the event and its error, not "
                f"{on_error!r}"
            )
        require_plain(on_error, "on_error", "decides about an error")

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Remove the first registration of the handler, with its policy and key; returns whether there was one."""
        while True:
            present = self._registrations.get(event_type)
            if present is None:
                return False
            parts = list(present.parts)
            # Not under the lock: comparing handlers runs foreign code.
            found = next((index for index, part in enumerate(parts) if part.handler == handler), None)
            if found is None:
                return False
            del parts[found]
            changed = Registration(tuple(parts), self._bind, present.async_members) if parts else None
            with self._lock:
                if self._registrations.get(event_type) is present:  # otherwise another thread was faster
                    if changed is not None:
                        self._registrations[event_type] = changed
                    else:
                        del self._registrations[event_type]
                    self._reconnect(event_type)
                    return True

    def handlers_of(self, event_type: Any) -> list[Handler]:
        """The handlers of an event's type, which may be any object. Any thread."""
        assigned = self._assigned(event_type)
        return list(assigned.handlers) if assigned is not None else []

    def policy_of(self, event_type: Any) -> OnError:
        """What happens when an event of the type fails. Any thread."""
        assigned = self._assigned(event_type)
        return assigned.on_error if assigned is not None else "continue"

    def find(self, event_type: Any) -> Route:
        """The route of an event's type, which may be any object. Handler thread only."""
        route = self.by_type.get(id(event_type))
        if route is None:
            if not is_member(event_type):
                return self.others
            route = Route(event_type)
            with self._lock:
                self._connect(route)
                self.by_type[id(event_type)] = route
                self._of_class.setdefault(type(event_type), []).append(route)
            self.untimed.append(route)
        return route

    def unregistered(self, event_type: Any) -> UnregisteredEventTypeError:
        """The error of an event without a handler."""
        return UnregisteredEventTypeError(self._name, event_type)

    def add_internal(self, event_type: Enum, handle: Callable[[Any], Any]) -> None:
        """Route an internal type to `handle`. `all` leaves it out."""
        route = Route(event_type)
        route.handle, route.on_error, route.registered = handle, "continue", True
        route.turn = route.plain_turn = Turn(handle, event_type)
        route.event_class = ""
        self.by_type[id(event_type)] = route

    def find_untimed(self) -> None:
        """After a change, which may have reset the turn of a route: find those that are not timed. Handler thread."""
        self.has_changed = False
        routes = [route for route in self.by_type.copy().values() if route.event_class]
        self.untimed = deque(route for route in routes if route.turn is not route.timed_turn)

    def all(self) -> Iterator[Route]:
        """The routes of users' events that were handled or have failed. Any thread."""
        for route in (*self.by_type.copy().values(), self.others):
            if route.event_class and (route.handled or route.failed or route.retried):
                yield route

    def _reconnect(self, event_type: type[Enum]) -> None:
        """Under _lock: the class's registration has changed."""
        for route in self._of_class.get(event_type, ()):
            self._connect(route)
        registration = self._registrations.get(event_type)
        key_of = registration.coalesce_by if registration is not None else None
        keeps_context = registration is not None and registration.keeps_context
        is_durable = registration is None or registration.is_durable
        self._set_up_class(event_type, key_of, keeps_context, is_durable)
        self.has_changed = True

    def _connect(self, route: Route) -> None:
        """Under _lock: point the route to the current registration of its class."""
        assigned = self._assigned(route.event_type)
        route.registered = assigned is not None
        route.handle = assigned.handle if assigned is not None else self._refuse
        route.on_error = assigned.on_error if assigned is not None else "continue"
        route.plain_turn = Turn(route.handle, route.event_type)
        if route.timed_turn is None or route.turn is not route.timed_turn:
            route.turn = route.plain_turn

    def _assigned(self, event_type: Any) -> Assigned | None:
        """What handles the events of that type. Any thread."""
        registration = self._registrations.get(type(event_type))
        return (registration.of(event_type) if registration is not None else None) or self._default

    def _refuse(self, event: Any) -> None:
        raise self.unregistered(type_of(event))
