"""The reports for clients on applications, attempts, containers, nodes and the cluster. Immutable; any thread.

Times are Unix milliseconds of the resource manager's clock, None if still to come; memory is in MB (2^20 bytes),
virtual cores are in thousandths; progress and shares are 0 to 1. A sum of GPUs counts whole devices if it is a whole
number; otherwise `gpu_milli` has the total in thousandths, with `gpus=1`.
"""

from __future__ import annotations

from dataclasses import dataclass

from statemachines.resourcemanager.resource import Resource

APPLICATION_STATES = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED")
"""The states for clients, in order. An application that ends is reported in its previous state until its end is
stored."""


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
