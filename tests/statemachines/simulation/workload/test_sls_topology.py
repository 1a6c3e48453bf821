"""The nodes of a workload in the format of Hadoop's Scheduler Load Simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import NodeSpec, Workload, WorkloadError, read_workload


def job(*hosts: str) -> dict[str, Any]:
    """A job with one task, or one for each host."""
    tasks: list[dict[str, Any]] = [{"container.host": host, "duration.ms": 5} for host in hosts]
    return {"job.start.ms": 5, "job.queue.name": "etl", "job.tasks": tasks or [{"duration.ms": 5}]}


def read(folder: Path, *objects: object) -> Workload:
    """The workload of objects that stand one in a line."""
    path = folder / "jobs.json"
    path.write_text("\n".join(json.dumps(each) for each in objects), encoding="utf-8")
    return read_workload(path)


def test_racks_list_nodes_with_sizes_of_their_own(tmp_path: Path) -> None:
    racks = [
        {"rack": "default-rack", "nodes": [{"node": "node1"}, {"node": "node2", "memory-mb": 64, "vcores": 2}]},
        {"rack": "/r2", "nodes": [{"node": "node3", "gpus": 4}]},
    ]

    workload = read(tmp_path, *racks, job())

    assert workload.nodes == (
        NodeSpec("node1", Resource(10240, 10000), "/default-rack"),
        NodeSpec("node2", Resource(64, 2000), "/default-rack"),
        NodeSpec("node3", Resource(10240, 10000, gpus=4), "/r2"),
    )


def test_number_of_nodes_is_divided_evenly_over_the_racks(tmp_path: Path) -> None:
    workload = read(tmp_path, {"num.nodes": 5, "num.racks": 2}, job())

    places = [(node.host, node.rack) for node in workload.nodes]
    assert places == [(f"node{number}", f"/rack{number % 2}") for number in range(5)]


def test_topology_wins_over_hosts_and_a_host_outside_it_is_a_preference_only(tmp_path: Path) -> None:
    workload = read(tmp_path, job("/r/elsewhere"), {"num.nodes": 1})

    assert [node.host for node in workload.nodes] == ["node0"]
    assert workload.applications[0].containers[0].host == "elsewhere"


@pytest.mark.parametrize("name", ["n1", "/n1", "default-rack/n1", "/default-rack/n1"])
def test_host_without_a_rack_is_in_the_default_rack(tmp_path: Path, name: str) -> None:
    workload = read(tmp_path, job(name))

    assert [(node.host, node.rack) for node in workload.nodes] == [("n1", "/default-rack")]


BAD_NODES = [
    ({"nodes": [{"node": "n1"}, {"node": "n1"}]}, "nodes[1].node", 'found "n1" again'),
    ({"nodes": [{"node": "n0"}]}, "nodes[0].node", 'found "n0" again'),
    ({"nodes": [{"name": "n1"}]}, "nodes[0].node", "found nothing, expected text"),
    ({"nodes": [{"node": "/r/n1"}]}, "nodes[0].node", 'found "/r/n1", expected a name without /'),
    ({"nodes": [{"node": "n1", "memory-mb": -1}]}, "nodes[0].memory-mb", "found -1"),
    ({"nodes": [{"node": "n1", "vcores": 1.5}]}, "nodes[0].vcores", "found 1.5"),
    ({"nodes": [{"node": "n1", "gpus": True}]}, "nodes[0].gpus", "found true"),
    ({"nodes": [7]}, "nodes[0]", "found 7, expected an object"),
    ({"nodes": []}, "nodes", "found an empty list"),
    ({"nodes": [{"node": "n1"}], "rack": {}}, "rack", "found an object, expected text"),
    ({"num.nodes": 0}, "num.nodes", "found 0, expected a whole number from 1"),
    ({"num.nodes": 10**9}, "num.nodes", "found 1000000000, expected a whole number from 1 to 1000000"),
    ({"num.nodes": 3, "num.racks": 0}, "num.racks", "found 0"),
]


@pytest.mark.parametrize(("nodes", "column", "problem"), BAD_NODES)
def test_bad_topology_is_reported(tmp_path: Path, nodes: dict[str, Any], column: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem) as caught:
        read(tmp_path, {"nodes": [{"node": "n0"}]}, nodes, job())

    assert (caught.value.row, caught.value.column) == (2, column)


def test_two_numbers_of_nodes_would_make_the_same_nodes_twice(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r'num.nodes: found "node0" again') as caught:
        read(tmp_path, {"num.nodes": 3}, {"num.nodes": 2}, job())

    assert (caught.value.row, caught.value.column) == (2, "num.nodes")


def test_host_in_two_racks_is_refused_where_hosts_become_nodes(tmp_path: Path) -> None:
    jobs = [job(name) for name in ("/r1/n1", "/r1/n2", "/r2/n1")]

    with pytest.raises(WorkloadError, match='found "/r2/n1", but its host is in rack "/r1" already') as caught:
        read(tmp_path, *jobs)

    assert (caught.value.row, caught.value.column) == (3, "job.tasks[0].container.host")


def test_workload_without_any_node_says_how_to_add_some(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r'add one, such as \{"num.nodes": 10, "num.racks": 2\}'):
        read(tmp_path, job())


def test_topology_alone_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"no jobs in it; expected objects with job.tasks"):
        read(tmp_path, {"num.nodes": 2})
