"""Configuration of the resource manager. Every key is described in `config/resourcemanager.yaml`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dispatcher.config import ConfigModel, DispatcherConfig, JournalConfig, MetricsConfig
from statemachines.resourcemanager.workload.defaults import WorkloadDefaults


class NodeConfig(ConfigModel):
    """One node of a daemon's cluster."""

    host: str = Field(min_length=1, description="the node's name")
    rack: str = Field("/default-rack", min_length=1, description="its rack")
    memory_mb: int = Field(ge=0, description="memory for containers, MB")
    vcores: int = Field(ge=0, description="virtual cores for containers")
    gpus: int = Field(0, ge=0, description="GPUs for containers")
    gpu_model: str | None = Field(None, description="model of its GPUs")


class SimulationConfig(ConfigModel):
    """Of the simulated node managers and application masters."""

    am_register_delay_ms: int = Field(
        1000, ge=0, description="from the start of a master's container until the master registers"
    )
    workload_defaults: WorkloadDefaults = Field(
        default_factory=WorkloadDefaults, description="resources of what a workload names without them"
    )


class ResourceManagerConfig(ConfigModel):
    """Of `dispatcher run` and `dispatcher replay`."""

    name: str = Field("ResourceManager", min_length=1, description="the dispatcher's name in metrics and journal")
    dispatcher: DispatcherConfig = Field(default_factory=DispatcherConfig, description="the central dispatcher")
    metrics: MetricsConfig = Field(default_factory=MetricsConfig, description="the Prometheus endpoint")
    journal_path: Path | None = Field(
        None, description="folder for the event journal of the daemon, new or empty; null: no journal"
    )
    journal: JournalConfig = Field(default_factory=JournalConfig, description="how the journal is written")
    max_attempts: int = Field(2, ge=1, description="attempts of an application that does not say how many it may have")
    max_completed_applications: int = Field(
        10_000, ge=0, description="ended applications that are kept; the oldest beyond that are forgotten"
    )
    nodes: tuple[NodeConfig, ...] = Field((), description="the daemon's nodes; a workload brings its own")
    workload: Path | None = Field(None, description="a workload that the daemon runs in real time; null: none")
    simulation: SimulationConfig = Field(default_factory=SimulationConfig, description="nodes and masters")
