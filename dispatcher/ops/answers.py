"""The base of the ops API's answers, which are models: the server sends them, and the commands validate them.

Each subject of this package has the models of its answers, how they are made, and its endpoints. The commands import
these modules for their models, so nothing that is slow to import, or that the extra `web` brings, is imported there.

Numbers are finite and within bounds. A client ignores unknown keys, and most missing ones have a default, so that
daemons of other versions can be inspected. A server sends the fields that it was given, without those defaults.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from dispatcher.web.queries import limit_of, number

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops

Item = TypeVar("Item")

Whole = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Real = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]
UnixMs = Whole


class Answer(BaseModel):
    """Base of all answers."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class OfType(Answer):
    """Base of answers about an event type. Each declares the fields itself, which keeps them in their place in JSON."""

    if TYPE_CHECKING:
        event_class: str
        event_type: str

    @property
    def name(self) -> str:
        """`JobEventType.START`, or the class alone if it has no types."""
        return event_name(self.event_class, self.event_type)


class Page(Answer, Generic[Item]):
    """A page of a list."""

    items: list[Item]
    next: str | int | None = None
    """The cursor of the next page."""
    total: Whole | None = None


MOST_SEQ: Final = 10**18
"""The greatest number of a row that a query may name."""
Get: TypeAlias = "Callable[[Ops, Request], Awaitable[Answer | bytes | None]]"
"""An endpoint that reads. Its answer as bytes is JSON already."""
Gets: TypeAlias = Mapping[str, Get]
"""By path."""


def page_of(request: Request, items: list[Item]) -> Page[Item]:
    """The page of a list that is made again for each request: the cursor is a position."""
    limit, start = limit_of(request), number(request, "after", 0, 0, 10**9)
    end = start + limit
    return Page(items=items[start:end], next=str(end) if end < len(items) else None, total=len(items))


def whole(items: list[Item]) -> Page[Item]:
    """A list that is one page."""
    return Page(items=items, next=None, total=len(items))


def event_name(event_class: str, event_type: str) -> str:
    """`JobEventType.START`, or the class alone if it has no types, as a mail's."""
    return f"{event_class}.{event_type}" if event_class and event_type else event_class or event_type or "?"
