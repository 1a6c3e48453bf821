"""The former location of `statemachines.simulation.workload`, which is imported on demand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statemachines.simulation.workload import (
        ApplicationSpec,
        ContainerSpec,
        NodeSpec,
        Outcome,
        Workload,
        WorkloadDefaults,
        WorkloadError,
        read_workload,
    )

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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("statemachines.simulation.workload"), name)
