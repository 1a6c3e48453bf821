"""Prometheus series of the cluster, its queues and its nodes, from what has been published of the resource manager.

A scrape reads the last publication, so it never waits for a handler thread. Where a web address follows the resource
manager, the series come from its model. Without one, a thread follows it from its start on: the first publication is
then small, and made before any handler can hang. A thread that began with the first scrape would publish seconds later
in a large cluster or on a busy machine, and never while a handler hangs.

Labels are bounded: queues come from the configuration, types of resources from the nodes, and at most `metrics.nodes`
nodes have series of their own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dispatcher.service import Service
from dispatcher.util.threads import start_or_postpone
from statemachines.resourcemanager.read.queue_paths import lineage, queue_paths
from statemachines.resourcemanager.records.resource import GPU_MILLI, Resource
from statemachines.resourcemanager.reports import WAITING_STATES, ApplicationReport
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo

if TYPE_CHECKING:
    from statemachines.resourcemanager.read.model import ReadModel
    from statemachines.resourcemanager.resource_manager import ResourceManager

_REFRESH_MS: Final = 1000
"""How often the thread asks for a publication. Scrapes come every few seconds."""
_LONGEST_STOP_S: Final = 1.0
_LEFT: Final = frozenset({"DECOMMISSIONED", "SHUTDOWN", "REBOOTED"})
"""States of nodes that have left on purpose: they have no series."""
_GOOD: Final = "RUNNING"
_MB: Final = 2**20
_MEMORY: Final = "memory_bytes"
_VCORES: Final = "vcores"
_GPUS: Final = "gpus"
_BUILT_IN: Final = (_MEMORY, _VCORES, _GPUS)
_PathOf = Callable[[str], str | None]
"""The path of a queue as applications name it."""


class ClusterSeries(Service):
    """A source of metrics. Any thread.

    `model`: what a web address keeps up to date. Without one, this is also the service that follows the resource
    manager: it is started before the resource manager, and stopped after it.
    """

    def __init__(self, manager: ResourceManager, model: ReadModel | None = None) -> None:
        super().__init__(f"{manager.name}-series")
        self._manager = manager  # never changes, as the next two
        self._follows = model is None
        self.model: ReadModel = model or _new_model(manager)
        self._lock = threading.Lock()  # leaf lock
        self._thread: _ModelThread | None = None  # guarded by _lock; set once
        self._has_stopped = False  # guarded by _lock

    def collect(self, dispatcher: str) -> Iterable[Metric]:
        """Return the series, with the label `dispatcher`; families without samples before the first publication."""
        families, model = _Families(dispatcher), self.model
        if model.number:
            families.add_cluster(model)
            families.add_queues(model, self._manager.clients.acls.path_of)
            families.add_nodes(model, self._manager.settings.metrics.nodes)
        return families.all

    def service_start(self) -> None:
        if self._follows:
            start_or_postpone(self.name, self._begin)

    def service_stop(self) -> None:
        with self._lock:
            self._has_stopped, thread = True, self._thread
        if thread is not None:
            thread.stop()

    def _begin(self) -> None:
        """Begin to follow. Any thread; raises what `Thread.start` raises if no thread can be started."""
        thread = _ModelThread(self.name, self.model)
        with self._lock:
            if not self._has_stopped:
                thread.thread.start()
                self._thread = thread


def _new_model(manager: ResourceManager) -> ReadModel:
    from statemachines.resourcemanager.read.model import ReadModel

    return ReadModel(manager, _REFRESH_MS)


class _ModelThread:
    """Keeps a model up to date, on a thread with an asyncio loop."""

    def __init__(self, name: str, model: ReadModel) -> None:
        self.thread: threading.Thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name=name, daemon=True
        )
        self._model = model
        self._loop: asyncio.AbstractEventLoop | None = None  # written by the thread, before `_begun`
        self._stopping = asyncio.Event()  # the loop's thread
        self._begun = threading.Event()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        self._model.follow()
        await self._stopping.wait()
        await self._model.close()

    def stop(self) -> None:
        """End the thread. Any thread."""
        self._begun.wait(_LONGEST_STOP_S)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._stopping.set)
        self.thread.join(_LONGEST_STOP_S)


# -- the series --------------------------------------------------------------------------------------------------------


class _Families:
    """All families of one scrape.

    The loop's thread may apply a publication in the meantime. Each mapping of the model belongs to one publication and
    never changes.
    """

    def __init__(self, dispatcher: str) -> None:
        self._dispatcher = dispatcher
        self.all: list[Metric] = []
        gauge = partial(self._new, GaugeMetricFamily)
        self._age = gauge("state_age_seconds", "Age of what the series of the cluster, queues and nodes show.")
        self._capacity = gauge("capacity", "What the nodes in use have.", "resource")
        self._nodes = gauge("nodes", "Nodes by state.", "state")
        self._ended = self._new(
            CounterMetricFamily, "applications_ended", "Applications that have ended, by final state.", "state"
        )
        of = ("queue", "resource")
        self._queue_used = gauge("queue_used", "What a queue uses, with what is reserved.", *of)
        self._queue_pending = gauge("queue_pending", "What the applications of a queue ask for.", *of)
        self._queue_guaranteed = gauge("queue_guaranteed", "What a queue is guaranteed, over all partitions.", *of)
        of = ("queue", "state")
        self._queue_containers = gauge("queue_containers", "Containers allocated, reserved and pending.", *of)
        self._queue_applications = gauge("queue_applications", "Applications waiting and running.", *of)
        self._queue_oldest = gauge(
            "queue_oldest_wait_seconds",
            "How long the oldest application of a queue without children has waited to run; 0 if none waits.",
            "queue",
        )
        self._without = gauge("nodes_without_series", "Nodes beyond metrics.nodes, which have no series of their own.")
        self._node_state = gauge("node_state", "1 for the state of a node.", "node", "state")
        of = ("node", "resource")
        self._node_capacity = gauge("node_capacity", "What a node has.", *of)
        self._node_used = gauge("node_used", "What the containers on a node have.", *of)
        self._node_reserved = gauge("node_reserved", "What a container waits for on a node, if one does.", *of)
        self._node_containers = gauge("node_containers", "Containers allocated on a node.", "node")
        self._node_silent = gauge("node_heartbeat_age_seconds", "How long ago a node was last heard of.", "node")

    def _new(self, kind: Callable[..., Metric], name: str, help: str, *labels: str) -> Callable[..., None]:
        """A new family: a function that adds a sample, by the value and the labels."""
        family: Any = kind(f"resourcemanager_{name}", help, labels=["dispatcher", *labels])
        self.all.append(family)
        return lambda value, *labels: family.add_metric([self._dispatcher, *labels], value)

    def add_cluster(self, model: ReadModel) -> None:
        metrics = model.metrics
        self._age(model.age_ms() / 1000)
        for name, amount in _amounts(metrics.total):
            self._capacity(amount, name)
        for state, count in metrics.nodes.items():
            self._nodes(count, state)
        self._ended(metrics.apps_completed, "FINISHED")
        self._ended(metrics.apps_failed, "FAILED")
        self._ended(metrics.apps_killed, "KILLED")

    def add_queues(self, model: ReadModel, path_of: _PathOf) -> None:
        """Of all resource types that nodes have: others, which an application may ask for, are no labels."""
        queues, types = model.queues, [name for name, _ in _amounts(model.metrics.total)]
        waiting, running, since_ms = _applications(model.apps.values(), queues, path_of)
        now_ms = model.now_ms()
        for queue in queues:
            path = queue.path
            for family, resources in (
                (self._queue_used, [queue.used]),
                (self._queue_pending, [queue.pending]),
                (self._queue_guaranteed, [each.guaranteed for each in queue.partitions]),
            ):
                amounts: Counter[str] = Counter()
                for resource in resources:
                    amounts.update(dict(_amounts(resource)))
                for name in types:
                    family(amounts[name], path, name)
            self._queue_containers(queue.allocated_containers, path, "allocated")
            self._queue_containers(queue.reserved_containers, path, "reserved")
            self._queue_containers(queue.pending_containers, path, "pending")
            self._queue_applications(waiting[path], path, "waiting")
            self._queue_applications(running[path], path, "running")
            if queue.is_leaf:
                self._queue_oldest(max(0, now_ms - since_ms.get(path, now_ms)) / 1000, path)

    def add_nodes(self, model: ReadModel, most: int) -> None:
        """Beyond `most` nodes, those that do not run come first, then the others by id: series do not come and go."""
        present = [each for each in model.nodes.values() if each.state not in _LEFT]
        present.sort(key=lambda node: (node.state == _GOOD, node.node_id))
        now_ms = model.now_ms()
        for node in present[:most]:
            id, used = node.node_id, dict(_amounts(node.used))
            self._node_state(1, id, node.state)
            for name, amount in _amounts(node.capacity):
                self._node_capacity(amount, id, name)
                self._node_used(used.get(name, 0), id, name)
            if node.reserved_container is not None:
                for name, amount in _amounts(node.reserved):
                    self._node_reserved(amount, id, name)
            self._node_containers(node.containers, id)
            heard_ms = model.heartbeat_ms(id) or node.last_heartbeat_ms
            self._node_silent(max(0, now_ms - heard_ms) / 1000, id)
        self._without(max(0, len(present) - most))


def _applications(
    apps: Iterable[ApplicationReport], queues: Sequence[QueueInfo], path_of: _PathOf
) -> tuple[Counter[str], Counter[str], dict[str, int]]:
    """By a queue's path: how many applications wait and run there or below, and since when the oldest one waits."""
    path = queue_paths(queues, path_of)
    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    since_ms: dict[str, int] = {}
    lineages: dict[str, list[str]] = {}
    for app in apps:  # in the order of their start
        counts = waiting if app.state in WAITING_STATES else running if app.state == "RUNNING" else None
        if counts is None:
            continue
        paths = lineages.get(app.queue)
        if paths is None:
            paths = lineages[app.queue] = lineage(path(app.queue))
        counts.update(paths)
        if counts is waiting:
            since_ms.setdefault(paths[-1], app.start_ms)
    return waiting, running, since_ms


def _amounts(resource: Resource) -> Iterator[tuple[str, float]]:
    """By type of resource, in base units. Memory and virtual cores always, the others if there are any."""
    yield _MEMORY, resource.memory_mb * _MB
    yield _VCORES, resource.vcores_milli / 1000
    if resource.gpu_milli_total:
        yield _GPUS, resource.gpu_milli_total / GPU_MILLI
    # A label twice, and Prometheus would reject the whole page.
    yield from ((name, amount) for name, amount in resource.others if name not in _BUILT_IN)
