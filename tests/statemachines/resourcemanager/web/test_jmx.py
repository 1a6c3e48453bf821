"""GET /jmx: which beans there are, what they say, and the parameters `qry` and `get`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerRequest, Resource
from statemachines.resourcemanager.web.jmx.object_names import MalformedNameError, ObjectName
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Yarn
from .served import Served

pytestmark = pytest.mark.long

QUEUES = {
    "kind": "capacity",
    "queues": [
        {"name": "a", "capacity": 60, "queues": [{"name": "c", "maximum_am_resource_percent": 100}]},
        {"name": "b", "capacity": 40, "maximum_am_resource_percent": 100},
    ],
}
RM = "Hadoop:service=ResourceManager,name="


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Yarn, Served]]:
    """In root.a.c, one runs, with 2 GPUs, and one was killed; in root.b, one waits, and one has ended."""
    node = NodeSpec("n1", Resource(1000, 10_000, gpus=4), version="3.3.6")
    with Yarn(node, scheduler=QUEUES) as yarn, Served(yarn.manager) as served:
        served.publish()
        master = yarn.submit_and_run("first", am_mb=100, queue="c", user="ann")
        master.get_running(ContainerRequest(Resource(200, 1000, gpus=2), host="n1", tag=1))
        (short,) = master.get_running(ContainerRequest(Resource(50, 1000), tag=2))
        yarn.end(short)
        master.allocate(ContainerRequest(Resource(99_999, 1000), tag=3))
        yarn.kill(yarn.submit("second", am_mb=99_999, queue="root.a.c"))
        yarn.submit_and_run("third", am_mb=10, queue="b").finish_and_exit()
        yarn.submit("fourth", am_mb=99_999, queue="b", user="bob")
        yarn.register("n2")
        yarn.do(lambda: yarn.admin.refresh_nodes(["n2"]))
        yarn.advance(61 * 60_000)
        served.publish()
        yield yarn, served


@pytest.fixture
def served(cluster: tuple[Yarn, Served]) -> Served:
    return cluster[1]


def jmx(served: Served, **query: str) -> list[dict[str, Any]]:
    answer = served.ask("//jmx", params=query)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json; charset=utf-8"), answer.text
    found: list[dict[str, Any]] = answer.json()["beans"]
    return found


def bean(served: Served, name: str) -> dict[str, Any]:
    (found,) = jmx(served, qry=RM + name)
    assert found["name"] == RM + name
    return found


QUEUE_NAMES = ["q0=root", "q0=root,q1=a", "q0=root,q1=a,q2=c", "q0=root,q1=b"]
NAMES = ["RMNMInfo", "ClusterMetrics", *(f"QueueMetrics,{each}" for each in QUEUE_NAMES)]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, NAMES),
        ({"qry": "*:*"}, NAMES),
        ({"qry": ""}, NAMES),
        ({"qry": "Hadoop:*"}, NAMES),
        ({"qry": "Hadoop:service=ResourceManager,*"}, NAMES),
        ({"qry": "Hadoop:service=ResourceManager,name=*"}, NAMES[:2]),
        ({"qry": "Hadoop:name=ClusterMetrics,service=ResourceManager"}, [NAMES[1]]),
        ({"qry": "Hadoop:service=ResourceManager,name=QueueMetrics,*"}, NAMES[2:]),
        ({"qry": "Hadoop:service=ResourceManager,name=QueueMetrics,q0=root"}, [NAMES[2]]),
        ({"qry": "Had*:service=Resource?anager,name=QueueMetrics,q0=root,q1=*"}, [NAMES[3], NAMES[5]]),
        ({"qry": "java.lang:type=Memory"}, []),
        ({"qry": "Hadoop:service=NameNode,*"}, []),
        ({"qry": 'Hadoop:service="ResourceManager",name=RMNMInfo'}, [NAMES[0]]),
    ],
)
def test_a_query_chooses_beans_by_their_names(served: Served, query: dict[str, str], names: list[str]) -> None:
    assert [each["name"] for each in jmx(served, **query)] == [RM + name for name in names]


@pytest.mark.parametrize(
    "name", ["d", ":", "d:", "d:x", "d:a=b,", "d:a=b,a=c", "d:a=b,,c=d", "d:=b", 'd:a="b', "d:a=b=c"]
)
def test_a_query_that_is_no_name(served: Served, name: str) -> None:
    answer = served.ask("//jmx", params={"qry": name})

    assert (answer.status_code, answer.json()["result"]) == (400, "ERROR")
    assert "is not a name; write DOMAIN:KEY=VALUE" in answer.json()["message"]


def test_one_attribute(served: Served) -> None:
    (found,) = jmx(served, get=f"{RM}ClusterMetrics::NumActiveNMs")

    assert found == {"name": f"{RM}ClusterMetrics", "modelerType": "ClusterMetrics", "NumActiveNMs": 1}


def test_one_attribute_of_all_queues(served: Served) -> None:
    found = jmx(served, get=f"{RM}QueueMetrics,*::AppsRunning")

    assert [each["AppsRunning"] for each in found] == [1, 1, 1, 0]


def test_an_attribute_that_there_is_not(served: Served) -> None:
    answer = served.ask("//jmx", params={"get": f"{RM}RMNMInfo::Nothing"})

    (found,) = answer.json()["beans"]
    assert (answer.status_code, found["result"]) == (404, "ERROR")
    assert found["message"] == "No attribute with name Nothing was found."


@pytest.mark.parametrize("get", ["", "a:b=c", "a:b=c::", "::d", "a:b=c::d::e"])
def test_get_in_another_form(served: Served, get: str) -> None:
    answer = served.ask("//jmx", params={"get": get})

    assert (answer.status_code, answer.json()["result"]) == (400, "ERROR")


def test_the_node_managers_are_json_in_a_text(served: Served) -> None:
    found = bean(served, "RMNMInfo")

    (node,) = json.loads(found["LiveNodeManagers"])
    assert found["modelerType"] == "org.apache.hadoop.yarn.server.resourcemanager.RMNMInfo"
    assert node == {
        "HostName": "n1",
        "Rack": "/default-rack",
        "State": "RUNNING",
        "NodeId": "n1:45454",
        "NodeHTTPAddress": "n1:8042",
        "LastHealthUpdate": served.rm.model.heartbeat_ms("n1:45454"),
        "HealthReport": "",
        "NodeManagerVersion": "3.3.6",
        "NumContainers": 2,
        "UsedMemoryMB": 300,
        "AvailableMemoryMB": 700,
    }


LEAF = "QueueMetrics,q0=root,q1=a,q2=c"
ATTRIBUTES: list[tuple[str, str, list[Any]]] = [
    ("ClusterMetrics", "tag.Context tag.ClusterMetrics", ["yarn", "ResourceManager"]),
    ("ClusterMetrics", "NumActiveNMs NumDecommissionedNMs NumLostNMs", [1, 1, 0]),
    ("ClusterMetrics", "CapabilityMB CapabilityVirtualCores Capability.yarn.io/gpu", [1000, 10, 4]),
    ("ClusterMetrics", "RmDispatcherEventQueueSize SchedulerDispatcherEventQueueSize", [0, 0]),
    ("QueueMetrics,q0=root", "{Apps}", [4, 1, 1, 1, 1, 0]),
    ("QueueMetrics,q0=root,q1=a", "{Apps}", [2, 1, 0, 0, 1, 0]),
    (LEAF, "{Apps}", [2, 1, 0, 0, 1, 0]),
    ("QueueMetrics,q0=root,q1=b", "{Apps}", [2, 0, 1, 1, 0, 0]),
    (LEAF, "tag.Queue modelerType", ["root.a.c", LEAF]),
    (LEAF, "AllocatedMB AvailableMB PendingMB ReservedMB", [300, 700, 99_999, 0]),
    (LEAF, "AllocatedVCores AvailableVCores PendingVCores ReservedVCores", [2, 8, 1, 0]),
    (LEAF, "AllocatedResource.yarn.io/gpu AvailableResource.yarn.io/gpu", [2, 2]),
    (LEAF, "PendingResource.yarn.io/gpu ReservedResource.yarn.io/gpu", [0, 0]),
    (LEAF, "GuaranteedMB MaxCapacityMB UsedAMResourceMB", [600, 1000, 100]),
    (LEAF, "AllocatedContainers PendingContainers ReservedContainers ActiveApplications", [2, 1, 0, 1]),
    (LEAF, "AggregateContainersAllocated AggregateContainersReleased ActiveUsers", [3, 1, 1]),
    ("QueueMetrics,q0=root", "AggregateContainersAllocated AggregateContainersReleased ActiveUsers", [4, 2, 2]),
    ("QueueMetrics,q0=root", "running_0 running_60 running_300 running_1440", [0, 1, 0, 0]),
]
"""A queue counts what is in it and in those below it."""
APPS = "AppsSubmitted AppsRunning AppsPending AppsCompleted AppsKilled AppsFailed"


@pytest.mark.parametrize(("name", "attributes", "values"), ATTRIBUTES)
def test_the_attributes_of_a_bean(served: Served, name: str, attributes: str, values: list[Any]) -> None:
    found = bean(served, name)

    assert [found[each] for each in attributes.format(Apps=APPS).split()] == values


@pytest.mark.parametrize("is_published", [True, False])
def test_applications_that_are_no_longer_kept_still_count(is_published: bool) -> None:
    """Those that came and went between two publications were missing from their queue's numbers."""
    with Yarn("n1", max_completed_applications=1) as yarn, Served(yarn.manager, refresh_ms=60_000) as served:
        served.publish()
        for _ in range(3):
            yarn.submit_and_run("app").finish_and_exit()
            if is_published:
                served.publish()
        served.publish()
        kept, found = len(served.rm.model.apps), bean(served, "QueueMetrics,q0=root,q1=default")

    assert (kept, found["AppsSubmitted"], found["AppsCompleted"]) == (1, 3, 3)


@pytest.mark.parametrize("is_published", [True, False])
def test_containers_that_move_to_another_queue_are_released_and_allocated(is_published: bool) -> None:
    """They were only released, from the other queue, and the root left out queues without allocations."""
    node = NodeSpec("n1", Resource(1000, 10_000))
    with Yarn(node, scheduler=QUEUES) as yarn, Served(yarn.manager, refresh_ms=60_000) as served:
        served.publish()
        app_id = yarn.submit_and_run("app", am_mb=100, queue="c").app_id
        served.publish()
        yarn.do(lambda: yarn.clients.move_application_across_queues(app_id, "b"))
        if is_published:
            served.publish()
            assert counts_of_containers(served) == {"root": (2, 1, 1), "a": (1, 1, 0), "c": (1, 1, 0), "b": (1, 0, 1)}
        yarn.kill(app_id)
        served.publish()

        found = counts_of_containers(served)

    assert found == {"root": (2, 2, 0), "a": (1, 1, 0), "c": (1, 1, 0), "b": (1, 1, 0)}


def counts_of_containers(served: Served) -> dict[str, tuple[int, int, int]]:
    """By queue: allocated and released in all, and allocated now."""
    names = "AggregateContainersAllocated", "AggregateContainersReleased", "AllocatedContainers"
    found = jmx(served, qry=f"{RM}QueueMetrics,*")
    return {each["tag.Queue"].rpartition(".")[2]: tuple(each[name] for name in names) for each in found}  # type: ignore[misc]


def test_the_name_of_a_queue_with_special_characters_is_quoted() -> None:
    queues = {"kind": "capacity", "queues": [{"name": 'a,"b=*', "capacity": 100}]}
    with Yarn(scheduler=queues) as yarn, Served(yarn.manager) as served:
        served.publish()
        name = f'{RM}QueueMetrics,q0=root,q1="a,\\"b=\\*"'

        (found,) = jmx(served, qry=name)

    assert (found["name"], found["tag.Queue"]) == (name, 'root.a,"b=*')


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("*", "", True),
        ("a*", "a", True),
        ("*b*d", "abcbcd", True),
        ("*b*d", "abcbce", False),
        ("a?c", "abc", True),
        ("a?", "a", False),
        ("a**", "a", True),
        ("*?b", "b", False),
        ("[a]*", "[a]b", True),
        ("[a]*", "ab", False),
        ("a*c", "abcd", False),
        ("*" + "a*" * 200, "a" * 150 + "b", False),
    ],
)
def test_a_pattern_fits(pattern: str, text: str, fits: bool) -> None:
    """As a regular expression that steps back, the last one would take years."""
    assert ObjectName.parse(f"Hadoop:name={pattern}").matches(ObjectName("Hadoop", {"name": text})) is fits


def test_a_long_text_that_is_no_name_is_refused_at_once() -> None:
    """The search for its next property began at each of its characters: an hour for this one, and on the loop."""
    with pytest.raises(MalformedNameError):
        ObjectName.parse(":" + "a" * 1_000_000)
