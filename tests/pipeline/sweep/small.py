"""Small hand-written workloads, and the runs of them that settings ask for."""

from __future__ import annotations

from typing import Any

from pipeline.sweep.combinations import Combination, combine
from pipeline.sweep.settings import parse_settings
from statemachines.resourcemanager import Resource, ResourceManagerConfig
from statemachines.simulation.workload import ApplicationSpec, Workload

JOBS = """
{"job.start.ms": 0, "job.queue.name": "q", "job.tasks":
  [{"container.host": "/r/node1", "container.start.ms": 0, "container.end.ms": 20}]}
{"job.start.ms": 5, "job.queue.name": "q", "job.final.state": "FAILED", "job.tasks":
  [{"container.host": "/r/node1", "container.start.ms": 6, "container.end.ms": 20}]}
"""
"""A workload in a file: of two jobs, one fails."""
REGISTER_MS = 1000
"""Default time from a master's start to its registration."""


def application(name: str, submit_s: int, lasts_s: int, resource: Resource, **more: Any) -> ApplicationSpec:
    """An application that consists of a master only, which holds `resource` for `lasts_s`."""
    return ApplicationSpec(name, submit_s * 1000, resource, am_duration_ms=lasts_s * 1000 - REGISTER_MS, **more)


def combined(workload: Workload, *settings: str, config: ResourceManagerConfig | None = None) -> list[Combination]:
    """A run for each combination of the values that `settings`, such as `nodes=1,2`, give."""
    return list(combine(workload, parse_settings(settings), config))
