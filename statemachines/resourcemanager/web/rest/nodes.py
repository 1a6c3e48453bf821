"""GET /nodes, /nodes/{node}, and the labels of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.fields import GONE, IN_USE, NODE_FIELDS, Around
from statemachines.resourcemanager.reports import NODE_STATES, NodeReport
from statemachines.resourcemanager.reports.cluster import NodeSums
from statemachines.resourcemanager.web.rest import filters, ids
from statemachines.resourcemanager.web.rest.lists import list_answer
from statemachines.resourcemanager.web.rest.resources import amount
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, json_answer, listed, route
from statemachines.resourcemanager.web.rest.texts import Texts

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    texts, around = Texts(NODE_FIELDS), Around(hadoop_version=rm.config.hadoop_version)

    async def nodes(request: Request) -> Response:
        states = filters.names(request.query_params, ("states",), NODE_STATES)
        texts.forget(rm.model.nodes)
        return await list_answer(request, rm, "nodes", "node", _found(rm, texts, around, states))

    async def node(request: Request) -> Response:
        id = ids.node_id(request.path_params["node"])
        report = rm.model.nodes.get(id)
        if report is None:
            raise Refusal(404, f"nodeId, {id}, is not found")
        around.heartbeat_ms = rm.model.heartbeat_ms(id) or 0
        return json_answer(b'{"node":%s}' % texts.writer()(id, report, around))

    async def labels(_: Request) -> Response:
        found = _labels(rm, rm.model.node_labels)
        return answer(listed(rm, "nodeLabelInfo", found) or {"nodeLabelInfo": None})

    async def labels_of_nodes(_: Request) -> Response:
        labelled = [each for each in rm.model.nodes.values() if each.partition and each.state not in GONE]
        entries = [{"key": each.node_id, "value": {"nodeLabelInfo": [_label(each.partition)]}} for each in labelled]
        return answer({"nodeToLabels": listed(rm, "entry", entries)})

    async def nodes_of_labels(request: Request) -> Response:
        wanted = filters.listed(request.query_params, "labels")
        known = rm.model.node_labels
        mapped = [each for each in known if each in wanted] if wanted else known
        return answer({"labelsToNodes": listed(rm, "entry", _mappings(rm, mapped))})

    return [
        route(rm, "/nodes", nodes),
        route(rm, "/nodes/{node}", node),
        route(rm, "/get-node-labels", labels),
        route(rm, "/get-node-to-labels", labels_of_nodes),
        route(rm, "/label-mappings", nodes_of_labels),
    ]


def _found(
    rm: RMWeb, texts: Texts[NodeReport], around: Around, states: frozenset[str] | None
) -> Iterator[bytes | None]:
    heartbeat_ms, write = rm.model.heartbeat_ms, texts.writer()
    for id, report in rm.model.nodes.items():
        if states is None or report.state in states:
            around.heartbeat_ms = heartbeat_ms(id) or report.last_heartbeat_ms
            yield write(id, report, around)
        else:
            yield None


# -- labels ------------------------------------------------------------------------------------------------------------


def _label(name: str) -> dict[str, Any]:
    """A partition; nodes of one serve only those that ask for it."""
    return {"name": name, "exclusivity": True}


def _labels(rm: RMWeb, names: Iterable[str]) -> list[dict[str, Any]]:
    """Labels with the resources and the number of their active nodes."""
    return [_label(name) | _sum(nodes) | {"activeNMs": len(nodes)} for name, nodes in _by_label(rm, names).items()]


def _mappings(rm: RMWeb, names: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {"key": _label(name) | _sum(nodes), "value": {"nodes": [each.node_id for each in nodes], **_sum(nodes)}}
        for name, nodes in _by_label(rm, names).items()
    ]


def _by_label(rm: RMWeb, names: Iterable[str]) -> dict[str, list[NodeReport]]:
    found: dict[str, list[NodeReport]] = {name: [] for name in names}
    for node in rm.model.nodes.values():
        if node.state in IN_USE and node.partition in found:
            found[node.partition].append(node)
    return found


def _sum(nodes: Iterable[NodeReport]) -> dict[str, Any]:
    sums = NodeSums()
    for node in nodes:
        sums.add(node.state, node.capacity)
    return {"partitionInfo": {"resourceAvailable": amount(sums.total)}}
