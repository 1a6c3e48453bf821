"""Recorded workloads: nodes and applications, read from files of several formats."""

from __future__ import annotations

from statemachines.resourcemanager.records.config import WorkloadDefaults
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.simulation.specs import ApplicationSpec, ContainerSpec, Outcome
from statemachines.simulation.workload.model import Workload, WorkloadError
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
