"""No container may be larger than the largest node, once nodes have had the time to register; after YARN."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines.resourcemanager import InvalidResourceRequestError, Resource
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Yarn, ask
from ..inner import SchedulerNode

WAIT_MS = 10_000
SIZES = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda size: Resource(*size))


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["come", "go", "resize", "drain"]), SIZES)))
def test_the_largest_is_known_whatever_happens_to_nodes(changes: list[tuple[int, str, Resource]]) -> None:
    tracker = ClusterNodeTracker()
    for number, what, size in changes:
        node = tracker.get(f"n{number}:1")
        if node is None:
            if what == "come":
                tracker.add(SchedulerNode(f"n{number}:1", NodeSpec(f"n{number}", size)))
        elif what == "go":
            tracker.remove(node)
        elif what == "resize":
            tracker.close(node)
            node.set_capacity(size)
            tracker.open(node)
        elif what == "drain":
            tracker.close(node)
            node.is_draining = True
            tracker.open(node)

        capacities = [each.capacity for each in tracker]
        assert tracker.largest() == (
            max((each.memory_mb for each in capacities), default=None),
            max((each.vcores_milli for each in capacities), default=None),
        )


@pytest.mark.parametrize("kind", ["fifo", "capacity"])
def test_after_the_wait_a_container_beyond_the_largest_node_is_refused(kind: str) -> None:
    nodes = NodeSpec("node1", Resource(10, 10_000)), NodeSpec("node2", Resource(20, 5_000))
    with Yarn(*nodes, scheduler={"kind": kind, "maximum_allocation_mb": 15}) as yarn:
        largest = yarn.manager.context.scheduler.maximum_allocation
        assert largest("default") == (15, None), "as configured: other nodes may register"
        master = yarn.submit_and_run()
        master.allocate(ask(resource=Resource(12, 12_000)))
        yarn.advance(WAIT_MS + 1)

        assert largest("default") == (15, 10_000)
        with pytest.raises(InvalidResourceRequestError, match=r"<memory:15 MB, vCores:10>"):
            master.allocate(ask(resource=Resource(12, 12_000)))
        yarn.register(NodeSpec("node3", Resource(5, 12_000)))
        master.allocate(ask(resource=Resource(12, 12_000)))

        assert largest("default") == (15, 12_000)


def test_without_nodes_only_the_configuration_limits() -> None:
    with Yarn(scheduler={"maximum_allocation_mb": 15}) as yarn:
        yarn.advance(WAIT_MS + 1)

        assert yarn.manager.context.scheduler.maximum_allocation("default") == (15, None)
