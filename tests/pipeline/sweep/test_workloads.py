from __future__ import annotations

import itertools
from collections import Counter

import pytest

from pipeline.sweep.workloads import node_count, with_load, with_nodes
from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import ContainerSpec, NodeSpec, Workload

from .small import application

SMALL, LARGE = Resource(1024, 1000), Resource(8192, 8000, gpus=2)


def cluster(*nodes: NodeSpec) -> Workload:
    return Workload("w", nodes, ())


def mixed() -> Workload:
    """Eight small nodes and four large ones, on two racks each."""
    small = [NodeSpec(f"s{i}", SMALL, f"/r{i // 4}") for i in range(8)]
    large = [NodeSpec(f"l{i}", LARGE, f"/r{i // 2}", gpu_model="T4") for i in range(4)]
    return cluster(*small, *large)


def hosts(workload: Workload) -> list[str]:
    return [node.host for node in workload.nodes]


@pytest.mark.parametrize(
    ("wanted", "count"), [(0.5, 4), (1.0, 7), (0.01, 1), (2.0, 14), (1, 1), (3, 3), (20, 20), (0.214, 1), (0.215, 2)]
)
def test_a_decimal_is_a_factor_and_a_whole_number_is_a_number_of_nodes(wanted: float, count: int) -> None:
    assert node_count(7, wanted) == count


def test_a_part_of_the_nodes_has_each_kind_and_each_rack_in_proportion() -> None:
    half = with_nodes(mixed(), 6)

    assert Counter((node.host[0], node.rack) for node in half.nodes) == {
        ("s", "/r0"): 2,
        ("s", "/r1"): 2,
        ("l", "/r0"): 1,
        ("l", "/r1"): 1,
    }


def test_a_smaller_cluster_is_part_of_a_larger_one_and_keeps_its_order() -> None:
    whole = mixed()
    clusters = [hosts(with_nodes(whole, count)) for count in range(1, 13)]

    for smaller, larger in itertools.pairwise(clusters):
        assert set(smaller) < set(larger)
    for each in clusters:
        assert each == [host for host in hosts(whole) if host in each]


def test_more_nodes_are_copies_under_names_of_their_own() -> None:
    more = with_nodes(cluster(NodeSpec("a", SMALL, "/r1"), NodeSpec("b", LARGE, "/r2")), 5)

    assert hosts(more) == ["a", "b", "a+1", "b+1", "a+2"]
    assert more.nodes[3] == NodeSpec("b+1", LARGE, "/r2")


def test_a_copy_never_has_the_name_of_another_node() -> None:
    more = with_nodes(cluster(NodeSpec("a", SMALL), NodeSpec("a+1", SMALL)), 4)

    assert hosts(more) == ["a", "a+1", "a++1", "a+1++1"]


def test_load_moves_all_times_of_an_application_with_its_submission() -> None:
    containers = (ContainerSpec(SMALL, 5000, start_ms=12_000), ContainerSpec(SMALL, 5000))
    one = application("a", 10, 8, SMALL, containers=containers, kill_ms=60_000)

    [sooner] = with_load(Workload("w", (), (one,)), 4.0).applications

    assert (sooner.submit_ms, sooner.kill_ms) == (2500, 52_500)
    assert [each.start_ms for each in sooner.containers] == [4500, 0]
    assert (sooner.am_duration_ms, sooner.containers[0].duration_ms) == (7000, 5000)
