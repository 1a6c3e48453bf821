"""Changes of queues and nodes by REST: YARN's /scheduler-conf, hosts and labels, and /changes, which lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ..stores import refuse_changes_of_nodes
from .front import BASE, NODE, NODE_ID, Front, front, message

QUEUES: list[dict[str, Any]] = [
    {"name": "a", "capacity": 60, "accessible_node_labels": {"gpu": {"capacity": 100}}},
    {"name": "b", "capacity": 40, "queues": [{"name": "c", "maximum_am_resource_percent": 50}]},
]
CAPACITY: dict[str, Any] = {"kind": "capacity", "queues": QUEUES}


def entries(**values: Any) -> dict[str, Any]:
    return {"entry": [{"key": key.replace("_", "-"), "value": value} for key, value in values.items()]}


def changed(made: Front) -> list[tuple[Any, ...]]:
    found = made.get("/changes").json()["changes"]
    queues = [(each["queue"], each["key"], each["value"], each["configured"], each["user"]) for each in found["queue"]]
    return queues + [(each["node"], each["key"], each["user"]) for each in found["node"]]


def properties(made: Front) -> dict[str, str]:
    found = made.get("/scheduler-conf").json()["property"]
    return {each["name"].removeprefix("yarn.scheduler.capacity."): each["value"] for each in found}


def test_a_share_with_many_digits_is_listed_in_full() -> None:
    """It was cut to six digits, and a client that wrote back what it had read changed the queue."""
    with front(scheduler=CAPACITY) as made:
        values = entries(maximum_capacity=80.1234567, maximum_am_resource_percent=0.123456789)
        made.put("/scheduler-conf", {"update-queue": {"queue-name": "root.a", "params": values}})
        found = properties(made)

    assert found["root.a.maximum-capacity"] == "80.1234567"
    assert found["root.a.maximum-am-resource-percent"] == "0.123456789"


def test_queues_are_changed_added_and_removed_as_with_yarn() -> None:
    with front(scheduler=CAPACITY) as made:
        before = properties(made)
        first = made.put(
            "/scheduler-conf",
            {
                "update-queue": [
                    {"queue-name": "root.a", "params": entries(capacity="50", maximum_capacity="80.5")},
                    {"queue-name": "root.b.c", "params": entries(maximum_am_resource_percent="0.3")},
                ],
                "add-queue": {"queue-name": "root.d", "params": entries(capacity=10, state="STOPPED")},
                "global-updates": [entries(maximum_applications="77")],
            },
            params={"user.name": "ann"},
        )
        after, listed = properties(made), changed(made)
        shown = made.get("/scheduler").json()["scheduler"]["schedulerInfo"]["queues"]["queue"]
        second = made.put(
            "/scheduler-conf",
            {
                "update-queue": {"queue-name": "root.a", "params": entries(capacity=None)},
                "remove-queue": "root.d",
            },
        )
        rest = changed(made)
        third = made.http.delete("/ws/v1/cluster/scheduler-conf")
        given_up = changed(made), properties(made)

    assert (first.status_code, second.status_code, third.status_code) == (200, 200, 200), first.text
    assert before["root.queues"] == "a,b"
    assert before["root.b.c.maximum-am-resource-percent"] == "0.5"
    assert before["root.a.accessible-node-labels.gpu.capacity"] == "100"
    assert (
        dict(after.items() - before.items()).items()
        >= {
            "root.queues": "a,b,d",
            "root.a.capacity": "50",
            "root.a.maximum-capacity": "80.5",
            "root.b.c.maximum-am-resource-percent": "0.3",
            "root.d.state": "STOPPED",
            "maximum-applications": "77",
        }.items()
    )
    assert listed == [
        ("root", "maximum_applications", 77, 10_000, "ann"),
        ("root.a", "capacity", 50, 60, "ann"),
        ("root.a", "maximum_capacity", 80.5, 100, "ann"),
        ("root.b.c", "maximum_am_resource_percent", 30, 50, "ann"),
        ("root.d", "capacity", 10, None, "ann"),
        ("root.d", "queue", "added", None, "ann"),
        ("root.d", "state", "STOPPED", None, "ann"),
    ]
    assert [(each["queueName"], each["capacity"], each["state"]) for each in shown] == [
        ("a", 50.0, "RUNNING"),
        ("b", 40.0, "RUNNING"),
        ("d", 10.0, "STOPPED"),
    ]
    assert [each[:2] for each in rest] == [
        ("root", "maximum_applications"),
        ("root.a", "maximum_capacity"),
        ("root.b.c", "maximum_am_resource_percent"),
    ]
    assert given_up == ([], before)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "the request changes nothing"),
        ({"update-queue": 7}, "update-queue: is a number; expected a list of objects"),
        ({"update-queue": [7]}, "update-queue[0]: is a number; expected an object"),
        ({"update-queue": {"params": entries(capacity=1)}}, "update-queue.queue-name: is missing"),
        ({"update-queue": {"queue-name": "root.a", "params": entries(capacity=[])}}, "expected a text, a number"),
        ({"update-queue": {"queue-name": "root.a", "params": entries(capacity=50)}}, "capacities add up to 90"),
        ({"update-queue": [{"queue-name": "root.a", "params": entries(capacity=60)}] * 2}, "is there twice"),
        ({"global-updates": entries(resource_calculator="x")}, "queue root, resource-calculator: cannot be changed"),
        ({"global-updates": [{"entry": 5}]}, "global-updates[0].entry: is a number; expected a list"),
        (
            {"update-queue": {"queue-name": "root.b.c", "params": entries(maximum_am_resource_percent="half")}},
            "expected a share from 0 to 1",
        ),
        (
            {"update-queue": {"queue-name": "root.b.c", "params": entries(maximum_am_resource_percent=True)}},
            "maximum_am_resource_percent: True is not allowed",
        ),
    ],
)
def test_wrong_change_of_queues_is_400_names_the_thing_and_changes_nothing(
    queues: Front, body: dict[str, Any], problem: str
) -> None:
    before = properties(queues)

    answer = queues.put("/scheduler-conf", body)

    assert (answer.status_code, problem in message(answer)) == (400, True), answer.text
    assert (changed(queues), properties(queues)) == ([], before)


@pytest.fixture(scope="module")
def queues() -> Any:
    with front(scheduler=CAPACITY) as made:
        yield made


def test_queues_of_the_fifo_scheduler_cannot_be_changed() -> None:
    with front() as made:
        body = {"update-queue": {"queue-name": "root.default", "params": entries(state="STOPPED")}}
        answer = made.put("/scheduler-conf", body)
        found = properties(made)

    assert (answer.status_code, "FIFO" in message(answer)) == (400, True)
    assert found["root.queues"] == "default"


def test_hosts_and_labels_are_changed_and_changes_of_a_node_are_given_up() -> None:
    ann = {"params": {"user.name": "ann"}}
    with front(NODE) as made:
        label = made.post(f"/nodes/{NODE_ID}/replace-labels", params={"user.name": "ann", "labels": "gpu"})
        size = made.post(f"/nodes/{NODE_ID}/resource", {"resource": {"memory": 1024, "vCores": 1}}, **ann)
        resized = made.get("/changes").json()["changes"]["node"]
        back = [
            made.http.delete(f"/ws/v1/cluster/nodes/{NODE_ID}/changes/{key}").status_code
            for key in ("label", "capacity")
        ]
        [node] = made.manager.clients.get_cluster_nodes()
        out = made.post("/hosts/decommission", {"hosts": ["n1", "n2"], "graceful": True, "timeout": 5}, **ann)
        included = made.put("/hosts/included", {"hosts": ["n3"]}, **ann)
        listed = changed(made)
        readmitted = made.post("/hosts/recommission", {"hosts": "n1"}, **ann)
        everyone = made.put("/hosts/included", {"hosts": []}, **ann)
        rest = changed(made)
        wrong = [
            made.post("/hosts/decommission", {}),
            made.post("/hosts/decommission", {"hosts": ["n1:45454"]}),
            made.post("/hosts/decommission", {"hosts": ["n9"], "timeout": 5}),
            made.post("/hosts/recommission", {"hosts": ["nosuch"]}),
            made.post(f"/nodes/{NODE_ID}/replace-labels", params={"labels": "a,b"}),
            made.post("/nodes/n9:1/replace-labels", params={"labels": "a"}),
            made.http.delete(f"/ws/v1/cluster/nodes/{NODE_ID}/changes/label"),
            made.http.delete(f"/ws/v1/cluster/nodes/{NODE_ID}/changes/rack"),
        ]

    assert [each.status_code for each in (label, size, out, included, readmitted, everyone)] == [200] * 6
    assert [(each["key"], each["user"]) for each in resized] == [("capacity", "ann"), ("label", "ann")]
    assert [each["configured"] for each in resized][1] == ""
    assert (resized[0]["value"]["memory"], resized[0]["configured"]["memory"]) == (1024, 4096)
    assert (back, node.capacity.memory_mb, node.partition) == ([200, 200], 4096, "")
    assert listed == [("", "included", "ann"), ("n1", "decommissioned", "ann"), ("n2", "decommissioned", "ann")]
    assert rest == [("n2", "decommissioned", "ann")]
    assert [each.status_code for each in wrong] == [400, 400, 400, 404, 400, 404, 400, 400]
    assert all("RemoteException" in each.json() for each in wrong)


STOPPED: dict[str, Any] = {"update-queue": {"queue-name": "root.a", "params": entries(state="STOPPED")}}
NOT_STORED: dict[str, tuple[tuple[str, str, dict[str, Any]], str]] = {
    "queue_changes": (("PUT", "/scheduler-conf", STOPPED), "the change of queues holds only until"),
    "node_capacities": (
        ("POST", f"/nodes/{NODE_ID}/resource", {"resource": {"memory": 2048, "vCores": 2}}),
        "could not be stored: database or disk is full",
    ),
}


@pytest.mark.parametrize("table", NOT_STORED)
def test_change_that_cannot_be_stored_is_answered_with_503(tmp_path: Path, table: str) -> None:
    refuse_changes_of_nodes(tmp_path / "state.db", table)
    store = {"kind": "sqlite", "path": tmp_path / "state.db"}
    (method, path, body), said = NOT_STORED[table]
    with front(NODE, scheduler=CAPACITY, state_store=store) as made:
        answer = made.http.request(method, BASE + path, json=body)

    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert said in message(answer)


def test_changes_of_queues_and_hosts_have_audit_lines_and_those_denied_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="dispatcher.audit")
    with front(scheduler=CAPACITY, admin_acl="dr.who") as made:
        made.put("/scheduler-conf", STOPPED)
        made.http.delete(f"{BASE}/scheduler-conf")
        made.put("/scheduler-conf", {})
        made.post("/hosts/decommission", {"hosts": ["n1"]})
        for method, path, body in (("PUT", "/scheduler-conf", STOPPED), ("POST", "/hosts/decommission", {"hosts": []})):
            denied = made.http.request(method, BASE + path, json=body, params={"user.name": "bob"})
            assert denied.status_code == 403

    lines = [record.getMessage() for record in caplog.records if record.name == "dispatcher.audit"]
    said = [re.findall(r"\b(?:USER|OPERATION|RESULT)=([^\t]+)", line) for line in lines]
    queues, hosts = "updateSchedulerConfiguration", "refreshNodes"
    assert said == [
        ["dr.who", queues, "SUCCESS"],
        ["dr.who", queues, "SUCCESS"],
        ["dr.who", queues, "FAILURE"],
        ["dr.who", hosts, "SUCCESS"],
        ["bob", queues, "FAILURE"],
        ["bob", hosts, "FAILURE"],
    ]
