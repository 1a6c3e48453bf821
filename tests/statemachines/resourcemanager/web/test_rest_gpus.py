"""GPUs in the totals of the REST API and of the pages: they are `yarn.io/gpu`, whole devices, as Hadoop counts them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerRequest, Resource
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Master, Yarn
from .served import Served

pytestmark = pytest.mark.long

QUEUES = {
    "kind": "capacity",
    "queues": [{"name": "a", "capacity": 50}, {"name": "b", "capacity": 50}],
    "maximum_allocation_wait_ms": 0,
}
NODES = [NodeSpec(f"n{number}", Resource(1000, 10_000, gpus=8)) for number in (1, 2)]
HALF = Resource(100, 1000, gpus=1, gpu_milli=500)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Served, Master]]:
    """Two nodes of 8 GPUs; an application has 3 of one and half a GPU of the other, and waits for 8 on one node."""
    with Yarn(*NODES, scheduler=QUEUES) as yarn:
        master = yarn.submit_and_run("app", am_mb=100, queue="a", user="ann")
        master.get_running(ContainerRequest(Resource(100, 1000, gpus=3), host="n1", tag=1))
        master.get_running(ContainerRequest(HALF, host="n2", tag=2))
        master.allocate(ContainerRequest(Resource(100, 1000, gpus=8), tag=3))
        yarn.advance(10_000)
        with Served(yarn.manager) as served:
            yield served, master


@pytest.fixture
def served(cluster: tuple[Served, Master]) -> Served:
    return cluster[0]


@pytest.mark.parametrize("scheduler", [{"kind": "fifo"}, QUEUES], ids=["fifo", "capacity"])
def test_of_a_draining_node_all_totals_have_what_it_uses(scheduler: dict[str, Any]) -> None:
    """What is free there can be had by nobody, and counted as available: YARN-3223."""
    with Yarn(*NODES, scheduler=scheduler) as yarn, Served(yarn.manager) as served:
        master = yarn.submit_and_run("app", am_mb=100, queue="a", user="ann")
        on_n1 = master.get_running(*[ContainerRequest(HALF, host="n1", tag=tag) for tag in (1, 2, 3)])
        assert master.container is not None
        (draining,) = {each.node for each in on_n1} | {master.container.node}
        yarn.do(lambda: yarn.admin.refresh_nodes([draining.partition(":")[0]], graceful=True))
        totals = [_totals(served)]
        page = served.ask(f"//cluster/node/{draining}").text
        yarn.end(on_n1[0])
        totals.append(_totals(served))
        yarn.do(lambda: yarn.admin.recommission([draining.partition(":")[0]]))
        totals.append(_totals(served))

    assert "400 MB of 400 MB" in page
    assert page.partition("<dt>Once recommissioned</dt><dd>")[2].startswith("1,000 MB, 10 vcores, 8 GPUs<")
    assert totals == [({1400}, {10}), ({1300}, {9}), ({2000}, {16})]


def _totals(served: Served) -> tuple[set[int], set[int]]:
    """What the cluster has in all, by all that says so: MB, and GPUs."""
    metrics = served.get("/metrics")["clusterMetrics"]
    nodes = served.get("/nodes")["nodes"]["node"]
    beans = {each["name"].partition("name=")[2]: each for each in served.ask("//jmx").json()["beans"]}
    root, managers = beans["QueueMetrics,q0=root"], json.loads(beans["RMNMInfo"]["LiveNodeManagers"])
    memory_mb = {
        metrics["totalMB"],
        metrics["availableMB"] + metrics["allocatedMB"],
        sum(each["totalResource"]["memory"] for each in nodes),
        sum(each["usedMemoryMB"] + each["availMemoryMB"] for each in nodes),
        sum(each["UsedMemoryMB"] + each["AvailableMemoryMB"] for each in managers),
        beans["ClusterMetrics"]["CapabilityMB"],
        root["AvailableMB"] + root["AllocatedMB"],
        root["GuaranteedMB"],
    }
    all_gpus = {
        gpus(metrics["totalClusterResourcesAcrossPartition"]),
        sum(gpus(each["totalResource"]) for each in nodes),
        beans["ClusterMetrics"]["Capability.yarn.io/gpu"],
        root["AvailableResource.yarn.io/gpu"] + root["AllocatedResource.yarn.io/gpu"],
    }
    return memory_mb, all_gpus


def gpus(resource: Any) -> int:
    (found,) = [
        each["value"]
        for each in resource["resourceInformations"]["resourceInformation"]
        if each["name"] == "yarn.io/gpu"
    ]
    return int(found)


def test_the_clusters_totals(served: Served) -> None:
    metrics = served.get("/metrics")["clusterMetrics"]

    assert gpus(metrics["totalClusterResourcesAcrossPartition"]) == 16
    assert gpus(metrics["totalUsedResourcesAcrossPartition"]) == 4
    assert gpus(metrics["totalReservedResourcesAcrossPartition"]) == 0


def test_a_node(served: Served) -> None:
    nodes = served.get("/nodes")["nodes"]["node"]

    found = [[gpus(each[f"{part}Resource"]) for part in ("total", "used", "available")] for each in nodes]
    assert found == [[8, 3, 5], [8, 1, 7]]


def test_a_queue_and_its_users(served: Served) -> None:
    root = served.get("/scheduler")["scheduler"]["schedulerInfo"]
    a, b = root["queues"]["queue"]

    assert (gpus(a["resourcesUsed"]), gpus(b["resourcesUsed"])) == (4, 0)
    assert a["usedResources"] == "<memory:300, vCores:3, yarn.io/gpu: 4>"
    assert gpus(a["resourcesPending"]) == 8
    assert [gpus(each["resourcesUsed"]) for each in a["users"]["user"]] == [4]


def test_an_application(cluster: tuple[Served, Master]) -> None:
    served, master = cluster
    app = served.get(f"/apps/{master.app_id}")["app"]

    (usage,) = app["resourceInfo"]["resourceUsagesByPartition"]
    assert [gpus(usage[part]) for part in ("used", "reserved", "pending")] == [4, 0, 8]
    assert {"key": "yarn.io/gpu", "value": 35} in app["resourceSecondsMap"]["entry"]
    assert app == served.get("/apps")["apps"]["app"][0]
    assert "resourceInfo" not in served.get("/apps", deSelects="resourceInfo")["apps"]["app"][0]


def test_the_largest_container(served: Served) -> None:
    new = served.ask("/apps/new-application", "POST")

    assert "content-type" not in new.request.headers
    assert gpus(new.json()["maximum-resource-capability"]) == 8


def test_the_page_of_the_cluster_says_how_many_there_are(served: Served) -> None:
    """It said `of 1`, whatever their number: a sum has all GPUs as one device."""
    served.publish()
    page = served.ask("//cluster").text

    assert "3.5 of 16" in page


def test_the_bar_of_a_queue_shows_pending_gpus(served: Served) -> None:
    """The queue has 4 of 16 GPUs and wants 8 more: three quarters."""
    served.publish()
    page = served.ask("//cluster/scheduler").text

    assert 'class="pending" x="21.88" y="8" width="50.00"' in page


def test_a_sum_of_gpus_is_told_as_a_number_of_them() -> None:
    """It was `GPUs:1 x 3.5`."""
    assert str(Resource(1, 1000, 1, 3500)) == "<memory:1 MB, vCores:1, GPUs:3.5>"
