"""/ and /overview: what is wrong and since when, each dispatcher with its curves, what floods, and what fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.routing import BaseRoute

from dispatcher.ops.overview import Overview, OverviewRow, overview
from dispatcher.pages.site import Site, View

PATH: Final = "/overview"
_PARTS: Final = ("problems", "dispatchers", "trouble")
_DISPATCHERS_SHOWN: Final = 50


def routes(site: Site) -> Sequence[BaseRoute]:
    return [site.get(path, overview_view) for path in ("/", PATH)]


async def overview_view(site: Site, request: Request) -> View:
    ops, sight = site.ops, await site.sight(request)
    sampler, views = ops.sampler, ops.views()

    async def read() -> Overview:
        return await ops.workers.run(lambda: overview(views, sampler, ops.name, sight))

    found: Overview = await (site.shared.make("overview", read) if sight.is_whole else read())
    in_trouble = {problem.dispatcher for problem in found.problems}

    def rank(row: OverviewRow) -> tuple[bool, bool, str]:
        return row.numbers.state != "STARTED", row.numbers.name not in in_trouble, row.numbers.name

    rows = found.dispatchers
    if len(rows) > _DISPATCHERS_SHOWN:  # otherwise they keep their places
        rows = sorted(rows, key=rank)
    values = {
        "found": found,
        "rows": rows[:_DISPATCHERS_SHOWN],
        "rows_left_out": max(0, len(rows) - _DISPATCHERS_SHOWN),
        "in_trouble": in_trouble,
        "grave": {reason.reason for reason in found.health.reasons},
    }
    return View("overview.html", "Overview", values, "overview", _PARTS, is_clocked=True)
