"""What waits for its time, in the ops API: scheduled posts, and events that have failed and are tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dispatcher.ops.answers import Gets, OfType, Page, UnixMs, Whole
from dispatcher.ops.dispatchers import EVERY, Planned, planned
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.util.units import milliseconds
from dispatcher.web.queries import limit_of, number

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops
    from dispatcher.view import DispatcherView, RetryingEvent

MOST_AFTER: Final = 1_000_000
"""The greatest place in a list that a query may name."""


class Retrying(OfType):
    """One of `/dispatchers/{name}/retrying`."""

    event_class: str = ""
    event_type: str = ""
    entity: str | None = None
    attempt: Whole = 0
    due: UnixMs
    error_class: str = ""
    message: str = ""
    held_back: Whole = 0


def retrying(view: DispatcherView, limit: int, start: int = 0, sight: Sight = WHOLE) -> list[Retrying]:
    """The visible events that retry, soonest first, without the first `start`."""
    found = view.retrying(start + limit if sight.is_whole else EVERY)
    seen = (each for each in found if sight.is_whole or sight.sees(each.entity))
    return [_retrying(each, sight) for each in seen][start : start + limit]


def _retrying(event: RetryingEvent, sight: Sight) -> Retrying:
    message = event.message if sight.is_whole else ""
    return Retrying(**event._replace(due=milliseconds(event.due), message=message)._asdict())


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def _scheduled(ops: Ops, request: Request) -> Page[Planned]:
    """Nothing for those who may not see everything: an event can be about anything."""
    view, limit, start = ops.view(request), limit_of(request), number(request, "after", 0, 0, MOST_AFTER)
    sight, prefix = await ops.sight(request), request.query_params.get("prefix", "")
    if not sight.is_whole:
        return Page(items=[])
    items = await ops.workers.run(lambda: planned(view, limit + 1, start, prefix))
    return Page(items=items[:limit], next=str(start + limit) if len(items) > limit else None)


async def _retries(ops: Ops, request: Request) -> Page[Retrying]:
    view, limit, start = ops.view(request), limit_of(request), number(request, "after", 0, 0, MOST_AFTER)
    sight = await ops.sight(request)
    items = await ops.workers.run(lambda: retrying(view, limit + 1, start, sight))
    return Page(items=items[:limit], next=str(start + limit) if len(items) > limit else None)


GETS: Final[Gets] = {
    "/dispatchers/{name:path}/scheduled": _scheduled,
    "/dispatchers/{name:path}/retrying": _retries,
}
