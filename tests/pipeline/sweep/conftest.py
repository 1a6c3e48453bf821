"""Small hand-written workloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import ApplicationSpec, NodeSpec, Workload

REGISTER_MS = 1000
"""Default time from a master's start to its registration."""


def _application(name: str, submit_s: int, lasts_s: int, resource: Resource, **more: Any) -> ApplicationSpec:
    """An application that consists of a master only, which holds `resource` for `lasts_s`."""
    return ApplicationSpec(name, submit_s * 1000, resource, am_duration_ms=lasts_s * 1000 - REGISTER_MS, **more)


@pytest.fixture
def application() -> Callable[..., ApplicationSpec]:
    return _application


@pytest.fixture
def two_in_a_row() -> Workload:
    """One node, and two applications that do not fit on it together: 0 s to 10 s, and 10 s to 20 s instead of 4 s."""
    return Workload(
        "two",
        (NodeSpec("n1", Resource(2048, 4000)),),
        (
            _application("first", 0, 10, Resource(1024, 1000)),
            _application("second", 4, 10, Resource(2048, 2000)),
        ),
    )


@pytest.fixture
def two_queues() -> Workload:
    """Room for four applications at a time; eight of queue a at 0 s, one of queue b at 1 s, each running for 10 s."""
    each = Resource(1024, 1000)
    of_a = [_application(f"a{number}", 0, 10, each, queue="a") for number in range(8)]
    return Workload(
        "queues", (NodeSpec("n1", Resource(4096, 4000)),), (*of_a, _application("b", 1, 10, each, queue="b"))
    )
