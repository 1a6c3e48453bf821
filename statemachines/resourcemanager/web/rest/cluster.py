"""GET / and /info: the resource manager itself. GET /metrics: the cluster's totals. And what is not offered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal, to_json
from statemachines.resourcemanager.reports import ClusterMetrics
from statemachines.resourcemanager.web.rest.resources import amount, cores
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, json_answer, route

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

_NOT_OFFERED: Final = (
    "/userinfo",
    "/scheduler/logs",
    "/scheduler/activities",
    "/scheduler/bulk-activities",
    "/scheduler/app-activities",
    "/scheduler/app-activities/{app}",
    "/scheduler-conf/format",
    "/scheduler-conf/validate",
    "/scheduler-conf/version",
    "/reservation/new-reservation",
    "/reservation/submit",
    "/reservation/update",
    "/reservation/delete",
    "/reservation/list",
    "/delegation-token",
    "/delegation-token/expiration",
    "/containers/{container}/signal/{command}",
    "/add-node-labels",
    "/remove-node-labels",
    "/replace-node-to-labels",
    "/get-rm-node-labels",
    "/nodes/{node}/get-labels",
)
"""Paths of Hadoop's API, with any method."""
_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_NODE_COUNTS: Final = {
    "activeNodes": "RUNNING",
    "lostNodes": "LOST",
    "unhealthyNodes": "UNHEALTHY",
    "decommissioningNodes": "DECOMMISSIONING",
    "decommissionedNodes": "DECOMMISSIONED",
    "rebootedNodes": "REBOOTED",
    "shutdownNodes": "SHUTDOWN",
}


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    kept: tuple[object, bytes] = None, b""

    async def info(_: Request) -> Response:
        if rm.model.number == 0:
            raise Refusal(503, "the resource manager is starting", {"Retry-After": "1"})
        return answer({"clusterInfo": _info(rm)})

    async def metrics(_: Request) -> Response:
        nonlocal kept
        found = rm.model.metrics
        if kept[0] is not found:
            kept = found, to_json({"clusterMetrics": _metrics(found)})[:-2]
        waiting = b',"rmEventQueueSize":%d,"schedulerEventQueueSize":%d}}' % rm.model.queue_sizes()
        return json_answer(kept[1] + waiting)

    about = [route(rm, path, info, always=True) for path in ("", "/info")]
    return [route(rm, "/metrics", metrics), *about]


def not_offered(rm: RMWeb) -> Sequence[BaseRoute]:
    """Paths of Hadoop's API that are not offered; they come after all others."""

    async def refuse(_: Request) -> Response:
        raise Refusal(404, "not offered by this ResourceManager")

    return [route(rm, path, refuse, _METHODS, always=True) for path in _NOT_OFFERED]


def _info(rm: RMWeb) -> dict[str, Any]:
    model, manager, hadoop = rm.model, rm.model.manager, rm.config.hadoop_version
    own = f"central-dispatcher {_version()}"
    return {
        "id": model.cluster_timestamp,
        "startedOn": manager.started_ms,
        "state": manager.state.name,
        "haState": "ACTIVE" if model.is_active() else "STOPPED",
        "rmStateStoreName": manager.store_name,
        "resourceManagerVersion": own,
        "resourceManagerBuildVersion": own,
        "resourceManagerVersionBuiltOn": "unknown",
        "hadoopVersion": hadoop,
        "hadoopBuildVersion": f"{hadoop} (the API of {own})",
        "hadoopVersionBuiltOn": "unknown",
    }


@cache
def _version() -> str:
    try:
        return version("central-dispatcher")
    except PackageNotFoundError:  # the source is on the path, and nothing is installed
        return "of the source"


def _metrics(found: ClusterMetrics) -> dict[str, Any]:
    """Whole virtual cores are rounded such that their sum holds: what is available is what the others leave.

    Never less than nothing: a reservation waits on its node for room that the node's containers have.
    """
    total, allocated, reserved = found.total, found.allocated, found.reserved
    total_cores, allocated_cores = cores(total.vcores_milli), cores(allocated.vcores_milli)
    reserved_cores = cores(allocated.vcores_milli + reserved.vcores_milli) - allocated_cores
    nodes = {key: found.nodes.get(state, 0) for key, state in _NODE_COUNTS.items()}
    return {
        "appsSubmitted": found.apps_submitted,
        "appsCompleted": found.apps_completed,
        "appsPending": found.apps_pending,
        "appsRunning": found.apps_running,
        "appsFailed": found.apps_failed,
        "appsKilled": found.apps_killed,
        "reservedMB": reserved.memory_mb,
        "availableMB": max(0, total.memory_mb - allocated.memory_mb - reserved.memory_mb),
        "allocatedMB": allocated.memory_mb,
        "pendingMB": found.pending.memory_mb,
        "totalMB": total.memory_mb,
        "reservedVirtualCores": reserved_cores,
        "availableVirtualCores": max(0, total_cores - allocated_cores - reserved_cores),
        "allocatedVirtualCores": allocated_cores,
        "pendingVirtualCores": cores(found.pending.vcores_milli),
        "totalVirtualCores": total_cores,
        "containersAllocated": found.containers_allocated,
        "containersReserved": found.containers_reserved,
        "containersPending": found.containers_pending,
        "totalNodes": sum(nodes.values()),
        **nodes,
        "totalUsedResourcesAcrossPartition": amount(allocated),
        "totalClusterResourcesAcrossPartition": amount(total),
        "totalReservedResourcesAcrossPartition": amount(reserved),
        "totalAllocatedContainersAcrossPartition": found.containers_allocated,
        "crossPartitionMetricsAvailable": True,
    }
