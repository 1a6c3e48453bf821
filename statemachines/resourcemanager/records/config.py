"""Configuration of the resource manager; `config/resourcemanager.yaml` describes every key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dispatcher.config import MOST_NUMBER as MOST_NUMBER
from dispatcher.config import ConfigModel, DispatcherConfig, JournalConfig, MetricsConfig
from dispatcher.ops.config import OpsConfig
from dispatcher.util.files import PermissionsName
from statemachines.resourcemanager.records.web_config import RMWebConfig

MOST_GPUS = 10_000
"""GPUs of a node. The scheduler keeps a number for each of them."""
_Size = Annotated[int, Field(ge=1, le=MOST_NUMBER, strict=True)]
"""Strict: otherwise `node_vcores: yes` would be read as 1."""


class NodeConfig(ConfigModel):
    """One node of a daemon's cluster."""

    host: str = Field(min_length=1, description="the node's name")
    rack: str = Field(default="/default-rack", min_length=1, description="its rack")
    memory_mb: int = Field(ge=0, description="memory for containers, MB")
    vcores: int = Field(ge=0, description="virtual cores for containers")
    gpus: int = Field(default=0, ge=0, le=MOST_GPUS, description="GPUs for containers")
    gpu_model: str | None = Field(default=None, description="model of its GPUs")
    resources: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict, description="amounts of further resource types, by name"
    )
    partition: str = Field(default="", description="its node label; empty: the default partition")


class WorkloadDefaults(ConfigModel):
    """Sizes of nodes, masters and containers missing in a workload file, as in Hadoop's Scheduler Load Simulator."""

    node_memory_mb: _Size = Field(default=10240, description="Memory of a node, in MB.")
    node_vcores: _Size = Field(default=10, description="Virtual cores of a node.")
    node_gpus: int = Field(default=0, ge=0, le=MOST_GPUS, strict=True, description="GPUs of a node.")
    am_memory_mb: _Size = Field(default=1024, description="Memory of an application's master, in MB.")
    am_vcores: _Size = Field(default=1, description="Virtual cores of an application's master.")
    container_memory_mb: _Size = Field(default=1024, description="Memory of a container, in MB.")
    container_vcores: _Size = Field(default=1, description="Virtual cores of a container.")
    nodes_per_rack: _Size = Field(
        default=40, description="Nodes per rack, for an openb node list, which does not name racks."
    )


class SimulationConfig(ConfigModel):
    """The simulated node managers and application masters."""

    am_register_delay_ms: int = Field(
        default=1000, ge=0, description="ms from the start of a master's container until the master registers"
    )
    heartbeat_interval_ms: int = Field(
        default=0,
        ge=0,
        description="interval between heartbeats of a node or master in virtual time, in ms; 0: they report "
        "changes at once",
    )
    speed: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="how many times as fast as recorded the daemon runs its workload: it divides times of "
        "submission and durations. No effect in virtual time",
    )
    repeat: bool = Field(
        default=False,
        description="begin the daemon's workload again each time all of its applications have ended. No effect in "
        "virtual time",
    )
    silent_after_s: dict[str, float] = Field(
        default_factory=dict,
        description="nodes that fall silent, by host: how many seconds after the registration the node manager "
        "stops sending heartbeats. The node is lost after nm_expiry_interval_s",
    )
    workload_defaults: WorkloadDefaults = Field(
        default_factory=WorkloadDefaults, description="sizes that a workload file omits"
    )


class PartitionCapacityConfig(ConfigModel):
    """A queue's share of one partition, in percent of its parent's share."""

    capacity: float = Field(ge=0, le=100, description="guaranteed share, percent of the parent's")
    maximum_capacity: float = Field(default=100, ge=0, le=100, description="maximum share, percent of the parent's")


class QueueConfig(ConfigModel):
    """One queue of the capacity scheduler; only queues without children hold applications."""

    name: str = Field(
        min_length=1,
        pattern=r"^[^.\s]+$",
        description="the queue's name, without its parents' names; unique among queues without children",
    )
    capacity: float = Field(default=100, ge=0, le=100, description="guaranteed share, percent of the parent's")
    maximum_capacity: float = Field(
        default=100, ge=0, le=100, description="maximum share if its siblings leave room, percent of the parent's"
    )
    state: Literal["RUNNING", "STOPPED"] = Field(
        default="RUNNING", description="RUNNING; STOPPED: the queue and its children reject new applications"
    )
    priority: int = Field(
        default=0, description="higher is served first, among siblings within their capacity, and among those beyond it"
    )
    minimum_user_limit_percent: int = Field(
        default=100,
        ge=1,
        le=100,
        description="when several users compete, each can have an equal share, and at least this percentage",
    )
    user_limit_factor: float = Field(
        default=1, gt=0, description="how many times the queue's capacity a single user can use"
    )
    maximum_am_resource_percent: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="percent of the queue's maximum that masters can use. Further applications wait, though one "
        "can always run; null: the scheduler's value",
    )
    maximum_applications: int | None = Field(
        default=None,
        ge=1,
        description="maximum running and pending applications in the queue and its children. A single user can "
        "have minimum_user_limit_percent of it times user_limit_factor; null: a queue without children "
        "has its capacity's part of the scheduler's value, and the others have no limit of their own",
    )
    maximum_lifetime_s: int | None = Field(
        default=None,
        ge=1,
        description="maximum lifetime of an application, in seconds; null: the parent's (at the root: no limit)",
    )
    default_lifetime_s: int | None = Field(
        default=None,
        ge=1,
        description="default lifetime of an application, in seconds; null: the parent's (at the root: the maximum)",
    )
    maximum_allocation_mb: int | None = Field(
        default=None,
        ge=1,
        description="maximum memory of a container, in MB; null: the parent's (at the root: the scheduler's)",
    )
    maximum_allocation_vcores: int | None = Field(
        default=None,
        ge=1,
        description="maximum virtual cores of a container; null: the parent's (at the root: the scheduler's)",
    )
    ordering_policy: Literal["fifo", "fair"] = Field(
        default="fifo",
        description="which application is served first: fifo (priority, then age) or fair (the one that uses least)",
    )
    disable_preemption: bool | None = Field(
        default=None,
        description="its containers are not preempted for other queues; null: the parent's value (at the root: false)",
    )
    accessible_node_labels: dict[str, PartitionCapacityConfig] = Field(
        default_factory=dict,
        description="partitions that it can use, by node label, with its share of each, such as gpu: {capacity: "
        "100, maximum_capacity: 100}. The parent must list them as well",
    )
    default_node_label: str | None = Field(
        default=None,
        description="partition of applications and requests without a node label; null: the default partition",
    )
    acl_submit_applications: str | None = Field(
        default=None,
        description="users and groups that may submit to it and to its children: `user1,user2 group1,group2`, `*` "
        "for everyone, one blank for nobody; null: those of the queues above, or everyone if none of "
        "them has a list",
    )
    acl_administer_queue: str | None = Field(
        default=None,
        description="users and groups that may also view, change and kill all applications in it and in its "
        "children, in the same form; null: those of the queues above. If none of them has a list: "
        "everyone, but only administrators where tokens or certificates prove who calls",
    )
    queues: tuple[QueueConfig, ...] = Field(default=(), description="its children; their capacities add up to 100")


class PreemptionConfig(ConfigModel):
    """Preemption of containers of queues above their guarantees, for queues below theirs that wait."""

    enabled: bool = Field(
        default=False, description="whether queues below their guarantee get back what others have of it"
    )
    monitoring_interval_ms: int = Field(default=3000, ge=1, description="interval between preemption rounds, in ms")
    max_wait_before_kill_ms: int = Field(
        default=15_000,
        ge=0,
        description="time from the first notice to a container's master until the container is killed, in ms",
    )
    total_preemption_per_round: float = Field(
        default=0.1, gt=0, le=1, description="maximum share of a partition that a round selects; at least one container"
    )
    max_ignored_over_capacity: float = Field(
        default=0.1, ge=0, description="a queue that exceeds its guarantee by up to this share of it is left alone"
    )
    natural_termination_factor: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="share of what is needed that a round selects, because other containers end by themselves",
    )


class SchedulerConfig(ConfigModel):
    """How resources are assigned."""

    kind: Literal["fifo", "capacity"] = Field(
        default="fifo", description="fifo: one queue, first come, first served; capacity: a tree of queues"
    )
    queues: tuple[QueueConfig, ...] = Field(
        default=(QueueConfig(name="default"),),
        description="the queues of the capacity scheduler, below the root queue; the capacities of siblings add up "
        "to 100",
    )
    acl_submit_applications: str | None = Field(
        default=None, description="users and groups that may submit to every queue, as in a queue's key of that name"
    )
    acl_administer_queue: str | None = Field(
        default=None, description="users and groups that administer every queue, as in a queue's key of that name"
    )
    maximum_applications: int = Field(
        default=10_000,
        ge=1,
        description="maximum running and pending applications. Each queue without children accepts its capacity's "
        "part of them, at least 1, unless it sets its own maximum",
    )
    maximum_am_resource_percent: float = Field(
        default=10,
        ge=0,
        le=100,
        description="percent of a queue's maximum that masters can use, unless the queue sets it",
    )
    maximum_allocation_mb: int | None = Field(
        default=None,
        ge=1,
        description="maximum memory of a container, in MB; larger ones are rejected; null disables it",
    )
    maximum_allocation_vcores: int | None = Field(
        default=None, ge=1, description="maximum virtual cores of a container; more are rejected; null disables it"
    )
    maximum_allocation_wait_ms: int = Field(
        default=10_000,
        ge=0,
        description="startup grace period, in ms: containers can exceed the largest registered node, because "
        "larger ones may still register",
    )
    node_locality_delay: int | None = Field(
        default=40,
        ge=0,
        description="node heartbeats that a request lets pass before it accepts another node of its rack; null: it "
        "accepts any node at once",
    )
    rack_locality_additional_delay: int | None = Field(
        default=None, ge=0, description="further heartbeats before it accepts any node; null: up to the number of nodes"
    )
    containers_per_heartbeat: int | None = Field(
        default=100, ge=1, description="maximum containers assigned to a node per heartbeat; null disables it"
    )
    reservations_continue_look_all_nodes: bool = Field(
        default=True,
        description="whether a request with a reserved node takes another node that has room, although limits "
        "count the reservation, which is then canceled; kind capacity only",
    )
    preemption: PreemptionConfig = Field(
        default_factory=PreemptionConfig, description="room for queues below their guarantees; kind capacity only"
    )

    @model_validator(mode="after")
    def _preempts_between_queues(self) -> Self:
        if self.preemption.enabled and self.kind != "capacity":
            raise ValueError("preemption.enabled: only kind capacity has queues to preempt for")
        return self


class StateStoreConfig(ConfigModel):
    """Where applications and changes of nodes and queues are stored to survive a restart."""

    kind: Literal["memory", "sqlite"] = Field(default="memory", description="memory: nowhere; sqlite: in a file")
    path: Path | None = Field(default=None, description="the SQLite file; created if missing")
    batch_size: int = Field(default=1000, ge=1, description="maximum writes per commit")
    slow_after_s: float = Field(
        default=1.0, gt=0, description="health is degraded while a commit takes longer than this, in seconds"
    )
    permissions: PermissionsName = Field(
        default="private",
        description="who can read a new file: its owner only (private: 0600), its group as well (group: 0640), or "
        "everyone (0644)",
    )

    @model_validator(mode="after")
    def _path_for_sqlite(self) -> Self:
        if (self.kind == "sqlite") != (self.path is not None):
            raise ValueError("path: required for kind sqlite, not allowed for kind memory")
        return self


class RMMetricsConfig(MetricsConfig):
    """Settings of the Prometheus endpoint of a resource manager."""

    nodes: int = Field(
        default=1000,
        ge=0,
        description="maximum nodes with series of their own, about 10 each. In a larger cluster, the nodes that are "
        "not RUNNING come first, then the others by name",
    )


class ResourceManagerConfig(ConfigModel):
    """The configuration of `dispatcher run` and `dispatcher replay`."""

    name: str = Field(
        default="ResourceManager", min_length=1, description="the dispatcher's name in metrics and journal"
    )
    dispatcher: DispatcherConfig = Field(default_factory=DispatcherConfig, description="the central dispatcher")
    metrics: RMMetricsConfig = Field(default_factory=RMMetricsConfig, description="the Prometheus endpoint")
    ops: OpsConfig = Field(default_factory=OpsConfig, description="the ops API")
    web: RMWebConfig = Field(
        default_factory=RMWebConfig,
        description="the web address, with YARN's REST API, pages and the ops API: where it listens, and who has "
        "access",
    )
    journal_path: Path | None = Field(
        default=None,
        description="folder in which each run writes its own event journal, named after its start; null disables it",
    )
    journal: JournalConfig = Field(default_factory=JournalConfig, description="how the journal is written")
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig, description="how resources are assigned")
    state_store: StateStoreConfig = Field(
        default_factory=StateStoreConfig,
        description="where applications and changes of nodes and queues are stored to survive a restart",
    )
    admin_acl: str | None = Field(
        default=None,
        description="users and groups that administer the cluster, in addition to the role admin: `user1,user2 "
        "group1,group2`, `*` for everyone, one blank for nobody; null: everyone may change nodes and queues, but "
        "only the role admin where tokens or certificates prove who calls",
    )
    max_attempts: int = Field(default=2, ge=1, description="maximum and default number of attempts of an application")
    work_preserving_recovery: bool = Field(
        default=True,
        description="after a restart, containers keep running; false: running applications get a new attempt",
    )
    nm_heartbeat_interval_ms: int = Field(
        default=1000, ge=1, description="interval between heartbeats of a node, in ms"
    )
    nm_expiry_interval_s: float = Field(
        default=600, gt=0, description="a node is lost after this many seconds without a heartbeat"
    )
    am_expiry_interval_s: float = Field(
        default=600, gt=0, description="a master has failed after this many seconds without a heartbeat"
    )
    container_allocation_expiry_s: float = Field(
        default=600, gt=0, description="an acquired container expires if it is not started within this many seconds"
    )
    decommission_timeout_s: int | None = Field(
        default=3600,
        ge=0,
        description="maximum time that a graceful decommissioning waits for applications, in seconds; null disables it",
    )
    max_completed_applications: int = Field(
        default=10_000, ge=0, description="maximum ended applications to keep; beyond that the oldest are forgotten"
    )
    nodes: tuple[NodeConfig, ...] = Field(default=(), description="the daemon's nodes, instead of a workload's")
    workload: Path | None = Field(
        default=None, description="a workload (file or folder) that the daemon runs in real time; null: none"
    )
    simulation: SimulationConfig = Field(
        default_factory=SimulationConfig, description="the simulated node managers and application masters"
    )

    @property
    def knows_callers(self) -> bool:
        """Whether clients over TCP prove who they are. Otherwise they can claim any name."""
        return self.web.auth_in_use == "token"

    @model_validator(mode="after")
    def _heartbeats_in_time(self) -> Self:
        expiry_s = min(self.nm_expiry_interval_s, self.am_expiry_interval_s)
        for key, interval_ms in (
            ("nm_heartbeat_interval_ms", self.nm_heartbeat_interval_ms),
            ("simulation.heartbeat_interval_ms", self.simulation.heartbeat_interval_ms),
        ):
            if interval_ms >= 1000 * expiry_s:
                raise ValueError(
                    f"{key}: {interval_ms} ms is no less than the silence of {expiry_s:g} s after which a node is lost "
                    "or a master has failed (nm_expiry_interval_s, am_expiry_interval_s); choose less"
                )
        return self

    @model_validator(mode="after")
    def _recovers_from_its_store(self) -> Self:
        if self.journal.write_ahead:
            raise ValueError(
                "journal.write_ahead: leave it false: the resource manager recovers from its state_store, not from "
                "journaled events"
            )
        return self
