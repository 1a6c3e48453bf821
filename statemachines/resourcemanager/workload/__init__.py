"""Recorded workloads: nodes and applications, read from files of several formats."""

from __future__ import annotations

from statemachines.resourcemanager.workload.defaults import WorkloadDefaults
from statemachines.resourcemanager.workload.model import (
    ApplicationSpec,
    ContainerSpec,
    NodeSpec,
    Outcome,
    Workload,
    WorkloadError,
)
from statemachines.resourcemanager.workload.reader import read_workload

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
