"""GET /nodes, /nodes/{node}, and the labels of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.reports import NodeReport
from statemachines.resourcemanager.reports.cluster import NodeSums
from statemachines.resourcemanager.web.rest import filters, ids
from statemachines.resourcemanager.web.rest.lists import list_answer
from statemachines.resourcemanager.web.rest.resources import MEMORY, VCORES, amount, cores, json_left, json_of, left
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, json_answer, listed, route, with_texts

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

STATES: Final = (
    "NEW",
    "RUNNING",
    "UNHEALTHY",
    "DECOMMISSIONING",
    "DECOMMISSIONED",
    "LOST",
    "REBOOTED",
    "SHUTDOWN",
)
GONE: Final = frozenset({"LOST", "DECOMMISSIONED", "REBOOTED", "SHUTDOWN"})
_IN_USE: Final = frozenset({"RUNNING", "DECOMMISSIONING"})


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    texts = NodeTexts(rm.config.hadoop_version)

    async def nodes(request: Request) -> Response:
        states = filters.names(request.query_params, ("states",), STATES)
        texts.forget(rm.model.nodes)
        return await list_answer(request, rm, "nodes", "node", _found(rm, texts, states))

    async def node(request: Request) -> Response:
        id = ids.node_id(request.path_params["node"])
        report = rm.model.nodes.get(id)
        if report is None:
            raise Refusal(404, f"nodeId, {id}, is not found")
        return json_answer(b'{"node":%s}' % texts.text(report, rm.model.heartbeat_ms(id) or 0))

    async def labels(_: Request) -> Response:
        found = _labels(rm, rm.model.info.node_labels)
        return answer(listed(rm, "nodeLabelInfo", found) or {"nodeLabelInfo": None})

    async def labels_of_nodes(_: Request) -> Response:
        labelled = [each for each in rm.model.nodes.values() if each.partition and each.state not in GONE]
        entries = [{"key": each.node_id, "value": {"nodeLabelInfo": [_label(each.partition)]}} for each in labelled]
        return answer({"nodeToLabels": listed(rm, "entry", entries)})

    async def nodes_of_labels(request: Request) -> Response:
        wanted = filters.listed(request.query_params, "labels")
        known = rm.model.info.node_labels
        mapped = [each for each in known if each in wanted] if wanted else known
        return answer({"labelsToNodes": listed(rm, "entry", _mappings(rm, mapped))})

    return [
        route(rm, "/nodes", nodes),
        route(rm, "/nodes/{node}", node),
        route(rm, "/get-node-labels", labels),
        route(rm, "/get-node-to-labels", labels_of_nodes),
        route(rm, "/label-mappings", nodes_of_labels),
    ]


# -- nodes -------------------------------------------------------------------------------------------------------------


class NodeTexts:
    """Nodes as JSON, each made once for each of its reports and kept. The loop's thread."""

    def __init__(self, hadoop_version: str) -> None:
        """`hadoop_version`: of nodes that do not tell theirs."""
        self._version = hadoop_version
        self._kept: dict[str, tuple[NodeReport, bytes]] = {}

    def text(self, report: NodeReport, heartbeat_ms: int) -> bytes:
        kept = self._kept.get(report.node_id)
        if kept is None or kept[0] is not report:
            kept = self._kept[report.node_id] = report, _node(report, self._version)[:-1]
        return b'%s,"lastHealthUpdate":%d}' % (kept[1], heartbeat_ms)

    def forget(self, nodes: dict[str, NodeReport]) -> None:
        """Drop the texts of nodes that are there no more."""
        if len(self._kept) > len(nodes):
            self._kept = {id: kept for id, kept in self._kept.items() if id in nodes}


def _found(rm: RMWeb, texts: NodeTexts, states: frozenset[str] | None) -> Iterator[bytes | None]:
    heartbeat_ms: Callable[[str], int | None] = rm.model.heartbeat_ms
    for id, report in rm.model.nodes.items():
        if states is None or report.state in states:
            yield texts.text(report, heartbeat_ms(id) or report.last_heartbeat_ms)
        else:
            yield None


def _node(report: NodeReport, hadoop_version: str) -> bytes:
    """All but when it was heard of last. The scheduler knows only nodes in use: others have nothing available."""
    used, total = report.used, report.capacity
    taken = used if report.state in _IN_USE else total
    available = left(total, taken)
    found: dict[str, Any] = {
        "rack": report.rack,
        "state": report.state,
        "id": report.node_id,
        "nodeHostName": report.host,
        "nodeHTTPAddress": "" if report.state in GONE else report.http_address,
        "version": report.version or hadoop_version,
        "healthReport": report.health_report,
        "numContainers": report.containers,
        "usedMemoryMB": used.memory_mb,
        "availMemoryMB": available[MEMORY],
        "usedVirtualCores": cores(used.vcores_milli),
        "availableVirtualCores": available[VCORES],
        "numRunningOpportContainers": 0,
        "usedMemoryOpportGB": 0,
        "usedVirtualCoresOpport": 0,
        "numQueuedContainers": 0,
    }
    if report.partition:
        found["nodeLabels"] = [report.partition]
    resources = {
        "totalResource": json_of(total),
        "usedResource": json_of(used),
        "availableResource": json_left(total, taken),
    }
    return with_texts(found, resources)


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
        if node.state in _IN_USE and node.partition in found:
            found[node.partition].append(node)
    return found


def _sum(nodes: Iterable[NodeReport]) -> dict[str, Any]:
    sums = NodeSums()
    for node in nodes:
        sums.add(node.state, node.capacity)
    return {"partitionInfo": {"resourceAvailable": amount(sums.total)}}
