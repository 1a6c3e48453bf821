"""Handlers of single members of an Enum class, as `on` registers them.

A member's function takes the place of the class's handlers: each event goes to the one or to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

from dispatcher.errors import InvalidTypeError, InvalidValueError
from dispatcher.event import AsyncioHandler, Handler, KeyOf, is_async
from dispatcher.util.foreign import kind_of, text_of, type_of

F = TypeVar("F", bound=Callable[[Any], Any])


def require_function(handler: Handler, members: Sequence[Enum]) -> None:
    """Raises TypeError for an AsyncioHandler: its loop, key and capacity are for a class, not for some members."""
    if members and isinstance(handler, AsyncioHandler):
        raise InvalidTypeError(
            f"{kind_of(members[0])}: {text_of(handler)} is for an Enum class. Register it for the class, or decorate "
            "its `async def` function for the members."
        )


def require_compatible(event_class: type[Enum], parts: Sequence[tuple[Handler, tuple[Enum, ...]]]) -> None:
    """Raises ValueError if these handlers cannot share a class. No members: the handler is for the class itself."""
    taken: set[int] = set()
    for _, members in parts:
        for member in members:
            if id(member) in taken:
                raise InvalidValueError(
                    f"{kind_of(member)} has a function already, and a member has one. Call the other one from it, or "
                    "unregister one of the two."
                )
            taken.add(id(member))
    if len(parts) < 2 or not any(is_async(handler) for handler, _ in parts):
        return
    if not all(members for _, members in parts):
        raise InvalidValueError(
            f"{event_class.__name__}: an `async def` handler is the only one of its Enum class, because an event ends "
            "with its coroutine. Call the other handler from the coroutine, or unregister one of the two."
        )
    if not all(is_async(handler) for handler, _ in parts):
        raise InvalidValueError(
            f"{event_class.__name__}: the functions of its members are all `async def` or all plain, so that events "
            "of equal keys keep their order. Make them one kind."
        )


class AsyncMembers:
    """The `async def` functions of members of one Enum class as one handler, so that all their events share its order
    by key and its capacity."""

    def __init__(self, event_class: type[Enum]) -> None:
        self._event_class = event_class  # never changes
        # By the member's id. Added under the routing table's lock, in single steps, and never removed, because events
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
