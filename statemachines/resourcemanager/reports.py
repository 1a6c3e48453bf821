"""The reports for clients on applications, attempts, containers, nodes and the cluster.

They are built on the handler thread and immutable: any thread may read them.

Times are Unix milliseconds of the resource manager's clock, None if still to come; memory is in MB (2^20 bytes),
virtual cores are in thousandths; progress and shares are 0 to 1. A sum of GPUs counts whole devices if it is a whole
number; otherwise `gpu_milli` has the total in thousandths, with `gpus=1`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmappattempt import ResourceUsage, RMAppAttempt
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.machines.rmnode import RMNode, RMNodeState
from statemachines.resourcemanager.machines.states import RMAppState
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, resource_of

APPLICATION_STATES = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED")
"""The states for clients, in order. An application that ends is reported in its previous state until its end is
stored."""
_WITHOUT_ROOM = frozenset({RMContainerState.NEW, RMContainerState.RESERVED})
_IN_USE = frozenset({RMNodeState.RUNNING, RMNodeState.DECOMMISSIONING})
_PENDING = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")


@dataclass(frozen=True, slots=True)
class ResourceUsageReport:
    """Resources used over time by ended, preempted and live containers."""

    memory_mb_seconds: float
    vcore_seconds: float
    gpu_seconds: float
    preempted_containers: int


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """An application, after YARN's class of that name."""

    application_id: str
    attempt_id: str | None
    """The current attempt; None: not started yet."""
    name: str
    user: str
    queue: str
    application_type: str
    tags: tuple[str, ...]
    priority: int
    state: str
    """One of APPLICATION_STATES."""
    final_status: str
    """UNDEFINED until it has ended, then as its master reported or else as its state says."""
    progress: float
    diagnostics: str
    submit_ms: int
    start_ms: int
    launch_ms: int | None
    """When its first master was launched."""
    finish_ms: int | None
    deadline_ms: int | None
    """When it is killed; None: no limit, or it has ended."""
    host: str
    """As its master reported; empty: not registered."""
    rpc_port: int
    tracking_url: str
    master_container: str | None
    master_node: str | None
    """Node id."""
    containers: int
    """Live ones, including the master's."""
    allocated: Resource
    """The resources of its live containers."""
    usage: ResourceUsageReport
    unmanaged_am: bool
    node_label: str | None


@dataclass(frozen=True, slots=True)
class ApplicationAttemptReport:
    """An attempt, after YARN's class of that name."""

    attempt_id: str
    state: str
    """A state of RMAppAttempt: FINAL_SAVING until its end is stored."""
    final_status: str
    progress: float
    diagnostics: str
    start_ms: int
    finish_ms: int | None
    host: str
    rpc_port: int
    tracking_url: str
    master_container: str | None
    master_node: str | None
    exit_status: int | None
    """Of the master's container; None: it runs, or its master unregistered first."""
    blacklist: tuple[str, ...]
    """Hosts avoided for the master, sorted."""


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """A live container, after YARN's class of that name."""

    container_id: str
    attempt_id: str
    node: str
    """Node id."""
    resource: Resource
    gpu_devices: tuple[int, ...]
    priority: int
    kind: str
    state: str
    """NEW until it runs, then RUNNING."""
    created_ms: int


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node, after YARN's class of that name."""

    node_id: str
    host: str
    rack: str
    http_address: str
    """`host:port`."""
    partition: str
    gpu_model: str | None
    state: str
    is_healthy: bool
    capacity: Resource
    used: Resource
    containers: int
    """Allocated on this node."""
    decommission_timeout_s: int | None
    """While DECOMMISSIONING; None: no timeout."""


@dataclass(frozen=True, slots=True)
class ClusterMetrics:
    """The cluster now; applications are counted since the start of the resource manager."""

    apps_submitted: int
    """The sum of the next five."""
    apps_pending: int
    apps_running: int
    apps_completed: int
    apps_failed: int
    apps_killed: int
    containers_allocated: int
    containers_reserved: int
    containers_pending: int
    """Pending requests."""
    total: Resource
    """The capacity of RUNNING and DECOMMISSIONING nodes."""
    allocated: Resource
    reserved: Resource
    pending: Resource
    nodes: dict[str, int]
    """Count by state, for all states but NEW."""

    @property
    def total_nodes(self) -> int:
        return sum(self.nodes.values())


# -- building them ----------------------------------------------------------------------------------------------------


def client_state(app: RMApp) -> str:
    """The state by the names in APPLICATION_STATES."""
    state = app.reported_state
    return RMAppState.FINISHED.name if state is RMAppState.FINISHING else state.name


def application_report(context: RMContext, app: RMApp) -> ApplicationReport:
    submission, attempt = app.submission, app.current_attempt
    live = context.scheduler.live_containers(attempt.entity) if attempt is not None else []
    return ApplicationReport(
        application_id=app.entity,
        attempt_id=attempt.entity if attempt is not None else None,
        name=submission.name,
        user=submission.user,
        queue=submission.queue,
        application_type=submission.application_type,
        tags=submission.tags,
        priority=submission.priority,
        state=client_state(app),
        final_status=app.final_status.name,
        progress=attempt.progress if attempt is not None else 0.0,
        diagnostics="; ".join(app.diagnostics),
        submit_ms=app.submit_ms,
        start_ms=app.start_ms,
        launch_ms=app.launch_ms,
        finish_ms=app.finish_ms,
        deadline_ms=context.app_lifetime_monitor.deadline_ms(app.entity),
        host=attempt.host if attempt is not None else "",
        rpc_port=attempt.rpc_port if attempt is not None else -1,
        tracking_url=attempt.tracking_url if attempt is not None else "",
        master_container=attempt.master_container if attempt is not None else None,
        master_node=(attempt.master_node or None) if attempt is not None else None,
        containers=len(live),
        allocated=_sum(container.request.resource for container in live),
        usage=_usage(app, live, context.now_ms()),
        unmanaged_am=submission.unmanaged_am,
        node_label=submission.node_label,
    )


def attempt_report(attempt: RMAppAttempt) -> ApplicationAttemptReport:
    return ApplicationAttemptReport(
        attempt_id=attempt.entity,
        state=attempt.state.name,
        final_status=attempt.final_status.name,
        progress=attempt.progress,
        diagnostics="; ".join(attempt.diagnostics),
        start_ms=attempt.start_ms,
        finish_ms=attempt.finish_ms,
        host=attempt.host,
        rpc_port=attempt.rpc_port,
        tracking_url=attempt.tracking_url,
        master_container=attempt.master_container,
        master_node=attempt.master_node or None,
        exit_status=attempt.exit_status,
        blacklist=tuple(sorted(attempt.blacklist)),
    )


def container_report(container: RMContainer) -> ContainerReport:
    request = container.request
    return ContainerReport(
        container_id=container.entity,
        attempt_id=container.attempt,
        node=container.node,
        resource=request.resource,
        gpu_devices=container.gpu_devices,
        priority=request.priority,
        kind=request.kind,
        state="RUNNING" if container.state is RMContainerState.RUNNING else "NEW",
        created_ms=container.created_ms,
    )


def node_reports(context: RMContext, states: frozenset[str]) -> list[NodeReport]:
    """Of the nodes in one of `states`: active ones first, each group in its order of insertion."""
    used: defaultdict[str, list[Resource]] = defaultdict(list)
    for container in _with_room(context):
        used[container.node].append(container.request.resource)
    nodes = (*context.nodes.values(), *context.inactive_nodes.values())
    return [_node_report(node, used[node.entity]) for node in nodes if node.state.name in states]


def node_report(context: RMContext, node: RMNode) -> NodeReport:
    used = [each.request.resource for each in _with_room(context) if each.node == node.entity]
    return _node_report(node, used)


def _node_report(node: RMNode, used: list[Resource]) -> NodeReport:
    spec = node.spec
    return NodeReport(
        node_id=node.entity,
        host=spec.host,
        rack=spec.rack,
        http_address=f"{spec.host}:{spec.http_port}",
        partition=spec.partition,
        gpu_model=spec.gpu_model,
        state=node.state.name,
        is_healthy=node.health,
        capacity=node.capacity,
        used=_sum(used),
        containers=len(used),
        decommission_timeout_s=node.decommission_timeout_s,
    )


def cluster_metrics(context: RMContext) -> ClusterMetrics:
    machines = context.recorder.machines.get("RMApp")
    apps = Counter(machines.entities() if machines is not None else {})
    allocated = _with_room(context)
    # A running container may have a reservation as well, for an increase on its own node.
    reserved = [
        container.reserved_resource
        for container in _live(context)
        if container.state is RMContainerState.RESERVED and container.reserved_resource is not None
    ]
    waiting = context.scheduler.waiting()
    ended = {state: apps[state] for state in ("FINISHED", "FAILED", "KILLED")}
    pending = sum(apps[state] for state in _PENDING)
    nodes = Counter(node.state.name for node in (*context.nodes.values(), *context.inactive_nodes.values()))
    return ClusterMetrics(
        apps_submitted=apps.total(),
        apps_pending=pending,
        apps_running=apps.total() - pending - sum(ended.values()),
        apps_completed=ended["FINISHED"],
        apps_failed=ended["FAILED"],
        apps_killed=ended["KILLED"],
        containers_allocated=len(allocated),
        containers_reserved=len(reserved),
        containers_pending=len(waiting),
        total=_sum(node.capacity for node in context.nodes.values() if node.state in _IN_USE),
        allocated=_sum(container.request.resource for container in allocated),
        reserved=_sum(reserved),
        pending=_sum(request.resource for _, request in waiting),
        nodes={state.name: nodes[state.name] for state in RMNodeState if state is not RMNodeState.NEW},
    )


def _live(context: RMContext) -> list[RMContainer]:
    # One atomic operation: the scheduler's thread adds to the dict at the same time.
    return list(context.containers.values())


def _with_room(context: RMContext) -> list[RMContainer]:
    return [container for container in _live(context) if container.state not in _WITHOUT_ROOM]


def _usage(app: RMApp, live: list[RMContainer], now_ms: int) -> ResourceUsageReport:
    """Of all its attempts, live containers included."""
    running = ResourceUsage()
    for container in live:
        running.add(container.request.resource, now_ms - container.created_ms)
    used = [running, *(attempt.usage for attempt in app.attempts)]
    return ResourceUsageReport(
        sum(usage.memory_mb_seconds for usage in used),
        sum(usage.vcore_seconds for usage in used),
        sum(usage.gpu_seconds for usage in used),
        sum(usage.preempted for usage in used),
    )


def _sum(resources: Iterable[Resource]) -> Resource:
    amounts: dict[str, int] = {}
    for resource in resources:
        add(amounts, amounts_of(resource))
    return resource_of(amounts)
