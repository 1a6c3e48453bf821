"""What administrators have changed, as rows of a table on the pages of queues and of nodes."""

from __future__ import annotations

from typing import Final, NamedTuple

from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.stored_state import Origin, QueueValue
from statemachines.resourcemanager.reports import NodeChangeReport, QueueChangeReport
from statemachines.resourcemanager.web.pages import cluster_texts
from statemachines.resourcemanager.web.pages.site import ClusterSite

_NOT_KNOWN: Final = "\u2013"
_ITSELF: Final = "the program"


class ChangeRow(NamedTuple):
    name: str
    """Of the queue, node or host; empty: it concerns all hosts."""
    key: str
    value: str
    configured: str
    user: str
    since_ms: int | None
    problem: str


def queue_changes(site: ClusterSite) -> list[ChangeRow]:
    return [_of_queue(each) for each in site.rm.admin.changes.queues]


def node_changes(site: ClusterSite, node_id: str | None = None) -> list[ChangeRow]:
    """Of all nodes and hosts, or of one node and its host."""
    names = None if node_id is None else (node_id, node_id.rpartition(":")[0])
    return [_of_node(site, each) for each in site.rm.admin.changes.nodes if names is None or each.name in names]


def _of_queue(change: QueueChangeReport) -> ChangeRow:
    user, since_ms = _origin(change.origin)
    value, configured = _text(change.value), _text(change.configured)
    return ChangeRow(change.queue, change.key, value, configured, user, since_ms, change.problem)


def _of_node(site: ClusterSite, change: NodeChangeReport) -> ChangeRow:
    user, since_ms = _origin(change.origin)
    node, configured = site.model.nodes.get(change.name), _NOT_KNOWN
    if node is not None and change.key == "capacity":
        configured = cluster_texts.resource(node.registered_capacity)
    elif node is not None and change.key == "label":
        configured = node.registered_partition or "default"
    match change.value:
        case Resource():
            value = cluster_texts.resource(change.value)
        case str():
            value = change.value or "default"
        case _:
            value = ", ".join(change.value)
    return ChangeRow(change.name, change.key, value, configured, user, since_ms, "")


def _origin(origin: Origin | None) -> tuple[str, int | None]:
    return (_NOT_KNOWN, None) if origin is None else (origin.user or _ITSELF, origin.at_ms)


def _text(value: QueueValue) -> str:
    if value is None:
        return _NOT_KNOWN
    return f"{value:.15g}" if isinstance(value, float) else str(value)
