"""/cluster/dispatcher: the ops API as a page. What each dispatcher does now, what waits, what failed, what was last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from dispatcher.errors import DispatcherError
from dispatcher.ops import dispatchers as of_dispatchers
from dispatcher.ops import journals, stacks
from dispatcher.ops.process import process_numbers
from dispatcher.ops.sampler import Sampler, shared_sampler
from dispatcher.service import ServiceState
from dispatcher.view import DispatcherView, dispatchers
from dispatcher.web.plain_answers import Refusal, to_plain
from dispatcher.web.queries import choice
from statemachines.resourcemanager.web.pages.site import Site, View

DISPATCHER: Final = "/cluster/dispatcher"
SORTS: Final = ("time", *(sort for sort in of_dispatchers.SORTS if sort != "time"))
_DISPATCHERS_SHOWN: Final = 12
_TYPES_SHOWN: Final = 40
_FAILURES_SHOWN: Final = 20
_TAIL_SHOWN: Final = 25
_TAIL_S: Final = 0.5


def routes(site: Site) -> Sequence[BaseRoute]:
    return [Route(DISPATCHER, site.page(lambda request: dispatcher_view(site, request)), methods=["GET"])]


async def dispatcher_view(site: Site, request: Request) -> View:
    if not site.is_ops_enabled:
        raise Refusal(404, "the ops API is switched off: ops.enabled is false")
    sort = choice(request, "sort", SORTS)
    sampler = shared_sampler.use(site)
    found = await site.rm.workers.run(lambda: _read(sampler, sort, site.rm.name))
    values = {**found, "sort": sort, "sorts": SORTS, "types_shown": _TYPES_SHOWN}
    return View("dispatcher.html", "Dispatcher", values, "dispatcher", ("process", "dispatchers"), is_clocked=True)


def _read(sampler: Sampler, sort: str, name: str) -> dict[str, Any]:
    """All that the page shows. On a thread of its own: it walks over queues, stacks and the journal's end."""
    views = sorted(dispatchers(), key=lambda view: _rank(view, name))
    return {
        "process": to_plain(process_numbers(name)),
        "dispatchers": [_one(view, sampler, sort) for view in views[:_DISPATCHERS_SHOWN]],
        "dispatchers_left_out": max(0, len(views) - _DISPATCHERS_SHOWN),
    }


def _rank(view: DispatcherView, name: str) -> tuple[bool, bool, str]:
    """The sort key: those that run first, and among them the resource manager's own."""
    is_own = view.name == name or view.name.startswith(f"{name}-")
    return view.state is not ServiceState.STARTED, not is_own, view.name


def _one(view: DispatcherView, sampler: Sampler, sort: str) -> Mapping[str, Any]:
    types = of_dispatchers.type_items(view, sampler, [sort])
    running, failures = stacks.running_with_stack(view), view.failures()
    return {
        **to_plain(of_dispatchers.numbers(view, sampler)),
        "running": None if running is None else to_plain(running),
        "types": types[:_TYPES_SHOWN],
        "types_left_out": max(0, len(types) - _TYPES_SHOWN),
        "failures": [of_dispatchers.failure_of(each) for each in failures[:_FAILURES_SHOWN]],
        "tail": _tail(view),
    }


def _tail(view: DispatcherView) -> Sequence[Mapping[str, Any]]:
    if view.journal_path is None:
        return ()
    try:
        rows = journals.tail_rows(
            view.journal_path, _TAIL_SHOWN, journals.Wanted(), None, journals.Deadline(_TAIL_S), payloads=False
        )
    except (DispatcherError, Refusal):
        return ()
    return rows[::-1]
