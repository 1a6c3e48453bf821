"""Configuration of the resource manager. Every key is described in `config/resourcemanager.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dispatcher.config import ConfigModel, DispatcherConfig, JournalConfig, MetricsConfig

MOST_NUMBER = 2**53
"""Beyond it a number is not exact in tools that keep JSON numbers as doubles: such a value is a mistake."""
_Size = Annotated[int, Field(ge=1, le=MOST_NUMBER, strict=True)]
"""Strict: without it `node_vcores: yes` would be read as 1."""


class NodeConfig(ConfigModel):
    """One node of a daemon's cluster."""

    host: str = Field(min_length=1, description="the node's name")
    rack: str = Field("/default-rack", min_length=1, description="its rack")
    memory_mb: int = Field(ge=0, description="memory for containers, MB")
    vcores: int = Field(ge=0, description="virtual cores for containers")
    gpus: int = Field(0, ge=0, description="GPUs for containers")
    gpu_model: str | None = Field(None, description="model of its GPUs")
    resources: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict, description="amounts of further resource types, by name"
    )
    partition: str = Field("", description="its node label; empty: the default partition")


class WorkloadDefaults(ConfigModel):
    """Sizes of nodes, masters and containers that a workload file does not give.

    The values are those of Hadoop's Scheduler Load Simulator.
    """

    node_memory_mb: _Size = Field(default=10240, description="Memory of a node, in MB.")
    node_vcores: _Size = Field(default=10, description="Virtual cores of a node.")
    node_gpus: int = Field(default=0, ge=0, le=MOST_NUMBER, strict=True, description="GPUs of a node.")
    am_memory_mb: _Size = Field(default=1024, description="Memory of an application's master, in MB.")
    am_vcores: _Size = Field(default=1, description="Virtual cores of an application's master.")
    container_memory_mb: _Size = Field(default=1024, description="Memory of a container, in MB.")
    container_vcores: _Size = Field(default=1, description="Virtual cores of a container.")
    nodes_per_rack: _Size = Field(
        default=40, description="Nodes of one rack, for an openb node list, which names no racks."
    )


class SimulationConfig(ConfigModel):
    """Of the simulated node managers and application masters."""

    am_register_delay_ms: int = Field(
        1000, ge=0, description="from the start of a master's container until the master registers, in ms"
    )
    heartbeat_interval_ms: int = Field(
        0,
        ge=0,
        description="in virtual time, from one heartbeat of a node or master to its next, in ms; 0: they "
        "report news at once",
    )
    workload_defaults: WorkloadDefaults = Field(
        default_factory=WorkloadDefaults, description="resources of what a workload names without them"
    )


class PartitionCapacityConfig(ConfigModel):
    """What a queue has of one partition, in percent of what its parent has of it."""

    capacity: float = Field(ge=0, le=100, description="guaranteed share, percent of the parent's")
    maximum_capacity: float = Field(100, ge=0, le=100, description="most it may use, percent of the parent's")


class QueueConfig(ConfigModel):
    """One queue of the capacity scheduler; its children, if any, have all of its applications."""

    name: str = Field(
        min_length=1,
        pattern=r"^[^.\s]+$",
        description="the queue's name, without its parents'; unique among queues without children",
    )
    capacity: float = Field(100, ge=0, le=100, description="guaranteed share, percent of what its parent has")
    maximum_capacity: float = Field(
        100, ge=0, le=100, description="most that it may use of what its siblings leave, percent of what its parent has"
    )
    state: Literal["RUNNING", "STOPPED"] = Field(
        "RUNNING", description="RUNNING; STOPPED: it and the queues below take no new applications"
    )
    priority: int = Field(
        0,
        description="greater comes first, among siblings that are within their capacity, and among those that "
        "are beyond",
    )
    minimum_user_limit_percent: int = Field(
        100,
        ge=1,
        le=100,
        description="when several users want room, each may have an equal part, of this percentage at least",
    )
    user_limit_factor: float = Field(1, gt=0, description="times the queue's capacity that one user may use")
    maximum_am_resource_percent: float | None = Field(
        None,
        ge=0,
        le=100,
        description="percent of the queue's maximum that masters may use; applications beyond that are "
        "pending, though one may always run. null: the scheduler's",
    )
    maximum_applications: int = Field(
        10_000, ge=1, description="applications, running and pending, in it and the queues below"
    )
    maximum_lifetime_s: int | None = Field(
        None, ge=1, description="longest lifetime of an application, in seconds; null: the parent's, at the top no end"
    )
    default_lifetime_s: int | None = Field(
        None,
        ge=1,
        description="lifetime of an application that names none, in seconds; null: the parent's, at the top "
        "the longest",
    )
    ordering_policy: Literal["fifo", "fair"] = Field(
        "fifo",
        description="which application comes first: fifo (more urgent, then older) or fair (the one that has least)",
    )
    accessible_node_labels: dict[str, PartitionCapacityConfig] = Field(
        default_factory=dict,
        description="partitions that it may use, by node label, with its share of each; the parent must have "
        "them too, such as gpu: {capacity: 100, maximum_capacity: 100}",
    )
    default_node_label: str | None = Field(
        None,
        description="partition of applications and requests that name none; null: the default one, which has no label",
    )
    queues: tuple[QueueConfig, ...] = Field((), description="its children; their capacities make 100")


class SchedulerConfig(ConfigModel):
    """Who gets which room."""

    kind: Literal["fifo", "capacity"] = Field(
        "fifo", description="fifo: one queue, first come, first served; capacity: a tree of queues"
    )
    queues: tuple[QueueConfig, ...] = Field(
        (QueueConfig(name="default"),),
        description="the queues of the capacity scheduler, below the root queue; the capacities of each "
        "parent's children make 100",
    )
    maximum_am_resource_percent: float = Field(
        10, ge=0, le=100, description="percent of a queue's maximum that masters may use, where the queue names none"
    )
    node_locality_delay: int = Field(
        40,
        ge=-1,
        description="node heartbeats that a request lets pass before it takes another node of its rack; -1: none",
    )
    rack_locality_additional_delay: int = Field(
        -1, ge=-1, description="further heartbeats before it takes any node; -1: as many as there are nodes, at most"
    )
    containers_per_heartbeat: int = Field(
        100, ge=-1, description="most containers that a node gets with one heartbeat; -1: no limit"
    )


class StateStoreConfig(ConfigModel):
    """Where applications survive the resource manager."""

    kind: Literal["memory", "sqlite"] = Field("memory", description="memory: they do not; sqlite: in a file")
    path: Path | None = Field(None, description="the SQLite file; created where there is none")
    batch_size: int = Field(1000, ge=1, description="most writes in one commit")

    @model_validator(mode="after")
    def _path_for_sqlite(self) -> Self:
        if (self.kind == "sqlite") != (self.path is not None):
            raise ValueError("path: give the file for kind sqlite, and none for kind memory")
        return self


class ResourceManagerConfig(ConfigModel):
    """Of `dispatcher run` and `dispatcher replay`."""

    name: str = Field("ResourceManager", min_length=1, description="the dispatcher's name in metrics and journal")
    dispatcher: DispatcherConfig = Field(default_factory=DispatcherConfig, description="the central dispatcher")
    metrics: MetricsConfig = Field(default_factory=MetricsConfig, description="the Prometheus endpoint")
    journal_path: Path | None = Field(
        None,
        description="folder below which each run writes an event journal of its own, named after its start; "
        "null: no journal",
    )
    journal: JournalConfig = Field(default_factory=JournalConfig, description="how the journal is written")
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig, description="who gets which room")
    state_store: StateStoreConfig = Field(
        default_factory=StateStoreConfig, description="where applications survive the resource manager"
    )
    max_attempts: int = Field(2, ge=1, description="most attempts of an application, and those of one that names none")
    work_preserving_recovery: bool = Field(
        True, description="after a restart, running containers go on; false: running applications get a new attempt"
    )
    nm_heartbeat_interval_ms: int = Field(1000, ge=1, description="from one heartbeat of a node to the next, in ms")
    nm_expiry_interval_s: float = Field(
        600, gt=0, description="a node that is silent for this long, in seconds, is lost"
    )
    am_expiry_interval_s: float = Field(
        600, gt=0, description="a master that is silent for this long, in seconds, has failed"
    )
    container_allocation_expiry_s: float = Field(
        600, gt=0, description="a container that is acquired and not started for this long, in seconds, is taken back"
    )
    decommission_timeout_s: int | None = Field(
        3600,
        ge=0,
        description="longest wait of a graceful decommissioning for applications, in seconds; null: as long "
        "as it takes",
    )
    max_completed_applications: int = Field(
        10_000, ge=0, description="ended applications that are kept; the oldest beyond that are forgotten"
    )
    nodes: tuple[NodeConfig, ...] = Field((), description="the daemon's nodes, which replace those of a workload")
    workload: Path | None = Field(
        None, description="a workload, file or folder, that the daemon runs in real time; null: none"
    )
    simulation: SimulationConfig = Field(
        default_factory=SimulationConfig, description="the simulated node managers and application masters"
    )

    @model_validator(mode="after")
    def _recovers_from_its_store(self) -> Self:
        if self.journal.write_ahead:
            raise ValueError(
                "journal.write_ahead: the resource manager recovers from its state_store, and its events are no "
                "records; leave it false"
            )
        return self
