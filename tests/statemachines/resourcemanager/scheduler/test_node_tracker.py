"""What the scheduler keeps of its nodes: a search that finds every node with room, and how large the largest is.

The search does not examine full nodes again.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachines.resourcemanager import InvalidResourceRequestError, Resource
from statemachines.resourcemanager.scheduler.core import node_tracker
from statemachines.simulation.workload import NodeSpec

from ....kit import tries
from ..daemon.yarn_cluster import Yarn, ask
from ..inner import NodeRequirements, SchedulerNode

ANYWHERE: frozenset[str] = frozenset()


def requirements(
    memory_mb: int = 1, vcores_milli: int = 1, gpus: int = 0, gpu_milli: int = 1000, **more: Any
) -> NodeRequirements:
    resource = Resource(memory_mb, vcores_milli, gpus, gpu_milli, more.get("others", ()))
    return NodeRequirements(resource, more.get("models", ANYWHERE), "", None, None, more.get("blacklist", ANYWHERE))


def node(number: int, memory_mb: int = 4, vcores_milli: int = 4, gpus: int = 2) -> SchedulerNode:
    spec = NodeSpec(f"n{number}", Resource(memory_mb, vcores_milli, gpus), gpu_model="T4" if number % 2 else "V100")
    return SchedulerNode(f"n{number}:1", spec)


def fill(node: SchedulerNode) -> None:
    node.take(f"all of {node.host}", Resource(node.free_memory_mb, node.free_vcores_milli))


def empty(room: node_tracker.NodeSearch, node: SchedulerNode) -> None:
    node.give_back(f"all of {node.host}")
    room.grown(node)


class Looking(NodeRequirements):
    """Counts how often a node is examined."""

    __slots__ = ("looks",)

    def __init__(self, memory_mb: int) -> None:
        super().__init__(Resource(memory_mb, 0, 1, 1), ANYWHERE, "", None, None, ANYWHERE)
        self.looks = 0

    def fits_further(self, node: SchedulerNode) -> bool:
        self.looks += 1
        return super().fits_further(node)


def gpus_taken(count: int) -> tuple[node_tracker.NodeSearch, list[SchedulerNode]]:
    """Nodes with memory only."""
    nodes = [node(number, memory_mb=100, gpus=1) for number in range(count)]
    for one in nodes:
        one.take("gpu", Resource(0, 0, 1))
    return node_tracker.NodeSearch(nodes), nodes


def test_search_examines_a_node_again_only_after_it_has_more_room() -> None:
    room, nodes = gpus_taken(200)
    want = Looking(1)

    assert [room.find(want) for _ in range(3)] == [None] * 3
    assert want.looks == 200
    nodes[7].give_back("gpu")
    room.grown(nodes[7])

    assert room.find(want) is nodes[7]
    assert want.looks == 201


def test_larger_requirements_skip_nodes_where_a_smaller_search_failed() -> None:
    room, _ = gpus_taken(2000)
    assert room.find(Looking(1)) is None
    greater = Looking(2)

    assert room.find(greater) is None

    assert greater.looks <= 64


def test_requirements_smaller_in_one_type_ignore_the_failed_search() -> None:
    room, nodes = gpus_taken(200)
    assert room.find(Looking(2)) is None

    assert room.find(requirements(1)) is nodes[0]


def test_line_stays_short_however_often_nodes_get_room() -> None:
    nodes = [node(number) for number in range(5)]
    room, whole = node_tracker.NodeSearch(nodes), requirements(4, 4)
    for one in nodes:
        fill(one)

    for turn in range(1000):
        one = nodes[turn % 5]
        empty(room, one)
        assert room.find(whole) is one
        fill(one)
        assert room.find(whole) is None

    assert len(room._order) < 100
    assert len(room) == 5


def test_places_are_forgotten_when_there_are_too_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_tracker, "_MOST_STARTS", 10)
    room = node_tracker.NodeSearch([node(number) for number in range(5)])

    found = [room.find(requirements(memory_mb)) for memory_mb in (*[5] * 30, *[4] * 30)]

    assert [one is None for one in found] == [True] * 30 + [False] * 30
    assert len(room._starts) <= 10


# -- against an exhaustive search --------------------------------------------------------------------------------------

SHAPES = [
    requirements(1, 1),
    requirements(4, 1),
    requirements(1, 4),
    requirements(2, 2, 1),
    requirements(1, 1, 2, 500),
    requirements(1, 1, 1, 300, models=frozenset({"T4"})),
    requirements(1, 1, blacklist=frozenset({"n1", "n2"})),
    requirements(3, 3, 2, 600, blacklist=frozenset({"n1"})),
]
STEPS = st.tuples(st.sampled_from(["find", "find", "give back", "add", "remove"]), st.integers(0, 1000))


@pytest.mark.long
@settings(max_examples=tries(75), deadline=None)
@given(st.integers(1, 80), st.lists(STEPS, max_size=120))
def test_search_finds_a_node_whenever_one_that_looks_at_all_would(count: int, steps: list[tuple[str, int]]) -> None:
    nodes = [node(number) for number in range(count)]
    room, held, added = node_tracker.NodeSearch(nodes), [], count
    for number, (step, which) in enumerate(steps):
        if step == "find":
            want = SHAPES[which % len(SHAPES)]
            found = room.find(want)
            assert (found is not None) == any(want.fits(one) for one in nodes)
            if found is not None:
                assert want.fits(found)
                found.take(f"c{number}", want.resource)
                held.append((found, f"c{number}"))
        elif step == "give back" and held:
            one, container = held.pop(which % len(held))
            one.give_back(container)
            if one in nodes:
                room.grown(one)
        elif step == "add":
            nodes.append(node(added))
            room.add(nodes[-1])
            added += 1
        elif step == "remove" and nodes:
            room.remove(nodes.pop(which % len(nodes)))
    for want in SHAPES:
        assert (room.find(want) is not None) == any(want.fits(one) for one in nodes)


NEEDS: dict[str, list[Any]] = {
    "memory_mb": [0, 1, 2],
    "vcores_milli": [0, 1, 2],
    "gpus": [0, 1, 2],
    "gpu_milli": [300, 600, 1000],
    "models": [ANYWHERE, frozenset({"T4"}), frozenset({"T4", "V100"})],
    "blacklist": [ANYWHERE, frozenset({"n0"}), frozenset({"n0", "n1"})],
    "others": [(), (("fpga", 1),), (("fpga", 2),)],
}
ROOM = [
    (number, memory_mb, vcores_milli, gpus)
    for number in range(3)
    for memory_mb in range(3)
    for vcores_milli in range(3)
    for gpus in ([], [300], [600], [1000], [1000, 300])
]


@pytest.mark.parametrize("need", NEEDS)
def test_requirements_fit_no_node_that_the_requirements_they_cover_do_not(need: str) -> None:
    """Those that differ in one need; the others are the middle ones."""
    middle = {name: values[1] for name, values in NEEDS.items()}
    for more, less in itertools.permutations([requirements(**{**middle, need: value}) for value in NEEDS[need]], 2):
        for number, memory_mb, vcores_milli, gpus in ROOM:
            one = node(number, memory_mb, vcores_milli, 0)
            one.free_gpu_milli = gpus
            one.free_others = {"fpga": number}

            assert not (more.covers(less) and more.fits(one) and not less.fits(one))
        assert more.covers(less) or less.covers(more)


# -- the largest node, after YARN --------------------------------------------------------------------------------------

WAIT_MS = 10_000
SIZES = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda size: Resource(*size))


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["come", "go", "resize", "drain"]), SIZES)))
def test_the_largest_is_known_whatever_happens_to_nodes(changes: list[tuple[int, str, Resource]]) -> None:
    tracker = node_tracker.ClusterNodeTracker()
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
