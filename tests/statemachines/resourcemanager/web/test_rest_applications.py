"""The endpoints of applications, attempts and containers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from statemachines.resourcemanager import ContainerRequest, Resource
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Yarn
from .served import Served, amount

pytestmark = pytest.mark.long

NODE = NodeSpec("n1", Resource(4096, 4000))
PUBLIC = {
    "id", "user", "name", "queue", "state", "finalStatus", "progress", "trackingUI", "diagnostics", "clusterId",
    "applicationType", "applicationTags", "priority",
}  # fmt: skip
DETAILS = {
    "startedTime", "launchTime", "finishedTime", "elapsedTime", "allocatedMB", "allocatedVCores", "reservedMB",
    "reservedVCores", "runningContainers", "memorySeconds", "vcoreSeconds", "preemptedResourceMB",
    "preemptedResourceVCores", "numNonAMContainerPreempted", "numAMContainerPreempted", "preemptedMemorySeconds",
    "preemptedVcoreSeconds", "queueUsagePercentage", "clusterUsagePercentage", "logAggregationStatus",
    "unmanagedApplication", "appNodeLabelExpression", "amNodeLabelExpression", "timeouts", "resourceSecondsMap",
    "resourceInfo", "resourceRequests",
}  # fmt: skip
OF_MASTER = {"amContainerLogs", "amHostHttpAddress", "masterNodeId"}
IN_USE = ("allocatedMB", "allocatedVCores", "reservedMB", "reservedVCores", "runningContainers")


@pytest.fixture
def yarn() -> Iterator[Yarn]:
    with Yarn(NODE) as yarn:
        yield yarn


@pytest.fixture
def served(yarn: Yarn) -> Iterator[Served]:
    with Served(yarn.manager) as served:
        yield served


def test_an_application_without_a_master_has_no_keys_of_one(yarn: Yarn, served: Served) -> None:
    id = yarn.submit("big", am_mb=99_999, user="ann", queue="default", tags=("a", "b"), application_type="SPARK")

    app = served.get(f"/apps/{id}")["app"]

    assert set(app) == PUBLIC | DETAILS
    assert [each["numContainers"] for each in app["resourceRequests"]] == [1]
    assert (app["id"], app["user"], app["name"], app["queue"]) == (id, "ann", "big", "default")
    assert (app["state"], app["finalStatus"], app["trackingUI"]) == ("ACCEPTED", "UNDEFINED", "UNASSIGNED")
    assert (app["applicationTags"], app["applicationType"], app["diagnostics"]) == ("a,b", "SPARK", "")
    assert app["clusterId"] == served.get("/info")["clusterInfo"]["id"]
    assert [app[key] for key in IN_USE] == [0, 0, 0, 0, 0]


def test_a_running_application_uses_more_with_time(yarn: Yarn, served: Served) -> None:
    master = yarn.submit_and_run("app", am_mb=1024)
    before = served.get(f"/apps/{master.app_id}")["app"]
    yarn.advance(10_000)

    app = served.get(f"/apps/{master.app_id}")["app"]

    assert set(app) == PUBLIC | DETAILS | OF_MASTER | {"trackingUrl", "amRPCAddress"}
    assert (app["state"], app["trackingUI"], app["trackingUrl"]) == ("RUNNING", "ApplicationMaster", "http://host")
    assert [app[key] for key in IN_USE] == [1024, 1, 0, 0, 1]
    assert app["memorySeconds"] - before["memorySeconds"] == 10_240
    assert app["elapsedTime"] - before["elapsedTime"] == 10_000
    assert app["queueUsagePercentage"] == 25.0
    assert (app["masterNodeId"], app["amRPCAddress"]) == ("n1:45454", "host:1234")
    assert app["amContainerLogs"].startswith(f"http://{app['amHostHttpAddress']}/node/containerlogs/container_")


def test_what_an_ended_application_has_is_minus_one(yarn: Yarn, served: Served) -> None:
    master = yarn.submit_and_run("app", am_mb=1024)
    yarn.advance(2_000)
    master.finish_and_exit()
    ended = served.get(f"/apps/{master.app_id}")["app"]
    yarn.advance(5_000)

    app = served.get(f"/apps/{master.app_id}")["app"]

    assert app == ended
    assert (app["state"], app["finalStatus"], app["trackingUI"]) == ("FINISHED", "SUCCEEDED", "History")
    assert [app[key] for key in IN_USE] == [-1, -1, -1, -1, -1]
    assert app["elapsedTime"] == app["finishedTime"] - app["startedTime"] == 2_000
    assert app["memorySeconds"] == 2_048


def test_the_pending_requests_of_an_application(yarn: Yarn, served: Served) -> None:
    """One for any node, and two for a host alone, which Hadoop lists by that host and for any node."""
    master = yarn.submit_and_run("app", am_mb=1024, user="ann")
    anywhere = ContainerRequest(Resource(99_999, 2000), priority=3, host="n1", tag=1)
    only = ContainerRequest(Resource(88_888, 1000), priority=4, host="n1", relax_locality=False, tag=2)
    master.allocate(anywhere, only, only._replace(tag=3))

    requests = served.get(f"/apps/{master.app_id}")["app"]["resourceRequests"]

    shown = [
        (each["priority"], each["resourceName"], each["relaxLocality"], each["numContainers"], each["capability"])
        for each in requests
    ]
    assert shown == [
        (3, "*", True, 1, amount(Resource(99_999, 2000))),
        (4, "n1", False, 2, amount(Resource(88_888, 1000))),
        (4, "*", False, 2, amount(Resource(88_888, 1000))),
    ]
    assert {each["nodeLabelExpression"] for each in requests} == {""}
    assert requests[0]["executionTypeRequest"] == {"executionType": "GUARANTEED", "enforceExecutionType": False}
    assert served.get("/metrics")["clusterMetrics"]["containersPending"] == 3


def test_an_application_killed_before_it_was_tracked_has_its_page_here(yarn: Yarn, served: Served) -> None:
    id = yarn.submit("big", am_mb=99_999)
    yarn.kill(id)

    app = served.get(f"/apps/{id}")["app"]

    assert (app["state"], app["trackingUI"]) == ("KILLED", "History")
    assert app["trackingUrl"] == f"{served.url}/cluster/app/{id}"


def test_parts_of_an_application_have_paths_of_their_own(yarn: Yarn, served: Served) -> None:
    id = yarn.submit("app", am_mb=99_999, priority=3, lifetime_s=3_600)
    unlimited = yarn.submit("other", am_mb=99_999)
    yarn.advance(600_000)

    timeout = served.get(f"/apps/{id}/timeouts/lifetime")

    assert served.get(f"/apps/{id}/state") == {"state": "ACCEPTED"}
    assert served.get(f"/apps/{id}/queue") == {"queue": "default"}
    assert served.get(f"/apps/{id}/priority") == {"priority": 3}
    assert timeout == {
        "timeout": {
            "type": "LIFETIME",
            "expiryTime": "1970-01-01T01:00:00.000+0000",
            "remainingTimeInSeconds": 3_000,
        }
    }
    assert served.get(f"/apps/{id}/timeouts") == {"timeouts": {"timeout": [timeout["timeout"]]}}
    assert served.get(f"/apps/{id}")["app"]["timeouts"] == {"timeout": [timeout["timeout"]]}
    unlimited_timeout = served.get(f"/apps/{unlimited}/timeouts/LIFETIME")["timeout"]
    assert (unlimited_timeout["expiryTime"], unlimited_timeout["remainingTimeInSeconds"]) == ("UNLIMITED", -1)
    assert served.refusal(f"/apps/{id}/timeouts/QUEUE")[0] == 400


def test_attempts_and_live_containers(yarn: Yarn, served: Served) -> None:
    master = yarn.submit_and_run("app", am_mb=1024, user="ann")
    (task,) = master.get_running(ContainerRequest(Resource(512, 1500), tag=1))
    (allocated,) = master.get(ContainerRequest(Resource(256, 1), tag=2, priority=7))
    yarn.advance(1_000)
    path = f"/apps/{master.app_id}/appattempts"

    (listed,) = served.get(path)["appAttempts"]["appAttempt"]
    alone = served.get(f"{path}/{master.attempt}")["appAttempt"]
    containers = served.get(f"{path}/{master.attempt}/containers")["containers"]["container"]

    assert (listed["id"], listed["appAttemptId"], listed["nodeId"]) == (1, master.attempt, "n1:45454")
    assert listed["containerId"] == alone["amContainerId"] == master.container.entity
    assert listed["logsLink"] == f"http://{listed['nodeHttpAddress']}/node/containerlogs/{listed['containerId']}/ann"
    assert (listed["blacklistedNodes"], listed["exportPorts"], listed["finishedTime"]) == ("", "", 0)
    assert (alone["host"], alone["rpcPort"], alone["appAttemptState"]) == ("host", 1234, "RUNNING")
    by_id = {each["containerId"]: each for each in containers}
    assert set(by_id) == {each.entity for each in (master.container, task, allocated)}
    shown = by_id[task.entity]
    assert (shown["allocatedMB"], shown["allocatedVCores"], shown["elapsedTime"]) == (512, 2, 1_000)
    assert (shown["containerState"], shown["containerExitStatus"], shown["finishedTime"]) == ("RUNNING", -1000, 0)
    assert (by_id[allocated.entity]["containerState"], by_id[allocated.entity]["priority"]) == ("NEW", 7)
    assert served.get(f"{path}/{master.attempt}/containers/{task.entity}") == {"container": shown}


def test_an_ended_container_is_unknown(yarn: Yarn, served: Served) -> None:
    master = yarn.submit_and_run()
    (task,) = master.get_running(ContainerRequest(Resource(1, 1), tag=1))
    yarn.end(task)
    served.publish()

    path = f"/apps/{master.app_id}/appattempts/{master.attempt}/containers"
    status, message = served.refusal(f"{path}/{task.entity}")

    assert (status, task.entity in message) == (404, True)
    assert [each["containerId"] for each in served.get(path)["containers"]["container"]] == [master.container.entity]


def test_ids_may_have_fewer_and_more_digits(yarn: Yarn, served: Served) -> None:
    master = yarn.submit_and_run()
    timestamp, number = master.app_id.split("_")[1:]
    short, long = f"application_{timestamp}_{int(number)}", f"application_{timestamp}_000{number}"
    attempt = f"appattempt_{timestamp}_{int(number)}_1"
    container = f"container_{timestamp}_{int(number)}_1_1"

    shown = [served.get(f"/apps/{id}")["app"]["id"] for id in (short, long)]

    assert shown == [master.app_id] * 2
    assert served.get(f"/apps/{short}/appattempts/{attempt}")["appAttempt"]["appAttemptId"] == master.attempt
    found = served.get(f"/apps/{short}/appattempts/{attempt}/containers/{container}")["container"]
    assert found["containerId"] == master.container.entity


def test_ids_that_do_not_belong_together_are_unknown(yarn: Yarn, served: Served) -> None:
    first, second = yarn.submit_and_run("first"), yarn.submit_and_run("second")
    served.publish()
    path = f"/apps/{first.app_id}/appattempts"

    assert served.refusal(f"{path}/{second.attempt}")[0] == 404
    assert served.refusal(f"{path}/{second.attempt}/containers")[0] == 404
    assert served.refusal(f"{path}/{first.attempt}/containers/{second.container.entity}")[0] == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/apps/application_1_9999", 404),
        ("/apps/application_1", 400),
        ("/apps/application_x_1/state", 400),
        ("/apps/..%5Capp", 400),
        ("/apps/application_1_99999999999999999999999999/queue", 400),
        ("/apps/application_%D9%A1_1/priority", 400),
        ("/apps/application_1_9999/timeouts", 404),
        ("/apps/application_1_9999/appattempts", 404),
        ("/apps/application_1_9999/appattempts/attempt_1", 400),
        ("/apps/application_1_9999/appattempts/appattempt_1_9999_000001/containers/container_1", 404),
    ],
)
def test_ids_that_are_none_and_ids_that_are_unknown(served: Served, path: str, status: int) -> None:
    served.publish()

    assert served.refusal(path)[0] == status


def test_container_ids_are_checked(yarn: Yarn, served: Served) -> None:
    master = yarn.submit_and_run()
    served.publish()

    assert served.refusal(f"/apps/{master.app_id}/appattempts/{master.attempt}/containers/container_1")[0] == 400


def test_statistics_count_by_state_and_type(yarn: Yarn, served: Served) -> None:
    for kind in ("SPARK", "SPARK", "TEZ"):
        yarn.submit("app", am_mb=99_999, application_type=kind)
    yarn.kill(yarn.submit("app", am_mb=99_999))

    every = served.get("/appstatistics")["appStatInfo"]["statItem"]
    some = served.get("/appstatistics", states="accepted,Running", applicationTypes="Spark")["appStatInfo"]["statItem"]

    assert [each["state"] for each in every] == [
        "NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED",
    ]  # fmt: skip
    assert {each["state"]: each["count"] for each in every if each["count"]} == {"ACCEPTED": 3, "KILLED": 1}
    assert {each["type"] for each in every} == {"*"}
    assert some == [
        {"state": "ACCEPTED", "type": "spark", "count": 2},
        {"state": "RUNNING", "type": "spark", "count": 0},
    ]
    assert served.refusal("/appstatistics?applicationTypes=a,b")[0] == 400
    assert served.refusal("/appstatistics?states=none")[0] == 400


def test_without_the_right_to_view_an_application_its_details_are_left_out() -> None:
    with Yarn(NODE, scheduler={"kind": "fifo", "acl_administer_queue": "boss"}) as yarn, Served(yarn.manager) as served:
        master = yarn.submit_and_run("app", user="ann")
        path = f"/apps/{master.app_id}"

        stranger, owner, boss = (served.get(path, **{"user.name": user})["app"] for user in ("eve", "ann", "boss"))
        (listed,) = served.get("/apps", **{"user.name": "eve"})["apps"]["app"]

        assert set(stranger) == set(listed) == PUBLIC | {"trackingUrl"}
        assert owner == boss
        assert set(owner) > PUBLIC | DETAILS
        for more in ("appattempts", f"appattempts/{master.attempt}", f"appattempts/{master.attempt}/containers"):
            assert served.refusal(f"{path}/{more}?user.name=eve")[0] == 403
            assert served.ask(f"{path}/{more}?user.name=ann").status_code == 200


def test_the_default_user_has_the_rights_of_that_user() -> None:
    with (
        Yarn(NODE, scheduler={"kind": "fifo", "acl_administer_queue": " "}) as yarn,
        Served(yarn.manager, static_user="ann") as served,
    ):
        master = yarn.submit_and_run("app", user="ann")

        assert "startedTime" in served.get(f"/apps/{master.app_id}")["app"]
