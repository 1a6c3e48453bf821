"""Workloads that several modules share."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import NodeSpec, Workload

from .small import application


@pytest.fixture
def two_in_a_row() -> Workload:
    """One node, and two applications that do not fit on it together: 0 s to 10 s, and 10 s to 20 s instead of 4 s."""
    return Workload(
        "two",
        (NodeSpec("n1", Resource(2048, 4000)),),
        (application("first", 0, 10, Resource(1024, 1000)), application("second", 4, 10, Resource(2048, 2000))),
    )


@pytest.fixture
def two_queues() -> Workload:
    """Room for four applications at a time; eight of queue a at 0 s, one of queue b at 1 s, each running for 10 s."""
    each = Resource(1024, 1000)
    of_a = [application(f"a{number}", 0, 10, each, queue="a") for number in range(8)]
    return Workload(
        "queues", (NodeSpec("n1", Resource(4096, 4000)),), (*of_a, application("b", 1, 10, each, queue="b"))
    )
