"""First come, first served: containers go to nodes in the order in which their applications were submitted.

As in YARN's FIFO scheduler, an ask that no node can take waits without holding up those behind it. What keeps this
cheap is one invariant: **no waiting ask fits on any node**. So a new ask of a shape that waits already joins the others
unseen, and when a node gets room, only that node is tried.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events import (
    EXIT_ABORTED,
    ContainerRequest,
    ContainerStatus,
    RMAppAttemptEvent,
    RMAppAttemptEventType,
    RMAppEvent,
    RMAppEventType,
    RMContainerEvent,
    RMContainerEventType,
    SchedulerEvent,
)
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.rmcontainer import RMContainer
from statemachines.resourcemanager.scheduler_node import SchedulerNode


class Shape(NamedTuple):
    """What decides whether an ask fits on a node. Asks of one shape fit, or do not fit, together."""

    resource: Resource
    gpu_models: frozenset[str]


class _Attempt:
    """The scheduler's view of an application attempt, after SchedulerApplicationAttempt."""

    __slots__ = ("application", "asks", "container_ids", "id", "live", "new", "order", "prefix")

    def __init__(self, attempt_id: str, application: str, order: int) -> None:
        self.id = attempt_id
        self.application = application
        self.order = order  # of its application's submission
        # container_<cluster>_<application>_<attempt>_<number>, from appattempt_<cluster>_<application>_<attempt>
        cluster, number, attempt = attempt_id.removeprefix("appattempt_").split("_")
        self.prefix = f"container_{cluster}_{number}_{int(attempt):02d}_"
        self.container_ids = itertools.count(1)
        self.live: dict[str, RMContainer] = {}
        self.new: list[RMContainer] = []  # allocated, and not fetched by the master
        self.asks = 0  # that wait


class _Ask(NamedTuple):
    """A waiting request; compares by (order of the application, priority, order of arrival)."""

    order: int
    priority: int
    arrival: int
    attempt: _Attempt
    request: ContainerRequest


class FifoScheduler:
    """Takes SchedulerEvents, and direct calls from the attempts and the ApplicationMasterService."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self._nodes: dict[str, SchedulerNode] = {}
        self._by_host: dict[str, SchedulerNode] = {}
        self._plain_nodes: list[SchedulerNode] = []
        self._gpu_nodes: list[SchedulerNode] = []
        self._next = 0  # where the search for a node goes on: the last one found is full first
        self._orders: dict[str, int] = {}  # of the applications, by id
        self._order = itertools.count()
        self._arrival = itertools.count()
        self._attempts: dict[str, _Attempt] = {}
        self._waiting: dict[Shape, list[_Ask]] = {}  # heaps, none of them empty; no asks of removed attempts
        self._handlers = {
            "NODE_ADDED": self._add_node,
            "NODE_REMOVED": self._remove_node,
            "NODE_UPDATE": self._update_node,
            "APP_ADDED": self._add_app,
            "APP_REMOVED": self._remove_app,
            "APP_ATTEMPT_ADDED": self._add_attempt,
            "APP_ATTEMPT_REMOVED": self._remove_attempt,
        }

    def handle(self, event: SchedulerEvent) -> None:
        self._handlers[event.type._name_](event.entity)

    # -- direct calls ---------------------------------------------------------------------------------------------

    def allocate(
        self, attempt_id: str, requests: Iterable[ContainerRequest] = (), releases: Iterable[str] = ()
    ) -> None:
        """Give back `releases`, then place or queue `requests`. What is placed comes with `pull_newly_allocated`.

        An attempt that the scheduler does not know, or no longer, gets nothing. Only a container that has been fetched
        can be released.
        """
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            return
        for container_id in releases:
            container = attempt.live.get(container_id)
            if container not in attempt.new:  # its state would refuse the release, and it would have no room and no end
                self._end_container(container, RMContainerEventType.RELEASED, "released by its master")
        for request in requests:
            shape = Shape(request.resource, request.gpu_models)
            node = None if shape in self._waiting else self._find_node(request, shape)
            if node is not None:
                self._allocate_on(node, attempt, request)
            else:
                attempt.asks += 1
                ask = _Ask(attempt.order, request.priority, next(self._arrival), attempt, request)
                heapq.heappush(self._waiting.setdefault(shape, []), ask)

    def pull_newly_allocated(self, attempt_id: str) -> list[RMContainer]:
        """The containers allocated since the last call; they are ACQUIRED with this."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or not attempt.new:
            return []
        new, attempt.new = attempt.new, []
        for container in new:
            self._context.post(RMContainerEvent(RMContainerEventType.ACQUIRED, container.entity))
        return new

    def nodes(self) -> Iterator[SchedulerNode]:
        """The usable nodes, for reports and checks."""
        return iter(self._nodes.values())

    def waiting(self) -> list[tuple[str, ContainerRequest]]:
        """What waits for room: (attempt id, request), in the order of service."""
        asks = sorted(ask for heap in self._waiting.values() for ask in heap)
        return [(ask.attempt.id, ask.request) for ask in asks]

    # -- events -----------------------------------------------------------------------------------------------------

    def _add_node(self, node_id: str) -> None:
        rmnode = self._context.nodes.get(node_id)
        if rmnode is None or node_id in self._nodes:
            return
        node = SchedulerNode(node_id, rmnode.spec)
        self._nodes[node_id] = node
        self._by_host[node.host] = node
        (self._gpu_nodes if node.has_gpus else self._plain_nodes).append(node)
        self._schedule_on(node)

    def _remove_node(self, node_id: str) -> None:
        node = self._nodes.pop(node_id, None)
        if node is None:
            return
        del self._by_host[node.host]
        (self._gpu_nodes if node.has_gpus else self._plain_nodes).remove(node)
        for container_id in list(node.containers):
            container = self._live_container(container_id)
            self._end_container(container, RMContainerEventType.KILL, f"its node {node_id} was lost", reschedule=False)

    def _update_node(self, node_id: str) -> None:
        rmnode = self._context.nodes.get(node_id)
        if rmnode is None:
            return
        post, freed = self._context.post, False
        for launched, finished in rmnode.pull_updates():
            for container_id in launched:
                post(RMContainerEvent(RMContainerEventType.LAUNCHED, container_id))
            for status in finished:
                container = self._live_container(status.container)
                if container is not None:
                    self._release(container)
                    post(RMContainerEvent(RMContainerEventType.FINISHED, status.container, status))
                    freed = True
        node = self._nodes.get(node_id)
        if freed and node is not None:
            self._schedule_on(node)

    def _add_app(self, application: str) -> None:
        self._orders[application] = next(self._order)
        self._context.post(RMAppEvent(RMAppEventType.APP_ACCEPTED, application))

    def _remove_app(self, application: str) -> None:
        self._orders.pop(application, None)

    def _add_attempt(self, attempt_id: str) -> None:
        application = self._context.attempts[attempt_id].app.entity
        self._attempts[attempt_id] = _Attempt(attempt_id, application, self._orders[application])
        self._context.post(RMAppAttemptEvent(RMAppAttemptEventType.ATTEMPT_ADDED, attempt_id))

    def _remove_attempt(self, attempt_id: str) -> None:
        attempt = self._attempts.pop(attempt_id, None)
        if attempt is None:
            return
        freed = {container.node: None for container in attempt.live.values()}  # a dict: in order, each once
        for container in list(attempt.live.values()):
            self._end_container(container, RMContainerEventType.KILL, "its attempt ended", reschedule=False)
        if attempt.asks:
            self._drop_asks(attempt)
        for node_id in freed:
            if node_id in self._nodes:
                self._schedule_on(self._nodes[node_id])

    # -- placing ------------------------------------------------------------------------------------------------------

    def _find_node(self, request: ContainerRequest, shape: Shape) -> SchedulerNode | None:
        """The preferred node if it has room, else the next one that has; without GPUs first where none is asked."""
        if request.host is not None:
            preferred = self._by_host.get(request.host)
            if preferred is not None and preferred.fits(request.resource, shape.gpu_models):
                return preferred
        groups = (self._gpu_nodes,) if request.resource.gpus else (self._plain_nodes, self._gpu_nodes)
        for nodes in groups:
            count = len(nodes)
            for step in range(count):
                index = (self._next + step) % count
                if nodes[index].fits(request.resource, shape.gpu_models):
                    self._next = index
                    return nodes[index]
        return None

    def _schedule_on(self, node: SchedulerNode) -> None:
        """The node has room: give it to those that wait, the first come first, as far as it goes."""
        heads = [(heap[0], shape) for shape, heap in self._waiting.items()]
        heapq.heapify(heads)
        while heads:
            ask, shape = heapq.heappop(heads)
            if not node.fits(shape.resource, shape.gpu_models):
                continue  # nor do the others of this shape
            heap = self._waiting[shape]
            heapq.heappop(heap)
            ask.attempt.asks -= 1
            self._allocate_on(node, ask.attempt, ask.request)
            if heap:
                heapq.heappush(heads, (heap[0], shape))
            else:
                del self._waiting[shape]

    def _allocate_on(self, node: SchedulerNode, attempt: _Attempt, request: ContainerRequest) -> None:
        container_id = f"{attempt.prefix}{next(attempt.container_ids):06d}"
        devices = node.take(container_id, request.resource)
        context = self._context
        container = RMContainer(context, container_id, attempt.application, attempt.id, node.node_id, request, devices)
        context.containers[container_id] = container
        attempt.live[container_id] = container
        attempt.new.append(container)
        context.post(RMContainerEvent(RMContainerEventType.START, container_id, payload=container.payload()))

    # -- ending -------------------------------------------------------------------------------------------------------

    def _end_container(
        self, container: RMContainer | None, type: RMContainerEventType, why: str, *, reschedule: bool = True
    ) -> None:
        if container is None:
            return
        self._release(container)
        status = ContainerStatus(container.entity, EXIT_ABORTED, why)
        self._context.post(RMContainerEvent(type, container.entity, status))
        node = self._nodes.get(container.node)
        if reschedule and node is not None:
            self._schedule_on(node)

    def _release(self, container: RMContainer) -> None:
        """Take the container out of the books. What is posted after this about its room comes after its end."""
        attempt = self._attempts.get(container.attempt)
        if attempt is not None:
            attempt.live.pop(container.entity, None)
            if container in attempt.new:
                attempt.new.remove(container)
        node = self._nodes.get(container.node)
        if node is not None:
            node.give_back(container.entity)

    def _live_container(self, container_id: str) -> RMContainer | None:
        """The container, if it still counts in the scheduler's books."""
        container: RMContainer | None = self._context.containers.get(container_id)
        if container is None:
            return None
        attempt = self._attempts.get(container.attempt)
        return container if attempt is not None and container_id in attempt.live else None

    def _drop_asks(self, attempt: _Attempt) -> None:
        for shape, heap in list(self._waiting.items()):
            kept = [ask for ask in heap if ask.attempt is not attempt]
            if not kept:
                del self._waiting[shape]
            elif len(kept) != len(heap):
                heapq.heapify(kept)
                self._waiting[shape] = kept
