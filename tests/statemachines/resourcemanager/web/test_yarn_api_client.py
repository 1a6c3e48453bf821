"""yarn-api-client of PyPI, unmodified: what its methods that read get, and its command."""

from __future__ import annotations

import ast
import socket
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

client = pytest.importorskip("yarn_api_client", reason="yarn-api-client is not installed")

from yarn_api_client import main as command  # noqa: E402
from yarn_api_client.errors import APIError  # noqa: E402

from statemachines.resourcemanager import ContainerRequest, Resource  # noqa: E402
from statemachines.simulation.workload import NodeSpec  # noqa: E402

from ..daemon.yarn_cluster import Master, Yarn  # noqa: E402
from .served import Served  # noqa: E402

pytestmark = pytest.mark.long

NODE = NodeSpec("n1", Resource(4096, 4000))
NODE_ID = "n1:45454"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Served, Master]]:
    with Yarn(NODE) as yarn:
        master = yarn.submit_and_run("app", am_mb=1024, user="ann")
        master.get_running(ContainerRequest(Resource(1, 1), tag=1))
        with Served(yarn.manager) as served:
            served.publish()
            yield served, master


@pytest.fixture
def served(cluster: tuple[Served, Master]) -> Served:
    return cluster[0]


@pytest.fixture
def master(cluster: tuple[Served, Master]) -> Master:
    return cluster[1]


@pytest.fixture
def rm(served: Served) -> Any:
    return client.ResourceManager([served.url])


def _task(master: Master) -> str:
    assert master.container is not None
    return master.container.entity


Call = Callable[[Any, Master], Any]
APP, ATTEMPT = "/apps/{app}", "/apps/{app}/appattempts/{attempt}"
METHODS: dict[str, tuple[Call, str]] = {
    "cluster_information": (lambda rm, _: rm.cluster_information(), "/info"),
    "cluster_metrics": (lambda rm, _: rm.cluster_metrics(), "/metrics"),
    "cluster_scheduler": (lambda rm, _: rm.cluster_scheduler(), "/scheduler"),
    "cluster_applications": (lambda rm, _: rm.cluster_applications(states=["RUNNING"]), "/apps?states=RUNNING"),
    "cluster_application_statistics": (
        lambda rm, _: rm.cluster_application_statistics(states=["RUNNING"], application_types=["YARN"]),
        "/appstatistics?states=RUNNING&applicationTypes=YARN",
    ),
    "cluster_application": (lambda rm, master: rm.cluster_application(master.app_id), APP),
    "cluster_application_attempts": (
        lambda rm, master: rm.cluster_application_attempts(master.app_id),
        f"{APP}/appattempts",
    ),
    "cluster_application_attempt_info": (
        lambda rm, master: rm.cluster_application_attempt_info(master.app_id, master.attempt),
        ATTEMPT,
    ),
    "cluster_application_attempt_containers": (
        lambda rm, master: rm.cluster_application_attempt_containers(master.app_id, master.attempt),
        f"{ATTEMPT}/containers",
    ),
    "cluster_application_attempt_container_info": (
        lambda rm, master: rm.cluster_application_attempt_container_info(master.app_id, master.attempt, _task(master)),
        f"{ATTEMPT}/containers/{{task}}",
    ),
    "cluster_nodes": (lambda rm, _: rm.cluster_nodes(states=["RUNNING"]), "/nodes?states=RUNNING"),
    "cluster_node": (lambda rm, _: rm.cluster_node(NODE_ID), f"/nodes/{NODE_ID}"),
    "cluster_application_timeouts": (
        lambda rm, master: rm.cluster_application_timeouts(master.app_id),
        f"{APP}/timeouts",
    ),
    "cluster_application_timeout": (
        lambda rm, master: rm.cluster_application_timeout(master.app_id, "LIFETIME"),
        f"{APP}/timeouts/LIFETIME",
    ),
    "cluster_application_state": (lambda rm, m: rm.cluster_application_state(m.app_id), f"{APP}/state"),
    "cluster_get_application_queue": (lambda rm, m: rm.cluster_get_application_queue(m.app_id), f"{APP}/queue"),
    "cluster_get_application_priority": (
        lambda rm, m: rm.cluster_get_application_priority(m.app_id),
        f"{APP}/priority",
    ),
}
"""What each method asks for."""
NOT_OFFERED: dict[str, Call] = {
    "cluster_reservations": lambda rm, _: rm.cluster_reservations(queue="default"),
    "scheduler_activities": lambda rm, _: rm.scheduler_activities(),
    "application_activities": lambda rm, master: rm.application_activities(master.app_id),
    "cluster_container_signal": lambda rm, m: rm.cluster_container_signal(_task(m), "GRACEFUL_SHUTDOWN"),
    "cluster_new_reservation": lambda rm, _: rm.cluster_new_reservation(),
    "cluster_submit_reservation": lambda rm, _: rm.cluster_submit_reservation({}),
    "cluster_update_reservation": lambda rm, _: rm.cluster_update_reservation({}),
    "cluster_delete_reservation": lambda rm, _: rm.cluster_delete_reservation("r"),
    "cluster_new_delegation_token": lambda rm, _: rm.cluster_new_delegation_token("ann"),
}


def test_the_configuration_of_the_scheduler_is_a_list_of_properties(rm: Any, master: Master) -> None:
    properties = rm.cluster_scheduler_conf_mutation().data["property"]

    assert {"name": "yarn.scheduler.capacity.root.queues", "value": "default"} in properties


@pytest.mark.parametrize("method", METHODS)
def test_each_method_gets_what_its_path_answers(rm: Any, served: Served, master: Master, method: str) -> None:
    call, path = METHODS[method]

    data = call(rm, master).data

    assert data == served.ask(path.format(app=master.app_id, attempt=master.attempt, task=_task(master))).json()
    assert "RemoteException" not in data


@pytest.mark.parametrize("method", NOT_OFFERED)
def test_what_is_not_offered_is_an_api_error(rm: Any, master: Master, method: str) -> None:
    with pytest.raises(APIError, match=r"404.*not offered by this ResourceManager"):
        NOT_OFFERED[method](rm, master)


def test_the_lists_have_what_the_single_ones_have(rm: Any, master: Master) -> None:
    (app,) = rm.cluster_applications(states=["RUNNING"], user="ann", limit=5).data["apps"]["app"]
    containers = rm.cluster_application_attempt_containers(master.app_id, master.attempt).data["containers"]
    (node,) = rm.cluster_nodes().data["nodes"]["node"]
    (attempt,) = rm.cluster_application_attempts(master.app_id).data["appAttempts"]["appAttempt"]

    assert app == rm.cluster_application(master.app_id).data["app"]
    assert node == rm.cluster_node(NODE_ID).data["node"]
    assert len(containers["container"]) == 2
    assert set(attempt) == {
        "id", "appAttemptId", "startTime", "finishedTime", "containerId", "nodeHttpAddress", "nodeId", "logsLink",
        "blacklistedNodes", "nodesBlacklistedBySystem", "exportPorts", "appAttemptState",
    }  # fmt: skip


def test_all_filters_of_the_client_at_once(rm: Any, master: Master) -> None:
    wanted = {
        "state": "RUNNING", "states": ["RUNNING", "FINISHED"], "final_status": "UNDEFINED", "user": "ann",
        "queue": "default", "limit": 1, "started_time_begin": 0, "started_time_end": 10**13, "finished_time_begin": 0,
        "finished_time_end": 10**13, "application_types": ["YARN", "SPARK"], "name": "app", "de_selects": ["timeouts"],
    }  # fmt: skip

    (app,) = rm.cluster_applications(**wanted).data["apps"]["app"]
    none = rm.cluster_applications(**{**wanted, "application_tags": ["x"]}).data

    assert (app["id"], "timeouts" in app, none) == (master.app_id, False, {"apps": {"app": []}})


def test_the_helpers_for_queues(rm: Any) -> None:
    queue = rm.cluster_scheduler_queue("default")
    partition = rm.cluster_queue_partition(queue, "")

    assert queue["queueName"] == "default"
    assert partition["absoluteUsedCapacity"] == pytest.approx(100 * 1025 / 4096)
    assert rm.cluster_scheduler_queue_availability(partition, 90) is True
    assert rm.cluster_scheduler_queue_availability(partition, 10) is False
    assert rm.cluster_scheduler_queue("nothing") is None


def test_errors_are_api_errors(rm: Any) -> None:
    with pytest.raises(APIError, match=r"404.*application_1_0001 not found"):
        rm.cluster_application("application_1_0001")
    with pytest.raises(APIError, match=r"400.*states"):
        rm.cluster_nodes(states=["ACCEPTED"])


def test_an_endpoint_may_end_in_a_slash(served: Served) -> None:
    rm = client.ResourceManager([f"{served.url}/"])

    assert rm.cluster_information().data["clusterInfo"]["state"] == "STARTED"


class _Standby(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_of_two_endpoints_the_one_that_is_active_is_taken(served: Served) -> None:
    with socket.socket() as unused, HTTPServer(("127.0.0.1", 0), _Standby) as standby:
        unused.bind(("127.0.0.1", 0))  # nobody listens
        thread = Thread(target=standby.serve_forever)
        thread.start()
        try:
            for other in (unused.getsockname()[1], standby.server_port):
                rm = client.ResourceManager([f"http://127.0.0.1:{other}", served.url])

                assert rm.get_active_endpoint() == served.url
                assert rm.cluster_metrics().data["clusterMetrics"]["activeNodes"] == 1
        finally:
            standby.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("arguments", "wrapper"),
    [
        (["info"], "clusterInfo"),
        (["metrics"], "clusterMetrics"),
        (["scheduler"], "scheduler"),
        (["apps"], "apps"),
        (["apps", "--state", "RUNNING", "--user", "ann", "--limit", "1", "--final-status", "UNDEFINED"], "apps"),
        (["app", "APP"], "app"),
        (["app_attempts", "APP"], "appAttempts"),
        (["nodes"], "nodes"),
        (["nodes", "--state", "RUNNING", "--healthy", "true"], "nodes"),
        (["node", NODE_ID], "node"),
    ],
)
def test_its_command(
    served: Served,
    master: Master,
    arguments: list[str],
    wrapper: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [master.app_id if each == "APP" else each for each in arguments]
    monkeypatch.setattr(sys, "argv", ["yarn_client", "--endpoint", served.url, "rm", *given])

    command.main()

    assert list(ast.literal_eval(capsys.readouterr().out)) == [wrapper]
