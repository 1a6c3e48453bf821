"""Small hand-written workloads."""

from __future__ import annotations

from typing import Any

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import ApplicationSpec

REGISTER_MS = 1000
"""Default time from a master's start to its registration."""


def application(name: str, submit_s: int, lasts_s: int, resource: Resource, **more: Any) -> ApplicationSpec:
    """An application that consists of a master only, which holds `resource` for `lasts_s`."""
    return ApplicationSpec(name, submit_s * 1000, resource, am_duration_ms=lasts_s * 1000 - REGISTER_MS, **more)
