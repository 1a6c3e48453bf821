"""GET /jmx, and its beans: the node managers, the cluster, and each queue, with the attributes of Hadoop's metrics.

Any thread makes beans: of what one publication has, and of copies. The endpoint runs on the loop's thread.
"""

from __future__ import annotations

import socket
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dispatcher.web.plain_answers import to_json
from statemachines.resourcemanager.read.compiled import compiled
from statemachines.resourcemanager.read.fields import GONE, NODE_FIELDS, Around, partitions_of
from statemachines.resourcemanager.read.queue_paths import lineage
from statemachines.resourcemanager.reports import ApplicationReport, ClusterMetrics, NodeReport, waiting_apps
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.web.jmx.object_names import ALL, MalformedNameError, ObjectName
from statemachines.resourcemanager.web.rest.resources import MEMORY, VCORES, Amounts, amounts, left
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, finite, guarded

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

_DOMAIN: Final = "Hadoop"
_SERVICE: Final = "ResourceManager"
_ENDED: Final = {"FINISHED": "AppsCompleted", "KILLED": "AppsKilled", "FAILED": "AppsFailed"}
_MINUTES: Final = (60, 300, 1440)
"""Where the running times are cut, as by default in Hadoop."""
_NODES: Final = {
    "NumActiveNMs": "RUNNING",
    "NumDecommissioningNMs": "DECOMMISSIONING",
    "NumDecommissionedNMs": "DECOMMISSIONED",
    "NumLostNMs": "LOST",
    "NumUnhealthyNMs": "UNHEALTHY",
    "NumRebootedNMs": "REBOOTED",
    "NumShutdownNMs": "SHUTDOWN",
}
_OF_NODES: Final = sorted((field.jmx, field) for field in NODE_FIELDS if field.jmx is not None)
_NODE_MANAGER: Final[Callable[[NodeReport, Around], dict[str, Any]]] = compiled(
    "attributes(report, around)",
    [f"return {{{', '.join(f'{key!r}: get_{place}(report, around)' for (place, key), _ in _OF_NODES)}}}"],
    {f"get_{place}": field.get for (place, _), field in _OF_NODES},
)


class Bean(NamedTuple):
    """One bean. Its attributes are made when they are asked for."""

    name: ObjectName
    modeler_type: str
    attributes: Callable[[], dict[str, Any]]


class Snapshot(NamedTuple):
    """What the beans are made of."""

    nodes: Mapping[str, NodeReport]
    heartbeat_ms: Callable[[str], int | None]
    apps: Mapping[str, ApplicationReport]
    ended_apps: Mapping[tuple[str, str], int]
    """Applications that are no longer kept, by queue and state."""
    queues: Sequence[QueueInfo]
    """The root first."""
    containers: Mapping[str, tuple[int, int]]
    """Allocated and released in all, by queue."""
    metrics: ClusterMetrics
    queue_sizes: tuple[int, int]
    now_ms: int
    hadoop_version: str
    path_of: Callable[[str], str]
    """The path of a queue as applications name it."""

    @classmethod
    def of(cls, rm: RMWeb) -> Snapshot:
        """As of the last publication. The loop's thread."""
        model = rm.model
        return cls(
            model.nodes,
            model.heartbeat_ms,
            model.apps,
            dict(model.ended_apps),
            model.queues,
            model.run.by_queue,
            model.metrics,
            model.queue_sizes(),
            model.now_ms(),
            rm.config.hadoop_version,
            rm.queue_paths(),
        )


def beans(snapshot: Snapshot) -> Iterator[Bean]:
    """All beans."""
    package = "org.apache.hadoop.yarn.server.resourcemanager"
    yield _bean("RMNMInfo", lambda: _node_managers(snapshot), modeler_type=f"{package}.RMNMInfo")
    yield _bean("ClusterMetrics", lambda: _cluster(snapshot))
    tallies: dict[str, _Tally] = {}
    for queue in snapshot.queues:
        parts = {f"q{number}": name for number, name in enumerate(queue.path.split("."))}
        yield _bean("QueueMetrics", partial(_queue, snapshot, tallies, queue), parts)


def _bean(
    name: str,
    attributes: Callable[[], dict[str, Any]],
    more: Mapping[str, str] | None = None,
    modeler_type: str | None = None,
) -> Bean:
    found = ObjectName(_DOMAIN, {"service": _SERVICE, "name": name, **(more or {})})
    return Bean(found, modeler_type or str(found).partition(",name=")[2], attributes)


def _tags(**more: str) -> dict[str, str]:
    return {f"tag.{key}": value for key, value in {**more, "Context": "yarn", "Hostname": socket.gethostname()}.items()}


# -- the cluster -------------------------------------------------------------------------------------------------------


def _node_managers(snapshot: Snapshot) -> dict[str, Any]:
    """The node managers are a text of JSON, within JSON."""
    live = [each for each in snapshot.nodes.values() if each.state not in GONE]
    around, found = Around(hadoop_version=snapshot.hadoop_version), []
    for node in live:
        around.heartbeat_ms = snapshot.heartbeat_ms(node.node_id) or node.last_heartbeat_ms
        found.append(_NODE_MANAGER(node, around))
    return {"LiveNodeManagers": to_json(found).decode()}


def _cluster(snapshot: Snapshot) -> dict[str, Any]:
    total = amounts(snapshot.metrics.total)
    of_dispatcher, of_scheduler = snapshot.queue_sizes
    return {
        **_tags(ClusterMetrics=_SERVICE),
        **{name: snapshot.metrics.nodes.get(state, 0) for name, state in _NODES.items()},
        "CapabilityMB": total[MEMORY],
        "CapabilityVirtualCores": total[VCORES],
        **{f"Capability.{name}": amount for name, amount in _others(total)},
        "RmDispatcherEventQueueSize": of_dispatcher,
        "SchedulerDispatcherEventQueueSize": of_scheduler,
    }


# -- queues ------------------------------------------------------------------------------------------------------------


class _Tally:
    """What is counted of a queue and of all queues below it."""

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()  # of applications
        self.running: Counter[int] = Counter()  # of running ones, by their place among _MINUTES
        self.active_users: set[str] = set()
        self.allocated = 0
        self.released = 0


def _tallies(snapshot: Snapshot) -> Mapping[str, _Tally]:
    """By path."""
    found: defaultdict[str, _Tally] = defaultdict(_Tally)
    known: dict[str, list[_Tally]] = {}

    def tallies_of(queue: str) -> list[_Tally]:
        if queue not in known:
            known[queue] = [found[path] for path in lineage(snapshot.path_of(queue))]
        return known[queue]

    for app in snapshot.apps.values():
        minutes = (snapshot.now_ms - (app.launch_ms or app.start_ms)) / 60_000
        for tally in tallies_of(app.queue):
            tally.states[app.state] += 1
            if app.state == "RUNNING":
                tally.running[bisect_right(_MINUTES, minutes)] += 1
    for (queue, state), count in snapshot.ended_apps.items():
        for tally in tallies_of(queue):
            tally.states[state] += count
    for leaf in snapshot.queues:  # others have no users of their own
        for tally in tallies_of(leaf.path):
            tally.active_users.update(user.user for user in leaf.users if user.is_active)
    for queue, (allocated, released) in snapshot.containers.items():
        for tally in tallies_of(queue):
            tally.allocated += allocated
            tally.released += released
    return found


def _queue(snapshot: Snapshot, tallies: dict[str, _Tally], queue: QueueInfo) -> dict[str, Any]:
    """`tallies`: of all queues, once they are counted."""
    if not tallies:
        tallies.update(_tallies(snapshot))
    tally = tallies.get(queue.path) or _Tally()
    return {
        **_tags(Queue=queue.path),
        **_applications(snapshot, queue, tally),
        **_resources(queue),
        "AllocatedContainers": queue.allocated_containers,
        "AggregateContainersAllocated": tally.allocated,
        "AggregateContainersReleased": tally.released,
        "PendingContainers": queue.pending_containers,
        "ReservedContainers": queue.reserved_containers,
        "ActiveUsers": len(tally.active_users),
        "ActiveApplications": queue.active_applications,
        **{f"running_{cut}": tally.running[place] for place, cut in enumerate((0, *_MINUTES))},
    }


def _applications(snapshot: Snapshot, queue: QueueInfo, tally: _Tally) -> dict[str, int]:
    """The cluster's totals have also what came and went before this address followed the resource manager."""
    metrics, states = snapshot.metrics, tally.states
    if queue is snapshot.queues[0]:
        return {
            "AppsSubmitted": metrics.apps_submitted,
            "AppsRunning": metrics.apps_running,
            "AppsPending": metrics.apps_pending,
            "AppsCompleted": metrics.apps_completed,
            "AppsKilled": metrics.apps_killed,
            "AppsFailed": metrics.apps_failed,
        }
    return {
        "AppsSubmitted": states.total(),
        "AppsRunning": states["RUNNING"],
        "AppsPending": waiting_apps(states),
        **{name: states[state] for state, name in _ENDED.items()},
    }


def _resources(queue: QueueInfo) -> dict[str, Any]:
    """Memory and cores of each kind, and other types as Hadoop names them. Limits are of the default partition."""
    limits = partitions_of(queue)[0]
    kinds = {
        "Allocated": left(queue.used, queue.reserved),
        "Available": _available(queue),
        "Pending": amounts(queue.pending),
        "Reserved": amounts(queue.reserved),
    }
    found: dict[str, Any] = {}
    for kind, of in kinds.items():
        found |= {f"{kind}MB": of[MEMORY], f"{kind}VCores": of[VCORES]}
        found |= {f"{kind}Resource.{name}": amount for name, amount in _others(of)}
    of_masters = {"AMResourceLimit": limits.am_limit, "UsedAMResource": limits.am_used}
    bounds = {"Guaranteed": limits.guaranteed, "MaxCapacity": limits.maximum}
    for kind, resource in (of_masters | bounds).items():
        of = amounts(resource)
        found |= {f"{kind}MB": of[MEMORY], f"{kind}VCores": of[VCORES]}
    found["UsedCapacity"] = finite(limits.used_capacity / 100)
    found["AbsoluteUsedCapacity"] = finite(limits.absolute_used_capacity / 100)
    return found


def _available(queue: QueueInfo) -> Amounts:
    """What its maxima leave, over all partitions; never less than nothing."""
    found: Counter[str] = Counter(dict.fromkeys((MEMORY, VCORES), 0))
    for each in partitions_of(queue):
        for name, amount in left(each.maximum, each.used).items():
            found[name] += max(0, amount)
    return found


def _others(found: Amounts) -> Iterator[tuple[str, int]]:
    return ((name, amount) for name, amount in found.items() if name not in (MEMORY, VCORES))


# -- the endpoint ------------------------------------------------------------------------------------------------------


def route(rm: RMWeb) -> Route:
    async def jmx(request: Request) -> Response:
        query = request.query_params
        wanted, attribute = query.get("qry", ALL), None
        if "get" in query:
            parts = query["get"].split("::")
            if len(parts) != 2 or not all(parts):
                return _error("get: the format is not as expected; write NAME::ATTRIBUTE")
            wanted, attribute = parts
        try:
            pattern = ObjectName.parse(wanted)
        except MalformedNameError as error:
            return _error(f"{'qry' if attribute is None else 'get'}: {error}")
        snapshot = Snapshot.of(rm)
        return await rm.workers.run(lambda: _answer(snapshot, pattern, attribute))

    return Route("/jmx", guarded(rm, jmx), methods=["GET"])


def _answer(snapshot: Snapshot, pattern: ObjectName, attribute: str | None) -> Response:
    """An attribute that a bean lacks ends the list, as in Hadoop. A worker's thread: many nodes take long."""
    found: list[dict[str, Any]] = []
    status = 200
    for bean in beans(snapshot):
        if not pattern.matches(bean.name):
            continue
        shown = {"name": str(bean.name), "modelerType": bean.modeler_type}
        if attribute is None:
            found.append(shown | bean.attributes())
            continue
        attributes = shown | bean.attributes()
        if attribute not in attributes:
            status = 404
            found.append(shown | _failure(f"No attribute with name {attribute} was found."))
            break
        found.append(shown | {attribute: attributes[attribute]})
    return answer({"beans": found}, status)


def _error(message: str) -> Response:
    return answer(_failure(message), 400)


def _failure(message: str) -> dict[str, str]:
    return {"result": "ERROR", "message": message}
