"""yarn-api-client of PyPI, unmodified: what its methods that read get, and its command."""

from __future__ import annotations

import ast
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

client = pytest.importorskip("yarn_api_client", reason="yarn-api-client is not installed")

from yarn_api_client import main as command  # noqa: E402

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


APP, ATTEMPT = "/apps/{app}", "/apps/{app}/appattempts/{attempt}"
METHODS: dict[str, tuple[str, str]] = {
    "cluster_information": ("", "/info"),
    "cluster_metrics": ("", "/metrics"),
    "cluster_scheduler": ("", "/scheduler"),
    "cluster_applications": ("", "/apps"),
    "cluster_application_statistics": ("", "/appstatistics"),
    "cluster_application": ("app", APP),
    "cluster_application_attempts": ("app", f"{APP}/appattempts"),
    "cluster_application_attempt_info": ("app attempt", ATTEMPT),
    "cluster_application_attempt_containers": ("app attempt", f"{ATTEMPT}/containers"),
    "cluster_application_attempt_container_info": ("app attempt task", f"{ATTEMPT}/containers/{{task}}"),
    "cluster_nodes": ("", "/nodes"),
    "cluster_node": ("node", "/nodes/{node}"),
    "cluster_application_timeouts": ("app", f"{APP}/timeouts"),
    "cluster_application_timeout": ("app type", f"{APP}/timeouts/{{type}}"),
    "cluster_application_state": ("app", f"{APP}/state"),
    "cluster_get_application_queue": ("app", f"{APP}/queue"),
    "cluster_get_application_priority": ("app", f"{APP}/priority"),
}
"""What each method is given, and what it asks for."""
FILTERED: dict[str, tuple[dict[str, list[str]], str]] = {
    "cluster_applications": ({"states": ["RUNNING"]}, "/apps?states=RUNNING"),
    "cluster_nodes": ({"states": ["RUNNING"]}, "/nodes?states=RUNNING"),
    "cluster_application_statistics": (
        {"states": ["RUNNING"], "application_types": ["YARN"]},
        "/appstatistics?states=RUNNING&applicationTypes=YARN",
    ),
}


def test_the_configuration_of_the_scheduler_is_a_list_of_properties(rm: Any, master: Master) -> None:
    properties = rm.cluster_scheduler_conf_mutation().data["property"]

    assert {"name": "yarn.scheduler.capacity.root.queues", "value": "default"} in properties


@pytest.mark.parametrize("method", METHODS)
def test_each_method_gets_what_its_path_answers(rm: Any, served: Served, master: Master, method: str) -> None:
    assert master.container is not None
    names = {"app": master.app_id, "attempt": master.attempt, "task": master.container.entity}
    names |= {"node": NODE_ID, "type": "LIFETIME"}
    given, path = METHODS[method]

    data = getattr(rm, method)(*(names[each] for each in given.split())).data

    assert data == served.ask(path.format(**names)).json()
    assert "RemoteException" not in data


@pytest.mark.parametrize("method", FILTERED)
def test_a_method_asks_for_what_it_is_to_filter_by(rm: Any, served: Served, method: str) -> None:
    wanted, path = FILTERED[method]

    assert getattr(rm, method)(**wanted).data == served.ask(path).json()


def test_all_filters_of_the_client_at_once(rm: Any, master: Master) -> None:
    wanted = {
        "state": "RUNNING", "states": ["RUNNING", "FINISHED"], "final_status": "UNDEFINED", "user": "ann",
        "queue": "default", "limit": 1, "started_time_begin": 0, "started_time_end": 10**13, "finished_time_begin": 0,
        "finished_time_end": 10**13, "application_types": ["YARN", "SPARK"], "name": "app", "de_selects": ["timeouts"],
    }  # fmt: skip

    (app,) = rm.cluster_applications(**wanted).data["apps"]["app"]
    none = rm.cluster_applications(**{**wanted, "application_tags": ["x"]}).data

    assert (app["id"], "timeouts" in app, none) == (master.app_id, False, {"apps": {"app": []}})


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
