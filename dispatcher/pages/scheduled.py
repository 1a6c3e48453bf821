"""/scheduled: what is due when, by key, with a periodic post's last time and next, and what is tried again, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.routing import BaseRoute

from dispatcher.ops import waiting
from dispatcher.ops.dispatchers import Planned, planned
from dispatcher.ops.sight import Sight
from dispatcher.pages.site import Site, View
from dispatcher.view import DispatcherView
from dispatcher.web.queries import number

PATH: Final = "/scheduled"
_ROWS_OF_ONE: Final = 100
_ROWS_OF_ALL: Final = 20
_DISPATCHERS_SHOWN: Final = 20
_LONGEST_PREFIX: Final = 200


def routes(site: Site) -> Sequence[BaseRoute]:
    return [site.get(PATH, scheduled_view)]


async def scheduled_view(site: Site, request: Request) -> View:
    query, sight = request.query_params, await site.sight(request)
    name, prefix = query.get("dispatcher", ""), query.get("prefix", "")[:_LONGEST_PREFIX]
    start = number(request, "after", 0, 0, waiting.MOST_AFTER)
    views = [site.ops.named(name)] if name else list(site.ops.views())
    rows = _ROWS_OF_ONE if name else _ROWS_OF_ALL
    found = await site.ops.workers.run(lambda: [_one(view, sight, prefix, start, rows) for view in views])
    busy = [each for each in found if name or each["count"] or each["retrying"]]
    values = {
        "dispatchers": busy[:_DISPATCHERS_SHOWN],
        "left_out": max(0, len(busy) - _DISPATCHERS_SHOWN),
        "sees_all": sight.is_whole,
        "prefix": prefix,
        "dispatcher": name,
        "start": start,
    }
    return View("scheduled.html", "Scheduled", values, "scheduled", ("dispatchers",), is_clocked=True)


def _one(view: DispatcherView, sight: Sight, prefix: str, start: int, rows: int) -> dict[str, Any]:
    stats = view.stats()
    posts = planned(view, rows + 1, start, prefix) if sight.is_whole else []
    retries = waiting.retrying(view, rows + 1, start, sight) if stats.retrying else []
    has_more = len(posts) > rows or len(retries) > rows
    more = {"dispatcher": view.name, **({"prefix": prefix} if prefix else {})}
    return {
        "name": view.name,
        "count": stats.scheduled,
        "skipped": stats.scheduled_skipped,
        "retrying": stats.retrying,
        "posts": [(post, _cancel_query(view, post)) for post in posts[:rows]],
        "retries": retries[:rows],
        "next": f"{PATH}?{urlencode({**more, 'after': start + rows}, errors='backslashreplace')}" if has_more else None,
    }


def _cancel_query(view: DispatcherView, post: Planned) -> str:
    """Empty: it has no key, so it cannot be cancelled by one."""
    return urlencode({"dispatcher": view.name, "key": post.key}, errors="backslashreplace") if post.key else ""
