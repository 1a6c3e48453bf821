"""/entities: the kinds of state machine with the number of entities in each state, and the entities in a list.
/entity/{id}: one of them, its path through its state machine, and each of its transitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.routing import BaseRoute

from dispatcher.metrics.entities import declared_transitions
from dispatcher.ops.answers import MOST_SEQ, Page
from dispatcher.ops.entities import (
    ListedEntity,
    MachineCounts,
    entity_answer,
    entity_page,
    history_readers,
    machine_items,
)
from dispatcher.ops.journals import ScanDeadline
from dispatcher.ops.sight import Sight
from dispatcher.pages.drawing.state_graph import draw_graph, draw_population
from dispatcher.pages.site import Site, View
from dispatcher.view import dispatchers
from dispatcher.web.plain_answers import to_plain
from dispatcher.web.queries import number

PATH: Final = "/entities"
SHOWN: Final = 100
"""Entities, and transitions of one, on a page."""
_MACHINES_SHOWN: Final = 12
_COUNTED: Final = 1000
"""Transitions that the drawing counts."""


class MachineShown(NamedTuple):
    """One kind of machine on the page."""

    counts: MachineCounts
    total: int
    states: Mapping[str, int]
    """Entities by state, in the order of the table."""
    graph: Markup
    """Empty: no source knows its table."""


def routes(site: Site) -> Sequence[BaseRoute]:
    return [site.get(PATH, entities_view), site.get("/entity/{id:path}", entity_view)]


# -- all ---------------------------------------------------------------------------------------------------------------


async def entities_view(site: Site, request: Request) -> View:
    query, root = request.query_params, site.root(request)
    wanted, state = query.get("machine") or None, query.get("state") or None
    prefix, after = query.get("prefix", ""), query.get("after", "")
    sight = await site.sight(request)

    def read() -> dict[str, Any]:
        found = machine_items()
        machine = wanted or (found[0].machine if len(found) == 1 else None)
        listed = None if machine is None else entity_page(machine, state, prefix, after, SHOWN, sight)
        shown = [each for each in found if wanted in (None, each.machine)]
        machines = [_machine(each, root) for each in shown[:_MACHINES_SHOWN]]
        return {
            "machines": machines,
            "machines_left_out": [each.machine for each in shown[_MACHINES_SHOWN:]],
            "machine": machine,
            "states": [state for each in machines if each.counts.machine == machine for state in each.states],
            "entities": listed,
            "next": None if listed is None else _next(root, machine, state, prefix, listed),
        }

    asked = {"wanted": wanted, "state": state, "prefix": prefix, "after": after, "list_address": list_address}
    values = {**await site.ops.workers.run(read), **asked}
    return View("entities.html", "Entities", values, "entities", ("machines", "list"), is_clocked=True)


def _machine(found: MachineCounts, root: str) -> MachineShown:
    declared = declared_transitions(found.machine)
    in_order = dict.fromkeys(state for each in declared for state in (each.from_state, each.to_state))
    states = {state: found.entities[state] for state in (*in_order, *found.entities) if state in found.entities}
    graph = (
        draw_population(declared, found.entities, lambda state: list_address(root, found.machine, state))
        if declared
        else Markup("")
    )
    return MachineShown(found, sum(states.values()), states, graph)


def list_address(root: str, machine: str, state: str | None = None, **more: str) -> str:
    """The address of the list of a machine's entities, in this state."""
    query = {"machine": machine, **({} if state is None else {"state": state}), **more}
    return f"{root}{PATH}?{urlencode({name: value for name, value in query.items() if value}, errors='replace')}"


def _next(root: str, machine: str | None, state: str | None, prefix: str, listed: Page[ListedEntity]) -> str | None:
    if machine is None or listed.next is None:
        return None
    return list_address(root, machine, state, prefix=prefix, after=str(listed.next))


# -- one ---------------------------------------------------------------------------------------------------------------


async def entity_view(site: Site, request: Request) -> View:
    id, machine = request.path_params["id"], request.query_params.get("machine") or None
    before = number(request, "after", None, 0, MOST_SEQ)
    sight = await site.sight(request)
    found = await site.ops.workers.run(lambda: _read(id, machine, before, sight))
    address = f"{site.root(request)}/entity/{quote(id, safe=':', errors='replace')}"
    values = {
        "entity": found,
        "history": found["history"],
        "address": f"{address}?{urlencode({'machine': machine}) + '&' if machine else ''}",
        "link": site.link(id),
        "list_address": list_address,
    }
    return View("entity.html", id, values, "entities", ("present", "graph", "history"), is_clocked=before is None)


def readers_answer(
    id: str, machine: str | None, before: int | None, limit: int, sight: Sight, *, changes_only: bool = False
) -> dict[str, Any]:
    """The answer of the ops API about an entity, within the time that a page gives it. Raises as `entity_answer`."""
    readers = history_readers(dispatchers(), ScanDeadline())
    return to_plain(entity_answer(id, machine, limit, before, readers, changes_only=changes_only, sight=sight))


def _read(id: str, machine: str | None, before: int | None, sight: Sight) -> dict[str, Any]:
    """The answer for the page, and the drawing. On a thread of its own. Raises Refusal."""
    found = readers_answer(id, machine, before, _COUNTED, sight)
    items: list[dict[str, Any]] = found["history"]["items"]
    name = found["machine"] or next((each["machine"] for each in items if each["machine"]), None)
    found["graph"] = _drawing(name, items, found["state"])
    more = items[SHOWN:] or found["history"]["next"]
    shown = items[:SHOWN]
    found["history"] = {"items": shown, "next": str(shown[-1]["seq"]) if shown and more else None}
    return found


def _drawing(machine: str | None, items: Sequence[Mapping[str, Any]], state: str | None) -> Markup:
    declared = dict.fromkeys(declared_transitions(machine)) if machine is not None else {}
    if not declared:
        return Markup("")
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
