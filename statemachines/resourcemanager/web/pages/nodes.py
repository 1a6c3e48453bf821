"""/cluster/nodes and /cluster/node/{id}."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from dispatcher.pages.site import View
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.fields import NODE_FIELDS
from statemachines.resourcemanager.records.ids import application_of
from statemachines.resourcemanager.reports import ContainerReport, NodeReport
from statemachines.resourcemanager.web.pages import admin_changes
from statemachines.resourcemanager.web.pages.access import Viewer
from statemachines.resourcemanager.web.pages.histories import history_of
from statemachines.resourcemanager.web.pages.listing import Key, Query, columns_of, matching, page_of, parse, sort_value
from statemachines.resourcemanager.web.pages.site import ClusterSite

NODES: Final = "/cluster/nodes"
NODE: Final = "/cluster/node"
CONTAINERS_SHOWN: Final = 200
STATES: Final = (*("RUNNING", "UNHEALTHY", "DECOMMISSIONING", "DECOMMISSIONED", "LOST", "REBOOTED", "SHUTDOWN", "NEW"),)
IN_USE: Final = frozenset({"RUNNING", "DECOMMISSIONING", "UNHEALTHY"})
_FILTERS: Final = ("q", "rack", "partition")

COLUMNS: Final = columns_of(NODE_FIELDS)


def routes(site: ClusterSite) -> Sequence[BaseRoute]:
    listed = site.page(lambda request: list_view(site, request))
    return [
        Route(NODES, listed, methods=["GET"]),
        Route(f"{NODES}/{{state}}", listed, methods=["GET"]),
        Route(f"{NODE}/{{id}}", site.page(lambda request: node_view(site, request)), methods=["GET"]),
    ]


async def list_view(site: ClusterSite, request: Request) -> View:
    model = site.model
    state = request.path_params.get("state")
    query, matches = _asked(request)
    page = await page_of(model.nodes.values(), query, sort_value(COLUMNS, query), _tie, matches)
    template, now_ms = site.templates.get_template("node_row.html"), model.now_ms()
    has_gpus = model.metrics.total.gpus > 0
    rows = {}
    for node in page.items:
        heard_ms = model.heartbeat_ms(node.node_id)
        rows[node.node_id] = Markup(template.render(node=node, heard_ms=heard_ms, now_ms=now_ms, has_gpus=has_gpus))
    counts = Counter(node.state for node in model.nodes.values())
    tabs: list[Mapping[str, Any]] = [
        {"title": "All", "path": NODES, "count": counts.total(), "is_current": state is None},
        *(
            {
                "title": each.capitalize(),
                "path": f"{NODES}/{each}",
                "count": counts[each],
                "is_current": state is not None and state.upper() == each,
            }
            for each in STATES
            if counts[each] or each == "RUNNING"
        ),
    ]
    values: dict[str, Any] = {
        "tabs": tabs,
        "columns": COLUMNS if has_gpus else COLUMNS[:-1],
        "query": query,
        "page": page,
    }
    values |= {"changes": admin_changes.node_changes(site), "changes_of": "Node or host"}
    return View("nodes.html", "Nodes", values, "nodes", ("tabs", "pager", "changes"), rows)


async def node_view(site: ClusterSite, request: Request) -> View:
    node, model = find(site, request), site.model
    viewer = await site.viewer(request)
    containers = await _containers(site, viewer, node.node_id)
    may_administer, sight = viewer.may_administer(), await site.sight(request)
    values = {
        "node": node,
        "heard_ms": model.heartbeat_ms(node.node_id),
        "sees_reserved": sight.sees(node.reserved_container),
        "containers": containers[:CONTAINERS_SHOWN],
        "containers_left_out": max(0, len(containers) - CONTAINERS_SHOWN),
        "may_decommission": may_administer and node.state in IN_USE - {"DECOMMISSIONING"},
        "may_hasten": may_administer and node.state == "DECOMMISSIONING",
        "may_recommission": may_administer and node.state in ("DECOMMISSIONING", "DECOMMISSIONED"),
        "history": await history_of(site, node.node_id, sight),
        "changes": admin_changes.node_changes(site, node.node_id),
        "changes_of": "Node or host",
    }
    return View("node.html", node.node_id, values, "nodes", ("facts", "changes", "containers", "history"))


def find(site: ClusterSite, request: Request) -> NodeReport:
    """The node that the address names. Raises Refusal (404)."""
    id = request.path_params["id"]
    node = site.model.nodes.get(id)
    if node is None:
        raise Refusal(404, f"node {id[:200]}: it never registered, or was forgotten; ids are host:port")
    return node


async def _containers(site: ClusterSite, viewer: Viewer, node_id: str) -> list[tuple[str, ContainerReport]]:
    """The node's live containers with their applications, as far as the user may view these."""
    model = site.model
    apps, found = model.apps, []
    async for attempts in matching(model.containers.items(), lambda _: True):
        for attempt_id, containers in attempts:
            here = [each for each in containers.values() if each.node == node_id]
            app = apps.get(application_of(attempt_id)) if here else None
            if app is not None and viewer.may_view(app):
                found += [(app.application_id, each) for each in here]
    return found


def _asked(request: Request) -> tuple[Query, Callable[[NodeReport], bool]]:
    state = (request.path_params.get("state") or "").upper()
    if state and state not in STATES:
        raise Refusal(404, f"{state[:100]}: not a state of nodes; expected {', '.join(STATES)}")
    query = parse(request, COLUMNS, _FILTERS, "id", "asc")
    text, rack, partition = (
        query.filters.get("q", "").lower(),
        query.filters.get("rack"),
        query.filters.get("partition"),
    )

    def matches(node: NodeReport) -> bool:
        return (
            (not state or node.state == state)
            and (rack is None or node.rack == rack)
            and (partition is None or node.partition == partition)
            and (not text or text in node.node_id.lower() or text in node.health_report.lower())
        )

    return query, matches


def _tie(node: NodeReport) -> Key:
    """Names with numbers in their order: node9 before node10."""
    name = node.node_id.partition(":")[0]
    stem = name.rstrip("0123456789")
    return stem, len(name), node.node_id
