"""The reports on applications, attempts, containers and nodes.

They are built on the handler thread and immutable: any thread may read them.

Times are Unix milliseconds of the resource manager's clock, None if still to come; memory is in MB (2^20 bytes),
virtual cores are in thousandths; progress and shares are 0 to 1. A sum of GPUs is one device with the total in
`gpu_milli`, in thousandths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmappattempt import PreemptedContainers, ResourceUsage, RMAppAttempt
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.machines.rmnode import RMNode, RMNodeState
from statemachines.resourcemanager.machines.states import RMAppState
from statemachines.resourcemanager.records.resource import NOTHING, Resource
from statemachines.resourcemanager.records.submission import LaunchContext
from statemachines.resourcemanager.reports.app_failures import FailureCause, failure_cause
from statemachines.resourcemanager.reports.live_sums import LiveSums
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, resource_of, total_of
from statemachines.resourcemanager.scheduler.queue_info import ApplicationUse, PendingRequests

WAITING_STATES = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")
"""Of applications that wait to start."""
ENDED_STATES = ("FINISHED", "FAILED", "KILLED")
APPLICATION_STATES = (*WAITING_STATES, "RUNNING", *ENDED_STATES)
"""The states for clients, in order. An application that ends is reported in its previous state until its end is
stored."""
NODE_STATES = tuple(state.name for state in RMNodeState)


def waiting_apps(states: Mapping[str, int]) -> int:
    """How many applications wait to start, of a count by state. Pages, REST and JMX all take the number from here."""
    return sum(states.get(state, 0) for state in WAITING_STATES)


@dataclass(frozen=True, slots=True)
class ResourceUsageReport:
    """Resources used over time by ended, preempted and live containers."""

    memory_mb_seconds: float
    vcore_seconds: float
    gpu_seconds: float
    preempted_containers: int
    preempted_masters: int
    """Among the preempted containers."""
    preempted: Resource
    """Memory and vcores of the preempted containers."""
    preempted_memory_mb_seconds: float
    preempted_vcore_seconds: float


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
    """Of its requests that do not name one; None: its queue's default."""
    as_of_ms: int
    """When this was the state. Until it changes, `usage` grows by `allocated` per second."""
    am_node_label: str | None
    """The master's partition, where it is not `node_label`."""
    running_containers: int
    """Those that their nodes have reported to run."""
    reserved: Resource
    reserved_containers: int
    pending: Resource
    """The resources of its pending requests."""
    pending_containers: int
    queue_share: float
    """`allocated` as a share of its queue's capacity; above 1, it uses what others leave. 0 without a capacity."""
    cluster_share: float
    launch: LaunchContext | None = None
    """Without credentials and the like."""
    requests: tuple[PendingRequests, ...] = ()
    """`pending`, request by request."""
    exit_status: int | None = None
    """Of its last attempt's master container, as in that attempt's report."""
    failure: FailureCause | None = None
    """Why it is FAILED."""


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
    """Hosts that its masters have blacklisted, sorted."""
    system_blacklist: tuple[str, ...]
    """Hosts that the resource manager avoids for the master, as masters have failed there, sorted."""
    node_http_address: str
    """Of the master's node; empty: it has none."""


class ContainerReport(NamedTuple):
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
    """What counts in totals: its own capacity or, while it is DECOMMISSIONING, `used`."""
    own_capacity: Resource
    used: Resource
    containers: int
    """Allocated on this node."""
    decommission_timeout_s: int | None
    """While DECOMMISSIONING; None: no timeout."""
    last_heartbeat_ms: int
    """Its last report or registration."""
    health_report: str
    """Why it is not healthy; empty while it is."""
    version: str
    """Of its node manager; empty: not reported."""
    reserved: Resource
    reserved_container: str | None
    """The container that holds the reservation."""
    registered_capacity: Resource = NOTHING
    """What the node registered with, even if an administrator has changed it since."""
    registered_partition: str = ""
    """Likewise."""


def view_key(app: ApplicationReport) -> tuple[str, str, str | None]:
    """Its user, queue and list VIEW_APP. The same users may view applications with the same key."""
    return app.user, app.queue, None if app.launch is None else app.launch.acls.get("VIEW_APP")


# -- building them ----------------------------------------------------------------------------------------------------


def client_state(app: RMApp) -> str:
    """The state by the names in APPLICATION_STATES."""
    state = app.reported_state
    return RMAppState.FINISHED.name if state is RMAppState.FINISHING else state.name


def application_report(context: RMContext, app: RMApp, live: LiveSums | None = None) -> ApplicationReport:
    """`live`: the sums of its current attempt, if the caller keeps them: then the cost does not grow with them."""
    submission, attempt, now_ms = app.submission, app.current_attempt, context.now_ms()
    if live is None:
        live = LiveSums.of(context.scheduler.live_containers(attempt.entity) if attempt is not None else ())
    used = live.amounts()
    use = context.scheduler.application_use(attempt.entity, used) if attempt is not None else ApplicationUse()
    pending: dict[str, int] = {}
    for each in use.pending:
        add(pending, amounts_of(each.resource), each.containers)
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
        containers=live.containers,
        allocated=resource_of(dict(used)),
        usage=_usage(app, live, now_ms),
        unmanaged_am=submission.unmanaged_am,
        node_label=submission.node_label,
        as_of_ms=now_ms,
        am_node_label=submission.am_node_label,
        running_containers=live.running,
        reserved=total_of(use.reserved),
        reserved_containers=len(use.reserved),
        pending=resource_of(pending),
        pending_containers=sum(each.containers for each in use.pending),
        queue_share=use.queue_share,
        cluster_share=use.cluster_share,
        launch=submission.without_secrets().launch,
        requests=use.pending,
        exit_status=attempt.exit_status if attempt is not None else None,
        failure=failure_cause(attempt) if app.reported_state is RMAppState.FAILED else None,
    )


def attempt_report(context: RMContext, attempt: RMAppAttempt) -> ApplicationAttemptReport:
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
        blacklist=tuple(sorted(context.scheduler.application_use(attempt.entity, ()).blacklist)),
        system_blacklist=tuple(sorted(attempt.blacklist)),
        node_http_address=attempt.master_http_address,
    )


def container_report(container: RMContainer) -> ContainerReport:
    request = container.request
    return ContainerReport(
        container.entity,
        container.attempt,
        container.node,
        request.resource,
        container.gpu_devices,
        request.priority,
        request.kind,
        "RUNNING" if container.state_machine.current_state is RMContainerState.RUNNING else "NEW",
        container.created_ms,
    )


def node_reports(context: RMContext, states: frozenset[str]) -> list[NodeReport]:
    """Of the nodes in one of `states`: active ones first, each group in its order of insertion."""
    nodes = (*context.nodes.values(), *context.inactive_nodes.values())
    return [node_report(context, node) for node in nodes if node.state.name in states]


def node_report(context: RMContext, node: RMNode) -> NodeReport:
    """What its containers have is the scheduler's; nothing while the scheduler does not use the node."""
    spec, use = node.spec, context.scheduler.node_use(node.entity)
    return NodeReport(
        node_id=node.entity,
        host=spec.host,
        rack=spec.rack,
        http_address=node.http_address,
        partition=spec.partition,
        gpu_model=spec.gpu_model,
        state=node.state.name,
        is_healthy=node.health,
        capacity=use.used if node.state is RMNodeState.DECOMMISSIONING else node.capacity,
        own_capacity=node.capacity,
        used=use.used,
        containers=use.containers,
        decommission_timeout_s=node.decommission_timeout_s,
        last_heartbeat_ms=node.last_heartbeat_ms,
        health_report=node.health_report,
        version=spec.version,
        reserved=use.reserved,
        reserved_container=use.reserved_container,
        registered_capacity=node.registered.capacity,
        registered_partition=node.registered.partition,
    )


def _usage(app: RMApp, live: LiveSums, now_ms: int) -> ResourceUsageReport:
    """The usage of all attempts of the application, live containers included."""
    used = ResourceUsage()
    live.add_usage(used, now_ms)
    preempted = PreemptedContainers()
    for attempt in app.attempts:
        used.add_all(attempt.usage)
        preempted.add_all(attempt.preempted)
    return ResourceUsageReport(
        used.memory_mb_seconds,
        used.vcore_seconds,
        used.gpu_seconds,
        preempted.count,
        preempted.masters,
        Resource(preempted.memory_mb, preempted.vcores_milli) if preempted.count else NOTHING,
        preempted.usage.memory_mb_seconds,
        preempted.usage.vcore_seconds,
    )
