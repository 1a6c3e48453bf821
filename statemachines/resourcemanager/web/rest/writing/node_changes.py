"""Hosts that may have nodes, labels of nodes, and GET /changes, which lists all changes of administrators.

Only /nodes/{node}/replace-labels is YARN's.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.stored_state import Origin
from statemachines.resourcemanager.reports import NodeChangeReport, QueueChangeReport
from statemachines.resourcemanager.web.rest import filters, ids
from statemachines.resourcemanager.web.rest.resources import amount
from statemachines.resourcemanager.web.rest.rest_endpoints import MOST_INT, answer, route
from statemachines.resourcemanager.web.rest.writing.bodies import Fields, bad
from statemachines.resourcemanager.web.rest.writing.common import Change, changing, fields_of
from statemachines.resourcemanager.web.shared import WriteDeadline

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

_AGAIN: Final = "the change may still be made: send it again"
_LONGEST_HOST: Final = 255


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    async def changes(_: Request) -> Response:
        return answer(changes_info(rm))

    async def decommission(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        body = await fields_of(request)
        hosts, graceful = _hosts(body), body.flag("graceful")
        timeout_s = body.number("timeout", 0, 0, MOST_INT) if body.has("timeout") else None
        if timeout_s is not None and not graceful:
            bad("timeout", "is for a graceful decommissioning alone; add graceful: true")
        made = rm.admin.refresh_nodes_later(hosts, graceful=graceful, timeout_s=timeout_s, caller=caller)
        return await changes_made(rm, made, deadline, _AGAIN)

    async def recommission(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        hosts = _hosts(await fields_of(request))
        known = {each.name for each in rm.admin.changes.nodes if each.key == "decommissioned"}
        unknown = [host for host in hosts if host not in known]
        if unknown:
            raise Refusal(404, f"host {unknown[0]} is not decommissioned")
        return await changes_made(rm, rm.admin.recommission_later(hosts, caller=caller), deadline, _AGAIN)

    async def include(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        hosts = _hosts(await fields_of(request), may_be_none=True)
        return await changes_made(rm, rm.admin.refresh_nodes_later(include=hosts, caller=caller), deadline, _AGAIN)

    async def label(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        node_id = ids.node_id(request.path_params["node"])
        labels = filters.listed(request.query_params, "labels")
        if len(labels) > 1:
            raise Refusal(400, f"labels: {len(labels)} labels; a node is in one partition")
        made = rm.admin.replace_labels_on_node_later(node_id, next(iter(labels), ""), caller=caller)
        return await changes_made(rm, made, deadline, _AGAIN)

    async def give_up(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        node_id = ids.node_id(request.path_params["node"])
        made = rm.admin.give_up_node_change_later(node_id, request.path_params["setting"], caller=caller)
        return await changes_made(rm, made, deadline, _AGAIN)

    return [
        route(rm, "/changes", changes),
        _administering(rm, "/hosts/decommission", "POST", "refreshNodes", decommission),
        _administering(rm, "/hosts/recommission", "POST", "recommission", recommission),
        _administering(rm, "/hosts/included", "PUT", "refreshNodes", include),
        _administering(rm, "/nodes/{node}/replace-labels", "POST", "replaceLabelsOnNode", label),
        _administering(rm, "/nodes/{node}/changes/{setting}", "DELETE", "updateNode", give_up),
    ]


def _administering(rm: RMWeb, path: str, method: str, operation: str, function: Change) -> BaseRoute:
    """A user who is no administrator gets 403, whatever else is wrong."""

    async def change(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        rm.clients.acls.check_administrator(caller, operation)
        return await function(request, caller, deadline)

    return changing(rm, path, [method], operation, change)


def _hosts(body: Fields, *, may_be_none: bool = False) -> tuple[str, ...]:
    hosts = body.texts("hosts", "")
    if not (hosts or (may_be_none and body.has("hosts"))):
        bad("hosts", 'is missing; expected ["host", ...]')
    for index, host in enumerate(hosts):
        if not host or len(host) > _LONGEST_HOST or not host.isprintable() or " " in host or ":" in host:
            bad(f"hosts[{index}]", f"{host[:_LONGEST_HOST]!r} is no name of a host, without a port")
    return hosts


async def changes_made(rm: RMWeb, change: Future[Any], deadline: WriteDeadline, unsure: str) -> Response:
    """The answer once `change` is made and published: all changes. `unsure`: the message if that is late."""
    await deadline.result(change, unsure)
    await deadline.published()
    return answer(changes_info(rm))


def changes_info(rm: RMWeb) -> dict[str, Any]:
    """All changes, and what the configuration or the node says instead."""
    found = rm.admin.changes
    queues = [_queue_info(each) for each in found.queues]
    return {"changes": {"queue": queues, "node": [_node_info(rm, each) for each in found.nodes]}}


def _queue_info(change: QueueChangeReport) -> dict[str, Any]:
    return {
        "queue": change.queue,
        "key": change.key,
        "value": change.value,
        "configured": change.configured,
        **_origin_info(change.origin),
        "inEffect": not change.problem,
        "problem": change.problem,
    }


def _node_info(rm: RMWeb, change: NodeChangeReport) -> dict[str, Any]:
    """`configured` is what the node registered with; null for a node that has not registered."""
    info = {"node": change.name, "key": change.key, "value": _shown(change.value)}
    if change.key in ("capacity", "label"):
        node = rm.model.nodes.get(change.name)
        registered = None
        if node is not None:
            registered = node.registered_capacity if change.key == "capacity" else node.registered_partition
        info["configured"] = None if registered is None else _shown(registered)
    return info | _origin_info(change.origin)


def _shown(value: Resource | str | tuple[str, ...]) -> Any:
    return amount(value) if isinstance(value, Resource) else value


def _origin_info(origin: Origin | None) -> dict[str, Any]:
    """`user` is empty for a change by the program itself. Both are null if an older version stored the change."""
    return {"since": None if origin is None else origin.at_ms, "user": None if origin is None else origin.user}
