"""/dispatcher and /dispatcher/NAME: what each dispatcher does now, with its stack; what waits, what fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import BaseRoute

from dispatcher.ops import dispatchers as of_dispatchers
from dispatcher.ops import stacks
from dispatcher.ops.sampler import Sampler
from dispatcher.ops.sight import Sight
from dispatcher.pages.site import Site, View, is_stream
from dispatcher.service import ServiceState
from dispatcher.view import DispatcherView
from dispatcher.web.queries import choice, number

PATH: Final = "/dispatcher"
SORTS: Final = ("time", *(sort for sort in of_dispatchers.SORTS if sort != "time"))
_DISPATCHERS_SHOWN: Final = 12
_TYPES_SHOWN: Final = 120
"""Of all dispatchers on the page together, as the idle ones."""
_IDLE_SHOWN: Final = 240
_QUEUED_SHOWN: Final = 10
_SAMPLE: Final = 5000
"""Events of a long queue that are looked at; the API looks at more, which takes it longer."""
_KEYS_SHOWN: Final = 10
_FAILURES_SHOWN: Final = 10
_SAMPLES: Final = 50
_SAMPLE_EVERY_MS: Final = 10
_STACKS_SHOWN: Final = 20


def routes(site: Site) -> Sequence[BaseRoute]:
    return [
        site.get(PATH, list_view),
        site.get(f"{PATH}/{{name:path}}/samples", samples_view),
        site.get(f"{PATH}/{{name:path}}", one_view),
    ]


async def list_view(site: Site, request: Request) -> View:
    name = site.ops.name
    views = sorted(site.ops.views(), key=lambda view: _rank(view, name))
    return await _view(site, request, views, views[:_DISPATCHERS_SHOWN])


async def one_view(site: Site, request: Request) -> View:
    return await _view(site, request, site.ops.views(), [site.ops.view(request)])


async def _view(site: Site, request: Request, views: Sequence[DispatcherView], shown: Sequence[DispatcherView]) -> View:
    name = request.path_params.get("name")
    sort = choice(request, "sort", SORTS)
    sampler, sight = site.ops.sampler, await site.sight(request)
    share = max(1, len(shown))

    async def read() -> list[Mapping[str, Any]]:
        return await site.ops.workers.run(lambda: [_one(view, sampler, sort, sight, share) for view in shown])

    found = await (site.shared.make(("dispatchers", sort, *map(id, shown)), read) if sight.is_whole else read())
    values = {
        "dispatchers": found,
        "dispatchers_left_out": len(views) - len(shown) if name is None else 0,
        "names": sorted({view.name for view in views})[:_DISPATCHERS_SHOWN],
        "name": name,
        "sort": sort,
        "sorts": SORTS,
    }
    title = "Dispatchers" if name is None else name
    return View("dispatcher.html", title, values, "dispatcher", ("dispatchers",), is_clocked=True)


async def samples_view(site: Site, request: Request) -> View:
    """Where the handler thread's time goes. Samples are taken for the page alone, not for what follows it."""
    view, count = site.ops.view(request), number(request, "samples", _SAMPLES, 1, stacks.MOST_SAMPLES)
    values: dict[str, Any] = {"name": view.name, "samples": None}
    if not is_stream(request):
        made = await stacks.sampled(site.ops, view, count, _SAMPLE_EVERY_MS)
        values |= {"samples": stacks.Samples.model_validate_json(made), "most": _STACKS_SHOWN}
    return View("samples.html", f"Where the time of {view.name} goes", values, "dispatcher")


def _rank(view: DispatcherView, name: str) -> tuple[bool, bool, str]:
    """The sort key: those that run first, and among them those that have the daemon's name."""
    is_own = view.name == name or view.name.startswith(f"{name}-")
    return view.state is not ServiceState.STARTED, not is_own, view.name


def _one(view: DispatcherView, sampler: Sampler, sort: str, sight: Sight, share: int) -> Mapping[str, Any]:
    """What a page of `share` dispatchers shows of one. On a thread of its own: it walks over a queue and a stack."""
    found = of_dispatchers.type_items(view, sampler, [sort], sight, _SAMPLE)
    types, idle = [each for each in found if not _is_idle(each)], [each for each in found if _is_idle(each)]
    queued = sorted((each for each in found if each.queued), key=lambda each: (-each.queued, each.name))
    entities = of_dispatchers.queued_entities(view, _QUEUED_SHOWN, sight, _SAMPLE) if queued else None
    return {
        "numbers": of_dispatchers.numbers(view, sampler, sight),
        "curves": of_dispatchers.curves_of(view, sampler),
        "running": stacks.running_with_stack(view, sight),
        "types": types[: _TYPES_SHOWN // share],
        "idle_types": idle[: _IDLE_SHOWN // share],
        "types_left_out": max(0, len(types) - _TYPES_SHOWN // share) + max(0, len(idle) - _IDLE_SHOWN // share),
        "queued_types": queued[:_QUEUED_SHOWN],
        "queued_entities": entities,
        "lanes": of_dispatchers.lane_items(view, _KEYS_SHOWN, sight),
        "failures": [of_dispatchers.failure_of(each, sight) for each in view.failures()[:_FAILURES_SHOWN]],
    }


def _is_idle(type: of_dispatchers.EventTypeNumbers) -> bool:
    return not (type.queued or type.rate_10s or type.failed)
