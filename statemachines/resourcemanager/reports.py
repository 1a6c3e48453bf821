"""What a client is told of applications, attempts, containers, nodes and the cluster. Immutable, so anybody's.

Times are Unix milliseconds of the resource manager's clock, None where the moment has not come; memory is in MB (2^20
bytes), virtual cores are in thousandths; progress and shares are 0 to 1. A sum of GPUs is in whole devices where it
makes some, otherwise `gpu_milli` has the thousandths of all, with `gpus=1`.
"""

from __future__ import annotations

from dataclasses import dataclass

from statemachines.resourcemanager.resource import Resource

APPLICATION_STATES = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED")
"""Those that clients know, in the order of an application's life. One that ends is reported as before, until its end
is stored."""


@dataclass(frozen=True, slots=True)
class ResourceUsageReport:
    """What has been used over time, by containers that have ended, preempted ones too, and by those that have not."""

    memory_mb_seconds: float
    vcore_seconds: float
    gpu_seconds: float
    preempted_containers: int


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """An application, after YARN's class of that name."""

    application_id: str
    attempt_id: str | None
    """The current attempt; None: there is none yet."""
    name: str
    user: str
    queue: str
    application_type: str
    tags: tuple[str, ...]
    priority: int
    state: str
    """One of APPLICATION_STATES."""
    final_status: str
    """UNDEFINED until it has ended, then SUCCEEDED, FAILED or KILLED, as its master said or as its state says."""
    progress: float
    diagnostics: str
    submit_ms: int
    start_ms: int
    launch_ms: int | None
    """When its first master was launched."""
    finish_ms: int | None
    deadline_ms: int | None
    """When it is killed; None: its lifetime has no end, or it has ended."""
    host: str
    """Of its master, as that says; empty: no master has registered."""
    rpc_port: int
    tracking_url: str
    master_container: str | None
    master_node: str | None
    """Node id."""
    containers: int
    """Those that have not ended, the master's included."""
    allocated: Resource
    """What they have."""
    usage: ResourceUsageReport
    unmanaged_am: bool
    node_label: str | None


@dataclass(frozen=True, slots=True)
class ApplicationAttemptReport:
    """An attempt, after YARN's class of that name."""

    attempt_id: str
    state: str
    """YARN's names of an attempt's states; one that ends is FINAL_SAVING until its end is stored."""
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
    """Of the master's container; None: it has not ended, or only after its master had unregistered."""
    blacklist: tuple[str, ...]
    """Hosts avoided for the master, in the order of their names."""


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """A container that has not ended, after YARN's class of that name."""

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
    """Those that have room on it."""
    decommission_timeout_s: int | None
    """Of a node that is DECOMMISSIONING; None: as long as it takes, or it is not."""


@dataclass(frozen=True, slots=True)
class ClusterMetrics:
    """The cluster at this moment; of applications, all since the resource manager started."""

    apps_submitted: int
    """The sum of the five that follow."""
    apps_pending: int
    apps_running: int
    apps_completed: int
    apps_failed: int
    apps_killed: int
    containers_allocated: int
    containers_reserved: int
    containers_pending: int
    """Asks that wait for room."""
    total: Resource
    """Of the nodes in use."""
    allocated: Resource
    reserved: Resource
    pending: Resource
    nodes: dict[str, int]
    """Count by state, for the seven states of nodes that have registered."""

    @property
    def total_nodes(self) -> int:
        return sum(self.nodes.values())
