"""Recorded workloads: nodes and applications, read from files of several formats."""

from __future__ import annotations

from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.workload_defaults import WorkloadDefaults
from statemachines.simulation.workload.model import (
    ApplicationSpec,
    ContainerSpec,
    Outcome,
    Workload,
    WorkloadError,
)
from statemachines.simulation.workload.reader import read_workload

__all__ = [
    "ApplicationSpec",
    "ContainerSpec",
    "NodeSpec",
    "Outcome",
    "Workload",
    "WorkloadDefaults",
    "WorkloadError",
    "read_workload",
]
