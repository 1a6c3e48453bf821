"""A scheduler with real nodes and containers, each event handled at once; applications and attempts get no events."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from dispatcher.testing import InlineDispatcher, ManualClock
from statemachines import TransitionRecorder
from statemachines.resourcemanager import (
    ApplicationSubmission,
    ContainerRequest,
    ContainerStatus,
    Resource,
    ResourceManagerConfig,
    RMApp,
    RMAppAttempt,
    RMAppAttemptEventType,
    RMAppEventType,
    RMAppState,
    RMContainer,
    RMContainerEventType,
    RMNodeEventType,
)
from statemachines.simulation.workload import NodeSpec

from .inner import (
    NOTHING,
    AMLauncherEvent,
    AMLauncherEventType,
    AppAddedSchedulerEvent,
    AppAttemptAddedSchedulerEvent,
    AppAttemptRemovedSchedulerEvent,
    EntityEventHandler,
    FifoScheduler,
    HeartbeatAnswer,
    NodeAddedSchedulerEvent,
    NodeLabelsUpdateSchedulerEvent,
    NodesListManager,
    NodesListManagerEventType,
    ResourceScheduler,
    ResourceTrackerService,
    RMContext,
    RMNodeEvent,
    SchedulerEvent,
    SchedulerEventType,
    SchedulerNode,
    add,
    amounts_of,
    application_of,
    cluster_metrics,
    named,
    resource_of,
)


def accepted_app(context: RMContext, app: str, submission: ApplicationSubmission) -> RMApp:
    """An application that has been accepted; nothing has been posted for it."""
    made = RMApp(context, app, submission)
    made.state_machine = context.factories[RMApp.machine].make(made, RMAppState.ACCEPTED, context.recorder)
    return made


def attempt_of_app(context: RMContext, app: str, number: int, master: str | None = None) -> str:
    """Add an attempt with that master to the context; nothing has been posted for it."""
    made = RMAppAttempt(context, context.apps[app], number)
    made.master_container = master
    context.attempts[made.entity] = made
    return made.entity


class Cluster:
    """Add nodes, applications and attempts, ask for containers, end them; `check` says what must hold at any time."""

    def __init__(self, make: Callable[[RMContext], ResourceScheduler] = FifoScheduler, **config: Any) -> None:
        """`make` makes the scheduler; `config` is the resource manager's."""
        self.dispatcher = InlineDispatcher()
        self.recorder = TransitionRecorder()
        settings = ResourceManagerConfig.model_validate(config)
        self.context = RMContext(
            settings,
            self.dispatcher,  # type: ignore[arg-type]
            ManualClock(),
            self.recorder,
            0,
            scheduler=make,
        )
        self.scheduler: Any = self.context.scheduler
        self.on_heartbeat = self.scheduler._on_heartbeat
        self.tracker = ResourceTrackerService(self.context, NodesListManager(self.context))
        self.news: list[Any] = []  # events for applications and attempts
        self.tags = itertools.count(1)
        self.short: set[str] = set()  # nodes that may have less than what their containers have
        self.blacklists: dict[str, set[str]] = {}  # by attempt
        self.apps = itertools.count(1)  # numbers of applications to come
        register = self.dispatcher.register
        register(RMContainerEventType, EntityEventHandler(self.context.containers))
        register(RMNodeEventType, EntityEventHandler(self.context.nodes))
        register(SchedulerEventType, self.scheduler)
        register(RMAppEventType, self.news.append)
        register(RMAppAttemptEventType, self.news.append)
        register(NodesListManagerEventType, lambda event: None)
        register(AMLauncherEventType, lambda event: event.entity())

    @property
    def policy(self) -> Any:
        return self.scheduler._policy

    # -- what others do to the scheduler ------------------------------------------------------------------------------

    def add_node(
        self, host: str, memory_mb: int = 10, vcores_milli: int = 10, gpus: int = 0, model: str = "", **more: Any
    ) -> str:
        """`more` is of the NodeSpec; `others` of its capacity; `containers` are those that it has."""
        capacity = Resource(memory_mb, vcores_milli, gpus, others=named(more.pop("others", {})))
        containers = more.pop("containers", ())
        return self.tracker.register_node(NodeSpec(host, capacity, gpu_model=model or None, **more), containers)

    def announcement(self, node: str, running: tuple[Any, ...] = ()) -> SchedulerEvent:
        """The scheduler's event for a node that registers with these containers."""
        return NodeAddedSchedulerEvent(node, running)

    def lose_node(self, node: str) -> None:
        self.post(RMNodeEvent(RMNodeEventType.EXPIRE, node))

    def add_app(self, app: str | None = None, *, is_recovering: bool = False, **submission: Any) -> str:
        app = app or f"application_0_{next(self.apps):04d}"
        submitted = ApplicationSubmission(**{"name": "job", "am_resource": Resource(1, 1), **submission})
        self.context.apps[app] = accepted_app(self.context, app, submitted)
        self.post(AppAddedSchedulerEvent(app, is_recovering))
        return app

    def remove_app(self, app: str) -> None:
        self.post(SchedulerEvent(SchedulerEventType.APP_REMOVED, app))
        del self.context.apps[app]

    def add_attempt(self, app: str, number: int = 1, *, transfer_state: bool = False) -> str:
        attempt = attempt_of_app(self.context, app, number)
        self.post(AppAttemptAddedSchedulerEvent(attempt, transfer_state))
        return attempt

    def remove_attempt(self, attempt: str, *, keep_containers: bool = False) -> None:
        self.post(AppAttemptRemovedSchedulerEvent(attempt, keep_containers))

    def new_attempt(self, **submission: Any) -> str:
        return self.add_attempt(self.add_app(**submission))

    def recover_attempt(self, attempt: str, master: str | None = None) -> None:
        """As after a restart; its application has to be there."""
        attempt_of_app(self.context, application_of(attempt), int(attempt.rpartition("_")[2]), master)
        self.in_handler(lambda: self.scheduler.handle(AppAttemptAddedSchedulerEvent(attempt, is_recovering=True)))

    def blacklist(self, attempt: str, additions: tuple[str, ...] = (), removals: tuple[str, ...] = ()) -> None:
        self.blacklists[attempt] = self.blacklists.get(attempt, set()).union(additions).difference(removals)
        self.in_handler(lambda: self.scheduler.ask(attempt, blacklist_additions=additions, blacklist_removals=removals))

    def change_capacity(self, node: str, memory_mb: int, vcores_milli: int = 10, gpus: int = 0, **others: int) -> None:
        self.short.add(node)
        capacity = Resource(memory_mb, vcores_milli, gpus, others=named(others))
        self.post(RMNodeEvent(RMNodeEventType.RESOURCE_UPDATE, node, capacity))

    def change_label(self, node: str, partition: str) -> None:
        self.post(NodeLabelsUpdateSchedulerEvent(node, partition))

    def decommission(self, node: str) -> None:
        """Gracefully."""
        self.post(RMNodeEvent(RMNodeEventType.GRACEFUL_DECOMMISSION, node))

    def recommission(self, node: str) -> None:
        self.post(RMNodeEvent(RMNodeEventType.RECOMMISSION, node))

    def expire(self, container: RMContainer) -> None:
        self.post(SchedulerEvent(SchedulerEventType.CONTAINER_EXPIRED, container.entity))

    def resize(self, container: RMContainer, resource: Resource) -> bool:
        done: list[bool] = []
        self.in_handler(lambda: done.append(self.scheduler.request_resize(container.entity, resource)))
        return done[0]

    def ask(self, attempt: str, *requests: ContainerRequest | Resource, releases: tuple[str, ...] = ()) -> None:
        asks = [request if isinstance(request, ContainerRequest) else self.request(request) for request in requests]
        self.in_handler(lambda: self.scheduler.ask(attempt, asks, releases))

    def request(self, resource: Resource, **more: Any) -> ContainerRequest:
        return ContainerRequest(resource, tag=next(self.tags), **more)

    def pull(self, attempt: str) -> list[RMContainer]:
        pulled: list[RMContainer] = []
        self.in_handler(lambda: pulled.extend(self.scheduler.pull_newly_allocated(attempt)))
        assert all(container.state.name == "ACQUIRED" for container in pulled)
        return pulled

    def heartbeat(self, attempt: str) -> HeartbeatAnswer:
        """What the scheduler answers the attempt's master."""
        answers: list[HeartbeatAnswer] = []
        self.in_handler(lambda: answers.append(self.scheduler.heartbeat_answer(attempt)))
        return answers[0]

    def headroom(self, attempt: str) -> Resource:
        """As in the answer to its heartbeat, without what else an answer does."""
        return resource_of(self.policy.headroom(self.scheduler._books.attempts[attempt]))

    def get(self, attempt: str, *requests: ContainerRequest | Resource) -> list[RMContainer]:
        """Ask, fetch and launch."""
        self.ask(attempt, *requests)
        containers = self.pull(attempt)
        for container in containers:
            self.tracker.heartbeat(container.node, launched=(container.entity,))
        return containers

    def finish(self, container: RMContainer) -> None:
        self.tracker.heartbeat(container.node, finished=(ContainerStatus(container.entity, 0),))

    def in_handler(self, call: Callable[[], Any]) -> None:
        """As all direct calls: from the handling of an event, so that what is posted comes after it."""
        self.post(AMLauncherEvent(AMLauncherEventType.LAUNCH, call))  # type: ignore[arg-type]

    def post(self, event: Any) -> None:
        self.dispatcher.event_handler.handle(event)

    # -- what is to be seen -------------------------------------------------------------------------------------------

    def where(self, containers: list[RMContainer]) -> list[str]:
        return [container.node.split(":")[0] for container in containers]

    def news_names(self) -> list[str]:
        return [f"{event.type.name} {event.entity}" for event in self.news]

    def waiting_tags(self) -> list[int]:
        return [request.tag for _, request in self.scheduler.waiting()]

    def check(self) -> None:
        """No node is oversubscribed, the books are right, and no request waits needlessly."""
        nodes = {node.node_id: node for node in self.scheduler.nodes()}
        usable = ("RUNNING", "DECOMMISSIONING")
        assert set(nodes) == {node.entity for node in self.context.nodes.values() if node.state.name in usable}
        on_node: dict[str, list[RMContainer]] = {node: [] for node in nodes}
        for container in self.context.containers.values():
            if container.state.name != "RESERVED":
                on_node[container.node].append(container)  # KeyError: a container on a node that is lost
        for node_id, containers in on_node.items():
            self._check_node(nodes[node_id], containers)
        self.check_totals(on_node)
        live = [c for attempt in self.context.attempts for c in self.scheduler.live_containers(attempt)]
        assert {c.entity for c in live} == {c.entity for containers in on_node.values() for c in containers}
        self.check_waiting(nodes)
        for machine, stats in self.recorder.machines.items():
            assert stats.invalid == 0, f"{machine} made invalid transitions"

    def _check_node(self, node: SchedulerNode, containers: list[RMContainer]) -> None:
        used: Counter[str] = Counter()
        used_gpu_milli: Counter[int] = Counter()
        for container in containers:
            resource = container.request.resource
            assert len(set(container.gpu_devices)) == resource.gpus
            used_gpu_milli.update(dict.fromkeys(container.gpu_devices, resource.gpu_milli))
            used.update({"memory": resource.memory_mb, "vcores": resource.vcores_milli, **dict(resource.others)})
            assert not container.request.gpu_models or node.gpu_model in container.request.gpu_models
        capacity = node.capacity
        total = Counter({"memory": capacity.memory_mb, "vcores": capacity.vcores_milli, **dict(capacity.others)})
        free = {"memory": node.free_memory_mb, "vcores": node.free_vcores_milli, **node.free_others}
        assert set(node.containers) == {container.entity for container in containers}
        assert free == {name: total[name] - used[name] for name in free}
        assert set(total) | set(used) <= set(free)
        whole = [1000 * (device < capacity.gpus) for device in range(len(node.free_gpu_milli))]
        assert node.free_gpu_milli == [milli - used_gpu_milli[device] for device, milli in enumerate(whole)]
        assert node.node_id in self.short or min(*free.values(), *node.free_gpu_milli) >= 0

    def check_totals(self, on_node: dict[str, list[RMContainer]]) -> None:
        """Partitions and the cluster have what their nodes have; of a draining node its containers' room alone."""
        totals: dict[str, dict[str, int]] = {}
        for node in self.scheduler.nodes():
            amounts = [amounts_of(node.capacity)]
            if self.context.nodes[node.node_id].state.name == "DECOMMISSIONING":
                amounts = [amounts_of(container.request.resource) for container in on_node[node.node_id]]
            for each in amounts:
                add(totals.setdefault(self.partition_of_node(node), {}), each)
        shown = {info.partition: info.maximum for info in self.scheduler.queues()[0].partitions}
        for partition in totals.keys() | shown.keys():
            assert shown.get(partition, NOTHING) == resource_of(totals.get(partition, {}))
        cluster: dict[str, int] = {}
        for total in totals.values():
            add(cluster, total.items())
        assert cluster_metrics(self.context).total == resource_of(cluster)

    def partition_of_node(self, node: SchedulerNode) -> str:
        """FIFO's one queue has all partitions as one."""
        return ""

    def check_waiting(self, nodes: dict[str, SchedulerNode]) -> None:
        """No waiting ask fits on any node that it may use: a search that looks at all of them finds none either."""
        if self.on_heartbeat:  # they wait for a node to report
            return
        for attempt, request in self.scheduler.waiting():
            fitting = [node for node in nodes.values() if self.may_use(attempt, request, node)]
            fitting = [node for node in fitting if node.fits(request.resource, request.gpu_models)]
            assert not fitting, f"{request} of {attempt} waits, and fits on {fitting[0].node_id}"

    def may_use(self, attempt: str, request: ContainerRequest, node: SchedulerNode) -> bool:
        """Whether an ask may be placed on a node that has room."""
        label = request.node_label
        if label is None:
            label = self.context.attempts[attempt].app.submission.node_label or ""
        if node.partition != label or node.host in self.blacklists.get(attempt, ()):
            return False
        if self.context.nodes[node.node_id].state.name == "DECOMMISSIONING":
            return False
        if request.relax_locality or (request.host is None and request.rack is None):
            return True
        return request.host == node.host if request.host is not None else request.rack == node.rack
