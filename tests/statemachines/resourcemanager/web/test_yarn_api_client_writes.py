"""yarn-api-client of PyPI, unmodified: its methods that change something, and its SimpleAuth."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

client = pytest.importorskip("yarn_api_client", reason="yarn-api-client is not installed")

from yarn_api_client.auth import SimpleAuth  # noqa: E402
from yarn_api_client.errors import APIError  # noqa: E402

from .front import NODE, NODE_ID, Front, front, submission, until  # noqa: E402

QUEUES = {"kind": "capacity", "queues": [{"name": "default", "capacity": 60}, {"name": "other", "capacity": 40}]}
FAR = "2099-12-31T22:51:00.104+0530"

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]
"""The client leaves the sessions open that it makes for a moment."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Front]:
    with front(NODE, scheduler={**QUEUES, "maximum_allocation_wait_ms": 0}) as made:
        yield made


@pytest.fixture
def rm(cluster: Front) -> Iterator[Any]:
    made = client.ResourceManager([cluster.door.url], auth=SimpleAuth("alice"))
    yield made
    made.session.close()


@pytest.fixture
def waiting(rm: Any) -> str:
    """An application that waits until it is killed: its master registers by itself, and never does."""
    app_id = rm.cluster_new_application().data["application-id"]
    rm.cluster_submit_application({**submission(app_id), "unmanaged-AM": True})
    until(lambda: rm.cluster_application_state(app_id).data["state"] == "ACCEPTED", "it waits")
    return str(app_id)


def test_an_application_goes_from_its_id_to_its_end(rm: Any) -> None:
    new = rm.cluster_new_application().data
    app_id = new["application-id"]
    submitted = rm.cluster_submit_application(
        {
            "application-id": app_id,
            "application-name": "test",
            "am-container-spec": {"commands": {"command": "run"}},
            "resource": {"memory": 1024, "vCores": 1},
            "max-app-attempts": 2,
            "application-type": "YARN",
        }
    )
    until(lambda: rm.cluster_application_state(app_id).data["state"] == "FINISHED", "it has ended")
    app = rm.cluster_application(app_id).data["app"]
    [attempt] = rm.cluster_application_attempts(app_id).data["appAttempts"]["appAttempt"]

    assert new["maximum-resource-capability"]["memory"] == NODE.capacity.memory_mb
    assert submitted.data == {}
    assert (app["user"], app["name"], app["finalStatus"]) == ("alice", "test", "SUCCEEDED")
    assert attempt["containerId"].split("_")[1:3] == app_id.split("_")[1:3]
    assert app["startedTime"] <= attempt["startTime"] <= app["finishedTime"]


def test_a_kill_is_done_or_begun_and_then_done(cluster: Front, rm: Any, waiting: str) -> None:
    with cluster.hanging():
        begun = rm.cluster_application_kill(waiting).data
    until(lambda: rm.cluster_application_state(waiting).data["state"] == "KILLED", "it is killed")
    done = rm.cluster_application_kill(waiting).data

    assert (begun, done) == ({"state": "ACCEPTED"}, {"state": "KILLED"})
    assert rm.cluster_application(waiting).data["app"]["finalStatus"] == "KILLED"


@pytest.mark.usefixtures("patient_kills")
def test_what_is_written_is_read_next(rm: Any, waiting: str) -> None:
    rm.cluster_change_application_queue(waiting, "other")
    rm.cluster_change_application_priority(waiting, 7)
    changed = rm.cluster_update_application_timeout(waiting, "LIFETIME", FAR).data

    assert rm.cluster_get_application_queue(waiting).data == {"queue": "other"}
    assert rm.cluster_get_application_priority(waiting).data == {"priority": 7}
    read = rm.cluster_application_timeout(waiting, "LIFETIME").data
    assert changed["timeout"]["expiryTime"] == read["timeout"]["expiryTime"]
    assert rm.cluster_application_kill(waiting).data == {"state": "KILLED"}


def test_a_node_is_resized(rm: Any) -> None:
    size = {"resource": {"memory": 4096, "vCores": 3}, "overCommitTimeout": -1}

    total = rm.cluster_node_update_resource(NODE_ID, size).data["resourceInfo"]

    assert (total["memory"], total["vCores"]) == (4096, 3)
    assert rm.cluster_node(NODE_ID).data["node"]["availableVirtualCores"] <= 3


APP = "application_1_0001"
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "cluster_application_kill": ((APP,), "404"),
    "cluster_submit_application": (({"application-id": "x"},), "400"),
    "cluster_node_update_resource": (("n9:1", {}), "400"),
    "cluster_change_application_queue": ((APP, "q"), "404"),
    "cluster_change_application_priority": ((APP, "high"), "400"),
    "cluster_update_application_timeout": ((APP, "LIFETIME", FAR), "404"),
    "cluster_container_signal": (("container_1_0001_01_000001", "GRACEFUL_SHUTDOWN"), "not offered"),
    "cluster_new_reservation": ((), "not offered"),
    "cluster_submit_reservation": (({},), "not offered"),
    "cluster_update_reservation": (({},), "not offered"),
    "cluster_delete_reservation": (("reservation_1_1",), "not offered"),
    "cluster_new_delegation_token": (("alice",), "not offered"),
    "cluster_modify_scheduler_conf_mutation": (
        ({"remove-queue": "root.default"},),
        "cannot be removed while it runs",
    ),
}


@pytest.mark.parametrize("method", REFUSED)
def test_a_refusal_is_an_api_error_with_its_reason(rm: Any, method: str) -> None:
    given, reason = REFUSED[method]

    with pytest.raises(APIError, match=reason):
        getattr(rm, method)(*given)


def test_every_method_that_writes_is_tested() -> None:
    """Except for two that fail within the client, before any request, and the one that the first test calls."""
    found = set()
    for name, function in inspect.getmembers(client.ResourceManager, inspect.isfunction):
        source = inspect.getsource(function)
        if any(f"'{verb}'" in source for verb in ("POST", "PUT", "DELETE")):
            found.add(name)

    not_sent = {"cluster_renew_delegation_token", "cluster_cancel_delegation_token"}
    assert found - not_sent == REFUSED.keys() | {"cluster_new_application"}


def test_other_users_of_the_client_are_kept_apart(cluster: Front, rm: Any) -> None:
    bob = client.ResourceManager([cluster.door.url], auth=SimpleAuth("bob"))
    owners = []
    for each in (rm, bob, rm):
        app_id = each.cluster_new_application().data["application-id"]
        each.cluster_submit_application(submission(app_id))
        owners.append(each.cluster_application(app_id).data["app"]["user"])
    bob.session.close()

    assert owners == ["alice", "bob", "alice"]
