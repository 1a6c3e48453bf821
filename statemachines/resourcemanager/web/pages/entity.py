"""/cluster/entity/{id}: any entity, its path through its state machine, and each of its transitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from dispatcher.errors import JournalError
from dispatcher.ops.entities import entity_answer
from dispatcher.web.plain_answers import Refusal, to_plain
from dispatcher.web.queries import number
from statemachines.drawing.state_graph import draw_graph
from statemachines.registry import FACTORIES
from statemachines.resourcemanager.web.pages.histories import readers_now
from statemachines.resourcemanager.web.pages.site import Site, View

ENTITY: Final = "/cluster/entity"
_SHOWN: Final = 100
_COUNTED: Final = 1000
"""Transitions that the drawing counts."""
_MOST_SEQ: Final = 10**18


def routes(site: Site) -> Sequence[BaseRoute]:
    return [Route(f"{ENTITY}/{{id:path}}", site.page(lambda request: entity_view(site, request)), methods=["GET"])]


async def entity_view(site: Site, request: Request) -> View:
    id, machine = request.path_params["id"], request.query_params.get("machine")
    before = number(request, "after", None, 0, _MOST_SEQ)
    found = await site.rm.workers.run(lambda: _read(id, machine, before))
    values = {"entity": found, "history": found["history"], "address": request.url.path, "link": _link(id)}
    return View("entity.html", id, values, parts=("present", "graph", "history"), is_clocked=before is None)


async def history_of(site: Site, id: str) -> Mapping[str, Any] | None:
    """The last changes of an entity's state, for its own page; None: they cannot be had now."""
    try:
        answer = await site.rm.workers.run(lambda: _answer(id, None, None, _SHOWN, changes_only=True))
    except (Refusal, JournalError):
        return None
    found: Mapping[str, Any] = answer["history"]
    return found


def _answer(
    id: str, machine: str | None, before: int | None, limit: int, *, changes_only: bool = False
) -> dict[str, Any]:
    return to_plain(entity_answer(id, machine, limit, before, readers_now(), changes_only=changes_only))


def _read(id: str, machine: str | None, before: int | None) -> dict[str, Any]:
    """The answer for the page, and the drawing. On a thread of its own. Raises Refusal."""
    found = _answer(id, machine, before, _COUNTED)
    items: list[dict[str, Any]] = found["history"]["items"]
    name = found["machine"] or next((each["machine"] for each in items if each["machine"]), None)
    found["graph"] = _drawing(name, items, found["state"])
    more = items[_SHOWN:] or found["history"]["next"]
    shown = items[:_SHOWN]
    found["history"] = {"items": shown, "next": str(shown[-1]["seq"]) if shown and more else None}
    return found


def _drawing(machine: str | None, items: Sequence[Mapping[str, Any]], state: str | None) -> Markup:
    if machine is None or machine not in FACTORIES:
        return Markup("")
    declared = _declared(machine)
    counts: Counter[tuple[str, str, str]] = Counter()
    refused: Counter[tuple[str, str, str]] = Counter()
    for each in items:
        if each["machine"] == machine and each["from_state"] and each["to_state"]:
            kind = counts if each["valid"] else refused
            kind[each["from_state"], each["event_type"], each["to_state"]] += 1
    rows = [_row(key, counts[key], is_valid=True, is_declared=True) for key in declared]
    rows += [
        _row(key, number, is_valid=True, is_declared=False) for key, number in counts.items() if key not in declared
    ]
    rows += [_row(key, number, is_valid=False, is_declared=False) for key, number in refused.items()]
    return draw_graph(rows, state).taken


@cache
def _declared(machine: str) -> Mapping[tuple[str, str, str], None]:
    transitions = FACTORIES[machine].transitions()
    return {(row.from_state.name, row.event.name, to.name): None for row in transitions for to in row.to_states}


def _row(key: tuple[str, str, str], count: int, *, is_valid: bool, is_declared: bool) -> dict[str, Any]:
    from_state, event_type, to_state = key
    return {
        "from_state": from_state,
        "event_type": event_type,
        "to_state": to_state,
        "count": count,
        "valid": is_valid,
        "declared": is_declared,
    }


def _link(id: str) -> str | None:
    """The page about what the entity is, if there is one."""
    if id.startswith("application_"):
        return f"/cluster/app/{id}"
    if id.startswith("appattempt_"):
        return f"/cluster/appattempt/{id}"
    return None
