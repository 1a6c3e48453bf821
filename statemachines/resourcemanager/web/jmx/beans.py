"""GET /jmx, and its beans: the node managers, the cluster, and each queue, with the attributes of Hadoop's metrics.

Any thread makes beans: of what one publication has, and of copies. The endpoint runs on the loop's thread.
"""

from __future__ import annotations

import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dispatcher.web.plain_answers import to_json
from statemachines.resourcemanager.read.compiled import compiled
from statemachines.resourcemanager.read.fields import GONE, NODE_FIELDS, Around, Field, Unit
from statemachines.resourcemanager.read.queue_fields import QUEUE_FIELDS
from statemachines.resourcemanager.read.queue_paths import lineage
from statemachines.resourcemanager.read.queue_tally import AppCounts, QueueTally
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.reports import ApplicationReport, ClusterMetrics, NodeReport
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.web.jmx.object_names import ALL, MalformedNameError, ObjectName
from statemachines.resourcemanager.web.rest.resources import MEMORY, VCORES, Amounts, amounts, cores, left
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, finite, guarded

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

R = TypeVar("R")

_DOMAIN: Final = "Hadoop"
_SERVICE: Final = "ResourceManager"
_NODES: Final = {
    "NumActiveNMs": "RUNNING",
    "NumDecommissioningNMs": "DECOMMISSIONING",
    "NumDecommissionedNMs": "DECOMMISSIONED",
    "NumLostNMs": "LOST",
    "NumUnhealthyNMs": "UNHEALTHY",
    "NumRebootedNMs": "REBOOTED",
    "NumShutdownNMs": "SHUTDOWN",
}


def in_beans(fields: Iterable[Field[R]]) -> list[tuple[str, Field[R]]]:
    """The fields that beans have, by their keys there, in order."""
    found = sorted((field.jmx, field) for field in fields if field.jmx is not None)
    return [(key, field) for (_, key), field in found]


_OF_NODES: Final = in_beans(NODE_FIELDS)
_NODE_MANAGER: Final[Callable[[NodeReport, Around], dict[str, Any]]] = compiled(
    "attributes(report, around)",
    [f"return {{{', '.join(f'{key!r}: get_{key}(report, around)' for key, _ in _OF_NODES)}}}"],
    {f"get_{key}": field.get for key, field in _OF_NODES},
)
OF_QUEUES: Final = in_beans(QUEUE_FIELDS)


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
    tallies: dict[str, QueueTally] = {}
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


def _tallies(snapshot: Snapshot) -> Mapping[str, QueueTally]:
    """By path."""
    found: defaultdict[str, QueueTally] = defaultdict(QueueTally)
    known: dict[str, list[QueueTally]] = {}

    def tallies_of(queue: str) -> list[QueueTally]:
        if queue not in known:
            known[queue] = [found[path] for path in lineage(snapshot.path_of(queue))]
        return known[queue]

    for app in snapshot.apps.values():
        for tally in tallies_of(app.queue):
            tally.count(app, snapshot.now_ms)
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
    for tally in found.values():
        tally.apps = AppCounts.of_states(tally.states)
    found[snapshot.queues[0].path].apps = AppCounts.of_cluster(snapshot.metrics)
    return found


def _queue(snapshot: Snapshot, tallies: dict[str, QueueTally], queue: QueueInfo) -> dict[str, Any]:
    """`tallies`: of all queues, once they are counted."""
    if not tallies:
        tallies.update(_tallies(snapshot))
    around = Around(tally=tallies.get(queue.path) or QueueTally())
    found: dict[str, Any] = _tags(Queue=queue.path)
    for key, field in OF_QUEUES:
        found |= _SHOWN.get(field.unit, _as_it_is)(key, field.get(queue, around))
    return found


def _as_it_is(key: str, value: Any) -> dict[str, Any]:
    return {key: value}


def _by_type(kind: str, found: Amounts) -> dict[str, int]:
    """Memory and cores, and other types as Hadoop names them."""
    others = {f"{kind}Resource.{name}": amount for name, amount in _others(found)}
    return {f"{kind}MB": found[MEMORY], f"{kind}VCores": found[VCORES], **others}


def _left_of_each(pairs: Iterable[tuple[Resource, Resource]]) -> Amounts:
    found: Counter[str] = Counter(dict.fromkeys((MEMORY, VCORES), 0))
    for total, taken in pairs:
        for name, amount in left(total, taken).items():
            found[name] += max(0, amount)
    return found


_SHOWN: Final[Mapping[Unit, Callable[[str, Any], dict[str, Any]]]] = {
    Unit.SHARE: lambda key, share: {key: finite(share)},
    Unit.CORES_MILLI: lambda key, milli: {key: cores(milli)},
    Unit.RESOURCE: lambda kind, resource: _by_type(kind, amounts(resource)),
    Unit.LEFT: lambda kind, pair: _by_type(kind, left(*pair)),
    Unit.LEFT_OF_EACH: lambda kind, pairs: _by_type(kind, _left_of_each(pairs)),
}
"""The attributes of a field of queues. Values of other units are attributes as they are."""


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
        attributes = shown | bean.attributes()
        if attribute is None:
            found.append(attributes)
        elif attribute in attributes:
            found.append(shown | {attribute: attributes[attribute]})
        else:
            status = 404
            found.append(shown | _failure(f"No attribute with name {attribute} was found."))
            break
    return answer({"beans": found}, status)


def _error(message: str) -> Response:
    return answer(_failure(message), 400)


def _failure(message: str) -> dict[str, str]:
    return {"result": "ERROR", "message": message}
