"""The door of a daemon, as a real server: its socket, its stream, its stop."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from dispatcher import AsyncDispatcher, CompositeService, ServiceState
from dispatcher.ops import OpsConfig, OpsDoor
from dispatcher.web import WebConfig

from ..web.conftest import add_user
from .client import WAIT_S, Hanging, Job

pytestmark = pytest.mark.long


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path is short enough for a socket."""
    folder = tmp_path_factory.mktemp("d")
    folder.chmod(0o700)
    return folder


def at(folder: Path, **more: Any) -> WebConfig:
    return WebConfig(socket_path=folder / "daemon.sock", **more)


@pytest.fixture
def door(folder: Path) -> Iterator[OpsDoor]:
    with OpsDoor(OpsConfig(control=True), at(folder), name="daemon") as door:
        yield door


@pytest.fixture
def client(door: OpsDoor) -> Iterator[httpx.Client]:
    with connect(door) as client:
        yield client


def connect(door: OpsDoor) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(door.socket_path))
    return httpx.Client(transport=transport, base_url="http://daemon/ops/v1", timeout=WAIT_S)


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Name and data of each event; a comment's name is empty."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
        elif line.startswith(":"):
            yield "", line


def test_the_socket_answers_its_user_who_is_an_administrator(door: OpsDoor, client: httpx.Client) -> None:
    found = client.get("/process").json()
    assert (found["pid"], found["name"]) == (os.getpid(), "daemon")
    [root] = [each for each in found["services"] if each["name"] == door.name]
    assert [each["class"] for each in root["services"]] == ["WebHost"]
    assert client.get("/nothing").json() == {"error": "/ops/v1/nothing: no such path"}
    assert client.get("/threads").status_code == 200


def test_tcp_has_the_same_below_its_url(folder: Path, central: Hanging) -> None:
    with OpsDoor(web=at(folder, port=0)) as door:
        assert door.url is not None
        assert httpx.get(f"{door.url}/dispatchers/central").json()["name"] == "central"
        refused = httpx.get(f"{door.url}/threads")

    assert refused.status_code == 403


def test_it_starts_first_and_stops_last(folder: Path) -> None:
    seen: list[tuple[str, int]] = []

    class Central(AsyncDispatcher):
        def service_start(self) -> None:
            super().service_start()
            seen.append(look("while starting"))

        def service_stop(self) -> None:
            seen.append(look("while stopping"))
            super().service_stop()

    def look(when: str) -> tuple[str, int]:
        with connect(door) as client:
            return when, client.get("/dispatchers").status_code

    daemon, door = CompositeService("daemon"), OpsDoor(web=at(folder))
    daemon.add_service(door)
    daemon.add_service(Central(name="central"))

    with daemon:
        pass

    assert seen == [("while starting", 200), ("while stopping", 200)]
    assert door.in_state(ServiceState.STOPPED)
    assert door.socket_path is None or not door.socket_path.exists()


def test_the_stream_has_numbers_and_failures(client: httpx.Client, central: Hanging) -> None:
    with client.stream("GET", "/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found = events(response)
        name, data = next(each for each in found if each[0])
        central.post(Job.FAIL, "job 1")
        failure = next(data for name, data in islice(found, 20) if name == "failure")

    assert name == "dispatchers"
    assert "central" in [each["name"] for each in data["items"]]
    assert (failure["dispatcher"], failure["entity"], failure["error_class"]) == ("central", "job 1", "ValueError")


def test_a_log_level_is_set_through_the_door_with_one_audit_line_and_restored_by_its_stop(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("tests.ops.door")
    with OpsDoor(OpsConfig(control=True), at(folder)) as door, connect(door) as client:
        response = client.post("/log-level", json={"logger": logger.name, "level": "DEBUG", "for_s": 600})
        assert (response.status_code, logger.level) == (200, logging.DEBUG)

    assert logger.level == logging.NOTSET
    [line] = [record.getMessage() for record in caplog.records if record.name == "dispatcher.audit"]
    assert "OPERATION=log level DEBUG for 600 s\tTARGET=tests.ops.door\tRESULT=SUCCESS" in line


def test_a_daemon_is_not_ready_once_a_part_of_it_has_stopped(folder: Path) -> None:
    daemon, door = CompositeService("daemon"), OpsDoor(web=at(folder))
    daemon.add_service(door)
    daemon.add_service(AsyncDispatcher(name="other"))
    with daemon, connect(door) as client:
        started = client.get("http://daemon/readyz")
        daemon.services[1].stop()
        stopped, alive = client.get("http://daemon/readyz"), client.get("http://daemon/livez")

    assert (started.status_code, stopped.status_code, alive.status_code) == (200, 503, 200)


def test_over_tcp_probes_need_no_token_and_metrics_do(folder: Path, tmp_path: Path) -> None:
    token = add_user(tmp_path / "tokens", "prometheus", "view")
    with OpsDoor(web=at(folder, port=0, tokens_file=tmp_path / "tokens")) as door:
        with httpx.Client(base_url=str(door.host.url), trust_env=False) as client:
            statuses = [client.get(path).status_code for path in ("/livez", "/healthz", "/metrics", "/ops/v1/process")]
            scraped = client.get("/metrics", headers={"authorization": f"Bearer {token}"})
        with socket.create_connection(("127.0.0.1", door.host.port or 0), WAIT_S) as old:
            old.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            answer = old.recv(1000)

    assert statuses == [200, 200, 401, 401]
    assert scraped.status_code == 200
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_it_serves_pages_beside_the_api(folder: Path, central: Hanging) -> None:
    pytest.importorskip("jinja2", reason="the extra web is not installed")
    with OpsDoor(web=at(folder, port=0), name="shop") as door, httpx.Client(base_url=str(door.host.url)) as client:
        page, nothing = client.get("/"), client.get("/nothing")
        style = client.get("/static/style.css")
        with client.stream("GET", "/dispatcher", headers={"accept": "text/event-stream"}) as response:
            name, first = next(each for each in events(response) if each[0])

    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert set(page.headers["vary"].split(", ")) == {"Accept", "Accept-Encoding"}
    assert "<title>Overview - shop</title>" in page.text
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    assert (nothing.status_code, nothing.json()) == (404, {"error": "/nothing: no such path"})
    assert (name, set(first["parts"])) == ("page", {"part-notice", "part-dispatchers"})
    assert "central" in first["parts"]["part-dispatchers"]
