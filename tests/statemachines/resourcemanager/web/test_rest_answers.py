"""What all answers of the REST API have in common: methods, types, errors, slashes; and the cluster's endpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerRequest, Resource, RMNodeEventType
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Yarn
from ..inner import RMNodeEvent
from .front import front
from .served import Served, amount

pytestmark = pytest.mark.long

QUEUES = {
    "kind": "capacity",
    "queues": [
        {"name": "a", "capacity": 60, "accessible_node_labels": {"gpu": {"capacity": 100}}},
        {"name": "b", "capacity": 40, "queues": [{"name": "c", "capacity": 50}, {"name": "d", "capacity": 50}]},
    ],
}

LABELS = "nodeLabelInfo"
EMPTY = ["/apps", "/nodes", "/get-node-to-labels", "/get-node-labels"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Yarn, Served]]:
    labelled = NodeSpec("n2", Resource(100, 1000), partition="gpu")
    with Yarn(NodeSpec("n1", Resource(1000, 4000)), labelled, scheduler=QUEUES) as yarn:
        yarn.submit_and_run("app", am_mb=100, queue="a", user="ann")
        with Served(yarn.manager) as served:
            served.publish()
            yield yarn, served


@pytest.fixture
def served(cluster: tuple[Yarn, Served]) -> Served:
    return cluster[1]


# -- the cluster -------------------------------------------------------------------------------------------------------


def test_the_sums_of_the_metrics(served: Served) -> None:
    metrics = served.get("/metrics")["clusterMetrics"]

    check_sums(metrics)
    assert (metrics["totalMB"], metrics["allocatedMB"], metrics["totalVirtualCores"]) == (1100, 100, 5)
    assert (metrics["totalNodes"], metrics["activeNodes"], metrics["appsRunning"]) == (2, 2, 1)
    assert metrics["totalClusterResourcesAcrossPartition"] == amount(Resource(1100, 5000))
    assert all(isinstance(value, int) for key, value in metrics.items() if not key.endswith("AcrossPartition"))


def test_the_metrics_tell_how_many_events_wait_now() -> None:
    with front() as made, made.hanging():
        made.manager.dispatcher.post(RMNodeEvent(RMNodeEventType.STATUS_UPDATE, "n1:1"))

        metrics = made.get("/metrics").json()["clusterMetrics"]

    assert (metrics["rmEventQueueSize"], metrics["schedulerEventQueueSize"]) == (1, 0)


def check_sums(metrics: dict[str, Any]) -> None:
    for unit in ("MB", "VirtualCores"):
        parts = [metrics[f"{part}{unit}"] for part in ("available", "allocated", "reserved")]
        assert metrics[f"total{unit}"] == sum(parts)
    states = ("active", "lost", "unhealthy", "decommissioning", "decommissioned", "rebooted", "shutdown")
    assert metrics["totalNodes"] == sum(metrics[f"{state}Nodes"] for state in states)
    ends = [metrics[f"apps{state}"] for state in ("Pending", "Running", "Completed", "Failed", "Killed")]
    assert metrics["appsSubmitted"] == sum(ends)


def test_the_queues_have_the_shape_of_the_capacity_scheduler(served: Served) -> None:
    root = served.get("/scheduler")["scheduler"]["schedulerInfo"]
    a, b = root["queues"]["queue"]
    c, d = b["queues"]["queue"]

    assert (root["type"], root["queueName"], root["capacity"]) == ("capacityScheduler", "root", 100.0)
    assert "type" not in b
    for queue, name in (a, "a"), (b, "b"), (c, "c"), (d, "d"):
        assert queue["queueName"] == name
    for leaf in (a, c, d):
        assert leaf["type"] == "capacitySchedulerLeafQueueInfo"
        assert "queues" not in leaf
    assert (a["absoluteCapacity"], c["absoluteCapacity"], c["capacity"]) == (60.0, 20.0, 50.0)
    assert (a["usedResources"], a["resourcesUsed"]) == ("<memory:100, vCores:1>", amount(Resource(100, 1000)))
    assert [each["partitionName"] for each in a["capacities"]["queueCapacitiesByPartition"]] == ["", "gpu"]
    assert a["nodeLabels"] == ["gpu"]
    (user,) = a["users"]["user"]
    assert (user["username"], user["resourcesUsed"]["memory"], user["numActiveApplications"]) == ("ann", 100, 1)
    assert c["users"] == {"user": []}


def test_an_idle_fifo_queue_has_that_shape_too(served: Served) -> None:
    (leaf, _) = served.get("/scheduler")["scheduler"]["schedulerInfo"]["queues"]["queue"]
    with Yarn() as yarn, Served(yarn.manager) as fifo:
        root = fifo.get("/scheduler")["scheduler"]["schedulerInfo"]

    (queue,) = root["queues"]["queue"]
    assert (root["type"], queue["queueName"], queue["usedCapacity"]) == ("capacityScheduler", "default", 0.0)
    assert leaf.keys() - {"nodeLabels"} <= queue.keys()
    assert "queues" not in queue


def test_empty_lists_are_null_if_so_configured() -> None:
    with Yarn() as yarn, Served(yarn.manager) as plain, Served(yarn.manager, empty_as_null=True) as null:
        shown = [[each.get(path) for path in EMPTY] for each in (plain, null)]
        (queue,) = null.get("/scheduler")["scheduler"]["schedulerInfo"]["queues"]["queue"]

    assert shown[0] == [{"apps": {"app": []}}, {"nodes": {"node": []}}, {"nodeToLabels": {"entry": []}}, {LABELS: []}]
    assert shown[1] == [{"apps": None}, {"nodes": None}, {"nodeToLabels": None}, {LABELS: None}]
    assert queue["users"] is None


# -- nodes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["n1:45454", "n1%3A45454", "n1%3a45454"])
def test_a_node_by_both_spellings_of_its_colon(served: Served, id: str) -> None:
    node = served.get(f"/nodes/{id}")["node"]

    assert (node["id"], node["nodeHostName"], node["state"], node["rack"]) == (
        "n1:45454", "n1", "RUNNING", "/default-rack",
    )  # fmt: skip
    assert (node["usedMemoryMB"], node["availMemoryMB"]) == (100, 900)
    assert (node["usedVirtualCores"], node["availableVirtualCores"], node["numContainers"]) == (1, 3, 1)
    assert (node["healthReport"], node["nodeHTTPAddress"]) == ("", "n1:8042")
    assert "nodeLabels" not in node
    assert node in served.get("/nodes")["nodes"]["node"]


def test_a_node_that_does_not_tell_its_version_has_the_one_that_the_api_follows() -> None:
    told = NodeSpec("n2", Resource(100, 1000), version="3.3.6")
    with Yarn("n1", told) as yarn, Served(yarn.manager, hadoop_version="3.4.0") as served:
        versions = [each["version"] for each in served.get("/nodes")["nodes"]["node"]]

    assert versions == ["3.4.0", "3.3.6"]


def test_unknown_nodes_and_ids_of_none(served: Served) -> None:
    assert served.refusal("/nodes/n3:1")[0] == 404
    assert served.refusal("/nodes/n3")[0] == 400


def test_a_node_that_is_gone_has_no_address_and_no_room() -> None:
    with Yarn(NodeSpec("n1", Resource(1000, 4000))) as yarn, Served(yarn.manager) as served:
        yarn.do(lambda: yarn.admin.refresh_nodes(["n1"]))

        node = served.get("/nodes/n1:45454")["node"]

    assert (node["state"], node["nodeHTTPAddress"], node["availMemoryMB"]) == ("DECOMMISSIONED", "", 0)


def test_a_heartbeat_alone_is_seen(cluster: tuple[Yarn, Served]) -> None:
    yarn, served = cluster
    yarn.advance(1_000)
    yarn.heartbeat("n2")

    nodes = {each["id"]: each for each in served.get("/nodes", states="RUNNING")["nodes"]["node"]}

    assert nodes["n2:45454"]["lastHealthUpdate"] == yarn.context.now_ms()
    assert nodes["n2:45454"] == served.get("/nodes/n2:45454")["node"]


def test_labels(served: Served) -> None:
    about = {"name": "gpu", "exclusivity": True}
    room = {"partitionInfo": {"resourceAvailable": amount(Resource(100, 1000))}}

    assert served.get("/get-node-labels") == {"nodeLabelInfo": [about | room | {"activeNMs": 1}]}
    assert served.get("/get-node-to-labels") == {
        "nodeToLabels": {"entry": [{"key": "n2:45454", "value": {"nodeLabelInfo": [about]}}]}
    }
    entry = {"key": about | room, "value": {"nodes": ["n2:45454"]} | room}
    assert served.get("/label-mappings") == {"labelsToNodes": {"entry": [entry]}}
    assert served.get("/label-mappings", labels="gpu,x") == {"labelsToNodes": {"entry": [entry]}}
    assert served.get("/label-mappings", labels="x") == {"labelsToNodes": {"entry": []}}


# -- every answer ------------------------------------------------------------------------------------------------------

READING = ["", "/info", "/metrics", "/scheduler", "/apps", "/appstatistics", "/nodes", "/nodes/n1:45454"]
READING += ["/get-node-labels", "/get-node-to-labels", "/label-mappings"]


@pytest.mark.parametrize("path", READING)
def test_head_is_answered_as_get_without_a_body(served: Served, path: str) -> None:
    get, head = served.ask(path), served.ask(path, "HEAD")

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"] == "application/json; charset=utf-8"
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("path", READING)
def test_another_method_is_405_with_those_that_there_are(served: Served, path: str) -> None:
    answer = served.ask(path, "PUT", json={})

    assert (answer.status_code, "GET" in answer.headers["allow"]) == (405, True)
    assert "PUT is not possible" in answer.json()["RemoteException"]["message"]


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("*/*", 200),
        ("", 200),
        ("application/json", 200),
        ("application/*;q=0.1", 200),
        ("application/xml", 406),
        ("text/html", 406),
        ("application/xml, application/json;q=0", 406),
        ("application/xml;q=0.9, */*;q=0.8", 200),
        (", ,", 200),
        ("nonsense;;;q", 406),
    ],
)
def test_only_json_can_be_had(served: Served, accept: str, status: int) -> None:
    assert served.ask("/info", headers={"Accept": accept}).status_code == status


@pytest.mark.parametrize("path", ["//ws/v1/cluster/apps", "///ws/v1/cluster/apps/", "/ws/v1/cluster/apps/"])
def test_slashes_are_forgiven(served: Served, path: str) -> None:
    assert len(served.ask(path).json()["apps"]["app"]) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/userinfo"),
        ("POST", "/scheduler/logs"),
        ("GET", "/scheduler/activities"),
        ("GET", "/scheduler/app-activities/application_1_1"),
        ("GET", "/scheduler-conf/version"),
        ("POST", "/scheduler-conf/validate"),
        ("GET", "/reservation/list"),
        ("POST", "/reservation/submit"),
        ("POST", "/delegation-token"),
        ("DELETE", "/delegation-token"),
        ("POST", "/delegation-token/expiration"),
        ("POST", "/containers/container_1_1_1_1/signal/GRACEFUL_SHUTDOWN"),
        ("POST", "/add-node-labels"),
        ("POST", "/remove-node-labels"),
        ("POST", "/replace-node-to-labels"),
        ("GET", "/nodes/n1:45454/get-labels"),
    ],
)
def test_what_hadoop_has_and_we_do_not(served: Served, method: str, path: str) -> None:
    assert served.refusal(path, method) == (404, "not offered by this ResourceManager")


@pytest.mark.parametrize("path", ["/nothing", "/apps/application_1_1/nothing", "/ws/v2/cluster", "/metrics/x"])
def test_other_paths_are_unknown(served: Served, path: str) -> None:
    status, message = served.refusal(path)

    assert (status, "no such path" in message) == (404, True)


def test_a_fault_of_ours_is_a_number_in_the_log(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(served.rm.model, "nodes", None)

    with caplog.at_level(logging.ERROR):
        status, message = served.refusal("/nodes/n1:45454")

    number = message.rpartition(" ")[2]
    assert (status, "Traceback" in message, "None" in message) == (500, False, False)
    assert number in caplog.text
    assert any(record.exc_info for record in caplog.records)


OF_OTHER_SITES: list[tuple[dict[str, str], int]] = [
    ({"Host": "elsewhere:80"}, 421),
    ({"Origin": "http://elsewhere"}, 403),
    ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Content-Type": "text/plain"}, 415),
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
]


@pytest.mark.parametrize(("headers", "status"), OF_OTHER_SITES)
def test_a_page_of_another_site_changes_nothing_and_gets_an_error_in_hadoops_form(
    cluster: tuple[Yarn, Served], headers: dict[str, str], status: int
) -> None:
    yarn, served = cluster
    [app] = yarn.clients.get_applications()
    headers = {"Content-Type": "application/json", **headers}

    for path, method, body in ("/apps", "POST", {}), (f"/apps/{app.application_id}/state", "PUT", {"state": "KILLED"}):
        assert served.refusal(path, method, content=json.dumps(body), headers=headers)[0] == status

    assert yarn.report(app.application_id).state == "RUNNING"


def test_a_refusal_by_the_host_elsewhere_is_no_exception_of_hadoops(served: Served) -> None:
    assert set(served.ask("//cluster", headers={"Host": "elsewhere:80"}).json()) == {"error"}


@pytest.mark.parametrize("name", ['<b>"x"&', "\x00\x1b[31m", "\ud800", "\u202e\u2028", "é" * 100_000])
def test_hostile_names_are_plain_json(name: str) -> None:
    with Yarn() as yarn, Served(yarn.manager) as served:
        id = yarn.submit(name, user=name)
        served.publish()

        answer = served.ask(f"/apps/{id}")

    app = json.loads(answer.content)["app"]
    assert (app["name"], app["user"]) == (name, name)


def test_pending_and_reserved_resources_are_in_the_metrics() -> None:
    with Yarn(NodeSpec("n1", Resource(100, 1000)), scheduler=QUEUES) as yarn, Served(yarn.manager) as served:
        master = yarn.submit_and_run("app", am_mb=60, queue="a")
        master.allocate(ContainerRequest(Resource(80, 700), tag=1))

        metrics = served.get("/metrics")["clusterMetrics"]

    check_sums(metrics)
    assert metrics["pendingMB"] + metrics["reservedMB"] == 80
    assert metrics["containersPending"] + metrics["containersReserved"] == 1
