"""The resource manager's door: what a client gets over TCP, and what `dispatcher run` prints of it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from statemachines.resourcemanager import ResourceManager, ResourceManagerConfig
from statemachines.resourcemanager.web import RMDoor

from ....kit import until
from ...simulation.replays import TIMEOUT_S
from .front import Front, front

pytestmark = pytest.mark.long

NO_METRICS_PORT = {"enabled": False}


def manager(**web: object) -> ResourceManager:
    settings = {"metrics": NO_METRICS_PORT, "web": {"port": 0, "unix_socket": False, "refresh_ms": 10, **web}}
    return ResourceManager(ResourceManagerConfig.model_validate(settings))


@pytest.fixture
def made() -> Iterator[Front]:
    with front() as made:
        yield made


def get(door: RMDoor, path: str, **more: object) -> httpx.Response:
    return httpx.get(f"{door.url}{path}", timeout=TIMEOUT_S, **more)


@pytest.mark.parametrize("path", ["/ws/v1/cluster", "/ws/v1/cluster/", "/ws/v1/cluster/info", "//ws/v1/cluster/info"])
def test_info_describes_the_resource_manager(made: Front, path: str) -> None:
    answer = get(made.door, path)

    info = answer.json()["clusterInfo"]
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert (info["state"], info["haState"], info["hadoopVersion"]) == ("STARTED", "ACTIVE", "3.4.1")
    assert info["startedOn"] == made.manager.started_ms
    assert info["id"] <= info["startedOn"]
    assert info["rmStateStoreName"] == "MemoryRMStateStore"
    assert re.fullmatch(r"central-dispatcher .+", info["resourceManagerVersion"])


@pytest.mark.parametrize("path", ["/cluster", "/ws/v1/cluster/info", "/ops/v1/dispatchers", "/metrics", "/nowhere"])
def test_every_answer_tells_the_age_of_the_state(made: Front, path: str) -> None:
    answer = made.http.get(path)

    assert 0 <= int(answer.headers["x-state-age-ms"]) < TIMEOUT_S * 1000


def test_the_ops_api_and_the_metrics_are_on_the_same_host(made: Front) -> None:
    names = (made.manager.name, f"{made.manager.name}-scheduler")
    found = [made.http.get(f"/ops/v1/dispatchers/{name}").json()["name"] for name in names]
    page = made.http.get("/metrics", headers={"Accept-Encoding": "gzip"})

    assert found == list(names)
    assert page.headers["content-encoding"] == "gzip"
    assert 'dispatcher_event_queue_size{dispatcher="ResourceManager"}' in page.text


def test_before_the_resource_manager_is_started_its_address_answers_503() -> None:
    central = manager()

    with RMDoor(central) as door:
        active, info = get(door, "/cluster"), get(door, "/ws/v1/cluster/info")

    assert (active.status_code, info.status_code) == (503, 503)
    assert info.headers["retry-after"] == "1"
    assert "starting" in info.json()["RemoteException"]["message"]
    central.stop()


def test_an_address_is_ready_once_it_has_something_to_show() -> None:
    """It was ready for up to 2 seconds while REST and pages answered 503."""
    central = manager()
    with RMDoor(central) as door:
        before = get(door, "/readyz").json()["reasons"], door.unready_reason()
        with central:
            until(lambda: get(door, "/cluster").status_code == 200, "it is active")
            after = get(door, "/readyz").json()["reasons"], door.unready_reason()

    own = {"reason": "starting", "service": "ResourceManager-door"}
    assert (own in before[0], before[1]) == (True, "starting")
    assert (own in after[0], after[1]) == (False, None)


@pytest.mark.parametrize(("needs_token", "statuses"), [(False, {200, 503}), (True, {401})])
def test_probes_need_no_token_unless_that_is_configured(tmp_path: Path, needs_token: bool, statuses: set[int]) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    central = manager(tokens_file=str(tokens), probes_need_token=needs_token)

    with RMDoor(central) as door:
        probe, page = get(door, "/readyz"), get(door, "/cluster")
        change = httpx.post(f"{door.url}/readyz", timeout=TIMEOUT_S)

    assert probe.status_code in statuses
    assert (page.status_code, change.status_code) == (401, 401)


def test_a_probe_may_speak_http_1_0_without_a_host(made: Front) -> None:
    answers = {}
    for path in ("/livez", "/cluster"):
        with socket.create_connection(("127.0.0.1", made.door.host.port), TIMEOUT_S) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answers[path] = int(connection.makefile().readline().split()[1])

    assert answers["/livez"] in (200, 503)  # other daemons of this process count as well
    assert answers["/cluster"] == 421
