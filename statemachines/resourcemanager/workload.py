"""The former location of `statemachines.simulation.workload`, which is imported on demand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statemachines.simulation.workload import *  # noqa: F403


def __getattr__(name: str) -> object:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("statemachines.simulation.workload"), name)
