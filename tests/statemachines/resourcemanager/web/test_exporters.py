"""Monitoring of YARN that reads this resource manager: each exporter finds the fields that it reads, with their types.

Datadog's check `yarn` and yarn-prometheus-exporter read the REST API; hadoop_exporter, Ambari's alert on node managers
and Nagios' check of applications read /jmx.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerRequest, Resource
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Yarn
from .served import Served

pytestmark = pytest.mark.long

QUEUES = {
    "kind": "capacity",
    "queues": [
        {"name": "a", "capacity": 60, "queues": [{"name": "c", "capacity": 70}, {"name": "d", "capacity": 30}]},
        {"name": "b", "capacity": 40},
    ],
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Yarn(NodeSpec("n1", Resource(1000, 10_000)), scheduler=QUEUES) as yarn, Served(yarn.manager) as served:
        master = yarn.submit_and_run("app", am_mb=40, queue="c", user="ann", tags=("team:ml",))
        master.get_running(ContainerRequest(Resource(100, 1000), tag=1))
        yarn.submit_and_run("other", am_mb=40, queue="b").finish_and_exit()
        served.publish()
        yield served


def words(text: str) -> list[str]:
    return text.split()


def number(found: Any, path: str) -> float:
    """The number at a path of keys, joined by dots; no text, no boolean."""
    for key in path.split("."):
        found = found[key]
    assert type(found) in (int, float), f"{path} is {found!r}"
    return float(found)


# -- Datadog -----------------------------------------------------------------------------------------------------------

DATADOG_CLUSTER = words(
    """
    appsSubmitted appsCompleted appsPending appsRunning appsFailed appsKilled reservedMB availableMB allocatedMB
    totalMB reservedVirtualCores availableVirtualCores allocatedVirtualCores totalVirtualCores containersAllocated
    containersReserved containersPending totalNodes activeNodes lostNodes unhealthyNodes decommissionedNodes
    rebootedNodes
    """
)
DATADOG_APP = words(
    """
    progress startedTime finishedTime elapsedTime allocatedMB allocatedVCores runningContainers memorySeconds
    vcoreSeconds
    """
)
DATADOG_NODE = words(
    """
    lastHealthUpdate usedMemoryMB availMemoryMB usedVirtualCores availableVirtualCores numContainers
    """
)
DATADOG_ROOT = ["maxCapacity", "usedCapacity", "capacity"]
DATADOG_QUEUE = words(
    """
    absoluteCapacity numApplications absoluteUsedCapacity resourcesUsed.memory resourcesUsed.vCores capacity
    absoluteMaxCapacity usedCapacity numContainers maxCapacity
    """
)
DATADOG_LEAF = words(
    """
    numPendingApplications userAMResourceLimit.memory userAMResourceLimit.vCores userLimitFactor userLimit
    usedAMResource.memory usedAMResource.vCores AMResourceLimit.vCores AMResourceLimit.memory numActiveApplications
    maxActiveApplications maxActiveApplicationsPerUser maxApplications maxApplicationsPerUser
    """
)


def test_datadog_finds_the_clusters_metrics(served: Served) -> None:
    metrics = served.get("/metrics")["clusterMetrics"]

    assert {name: number(metrics, name) for name in DATADOG_CLUSTER}["totalMB"] == 1000


def test_datadog_finds_the_metrics_and_tags_of_a_running_application(served: Served) -> None:
    apps = served.get("/apps")["apps"]["app"]

    (app,) = (each for each in apps if each["state"] == "RUNNING")
    assert {name: number(app, name) for name in DATADOG_APP}["runningContainers"] == 2
    tags = [app[key] for key in ("applicationTags", "applicationType", "name", "queue", "user")]
    assert tags == ["team:ml", "YARN", "app", "c", "ann"]


def test_datadog_finds_the_metrics_and_the_version_of_a_node(served: Served) -> None:
    (node,) = served.get("/nodes")["nodes"]["node"]

    assert {name: number(node, name) for name in DATADOG_NODE}["usedMemoryMB"] == 140
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", node["version"])
    assert node["id"] == "n1:45454"


def test_datadog_finds_the_metrics_of_queues_at_two_levels(served: Served) -> None:
    root = served.get("/scheduler")["scheduler"]["schedulerInfo"]
    first = {queue["queueName"]: queue for queue in root["queues"]["queue"]}
    second = {queue["queueName"]: queue for queue in first["a"]["queues"]["queue"]}

    assert root["type"] == "capacityScheduler"
    assert [number(root, name) for name in DATADOG_ROOT][2] == 100
    for queue in (*first.values(), *second.values()):
        assert all(number(queue, name) >= 0 for name in DATADOG_QUEUE)
    for leaf in (first["b"], *second.values()):
        assert all(number(leaf, name) >= 0 for name in DATADOG_LEAF)
    assert number(second["c"], "usedAMResource.memory") == 40


# -- yarn-prometheus-exporter ------------------------------------------------------------------------------------------

# What a Go program decodes into: a value of another type fails the whole scrape, where a missing one is 0.
RESOURCE = {"memory": float, "vCores": float}
PARTITION = {
    "partitionName": str,
    **dict.fromkeys(
        words(
            """
            absoluteCapacity absoluteMaxCapacity absoluteUsedCapacity capacity maxAMLimitPercentage maxCapacity
            usedCapacity
            """
        ),
        float,
    ),
}
USAGES = [{"partitionName": str, **dict.fromkeys(("amLimit", "amUsed", "pending", "reserved", "used"), RESOURCE)}]
QUEUE = {
    **dict.fromkeys(
        words(
            """
            absoluteCapacity absoluteMaxCapacity absoluteUsedCapacity allocatedContainers capacity maxApplications
            maxApplicationsPerUser maxCapacity numActiveApplications numApplications numContainers
            numPendingApplications pendingContainers reservedContainers usedCapacity userLimit userLimitFactor
            """
        ),
        float,
    ),
    **dict.fromkeys(("AMResourceLimit", "usedAMResource", "userAMResourceLimit", "resourcesUsed"), RESOURCE),
    "capacities": {"queueCapacitiesByPartition": [PARTITION]},
    "resources": {"resourceUsagesByPartition": USAGES},
    "preemptionDisabled": bool,
    **dict.fromkeys(("queueName", "state", "type"), str),
    "users": {
        "user": [
            {
                **dict.fromkeys(("AMResourceUsed", "resourcesUsed", "userResourceLimit"), RESOURCE),
                **dict.fromkeys(("numActiveApplications", "numPendingApplications"), float),
                "username": str,
            }
        ]
    },
}
SCHEDULER = {
    **dict.fromkeys(("capacity", "maxCapacity", "usedCapacity"), float),
    "queueName": str,
    "capacities": {"queueCapacitiesByPartition": [PARTITION]},
}
INFORMATION = {
    **dict.fromkeys(("maximumAllocation", "minimumAllocation", "value"), float),
    **dict.fromkeys(("name", "resourceType", "units"), str),
}
TOTAL = {**RESOURCE, "resourceInformations": {"resourceInformation": [INFORMATION]}}
METRICS = {
    **dict.fromkeys((*DATADOG_CLUSTER, "decommissioningNodes", "shutdownNodes"), float),
    **dict.fromkeys(("totalUsedResourcesAcrossPartition", "totalClusterResourcesAcrossPartition"), TOTAL),
}


def misfits(found: Any, shape: Any, path: str = "") -> Iterator[str]:
    """What is missing in an answer, or has another type."""
    if isinstance(shape, Mapping):
        if not isinstance(found, dict):
            yield f"{path} is {found!r}"
            return
        for key, inner in shape.items():
            yield from misfits(found[key], inner, f"{path}.{key}") if key in found else [f"{path}.{key} is missing"]
    elif isinstance(shape, list):
        if not isinstance(found, list):
            yield f"{path} is {found!r}"
            return
        for each in found:
            yield from misfits(each, shape[0], f"{path}[]")
    elif type(found) not in ((int, float) if shape is float else (shape,)):
        yield f"{path} is {found!r}"


def test_yarn_prometheus_exporter_decodes_the_metrics(served: Served) -> None:
    assert list(misfits(served.get("/metrics")["clusterMetrics"], METRICS)) == []


def test_yarn_prometheus_exporter_decodes_the_scheduler_and_its_leaves(served: Served) -> None:
    root = served.get("/scheduler")["scheduler"]["schedulerInfo"]
    a, b = root["queues"]["queue"]

    assert list(misfits(root, SCHEDULER)) == []
    for leaf in (b, *a["queues"]["queue"]):
        assert list(misfits(leaf, QUEUE)) == []


# -- /jmx --------------------------------------------------------------------------------------------------------------

RM = "Hadoop:service=ResourceManager,name="
OF_QUEUE = [r"^running_\d+$", r".+Containers$", r".+VCores$", r".+MB$", r"^Apps.+", r"^(?!tag|modelerType|name).*"]
HADOOP_EXPORTER = [
    (r"name=QueueMetrics,q0=\w+$", OF_QUEUE),
    (r"name=QueueMetrics,q0=\w+,q1=\w+$", OF_QUEUE),
    (r"name=ClusterMetrics$", [r"^Num.+NMs$", r".+(NumOps|AvgTime)$"]),
]
"""Which beans it asks for, and by which patterns it takes their attributes: the first that fits."""


def beans(served: Served, **query: str) -> list[dict[str, Any]]:
    served.publish()
    answer = served.ask("//jmx", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["beans"]
    return found


def test_hadoop_exporter_takes_numbers_only(served: Served) -> None:
    taken: dict[str, dict[str, float]] = {}
    for bean in beans(served):
        for name, patterns in HADOOP_EXPORTER:
            if re.search(name, bean["name"]):
                attributes = [each for each in bean if any(re.search(pattern, each) for pattern in patterns)]
                taken[bean["name"]] = {each: number({"x": bean[each]}, "x") for each in attributes}

    kinds = [f"{kind}{of}" for kind in ("Allocated", "Pending", "Reserved") for of in ("MB", "VCores", "Containers")]
    of_queue = {*kinds, "AvailableMB", "AvailableVCores", "running_0", "running_1440", "AppsRunning", "AppsFailed"}
    states = ("Active", "Decommissioning", "Decommissioned", "Lost", "Unhealthy", "Rebooted", "Shutdown")
    queues = [f"{RM}QueueMetrics,q0=root{below}" for below in ("", ",q1=a", ",q1=b")]
    assert taken.keys() == {f"{RM}ClusterMetrics", *queues}
    assert all(taken[queue].keys() >= of_queue for queue in queues)
    assert taken[f"{RM}ClusterMetrics"].keys() == {f"Num{state}NMs" for state in states}


def test_ambari_counts_unhealthy_node_managers(served: Served) -> None:
    (bean,) = beans(served, qry=f"{RM}RMNMInfo")

    nodes = json.loads(bean["LiveNodeManagers"])
    assert [node["State"] for node in nodes] == ["RUNNING"]
    assert bean["modelerType"]  # by which it tells the active of two resource managers


def test_nagios_checks_the_applications_of_the_root(served: Served) -> None:
    (bean,) = (each for each in beans(served) if each["name"] == f"{RM}QueueMetrics,q0=root")

    names = "AppsSubmitted AppsRunning AppsPending AppsCompleted AppsKilled AppsFailed ActiveUsers ActiveApplications"
    assert [type(bean[name]) for name in names.split()] == [int] * 8
    assert number(bean, "AvailableMB") == 860
