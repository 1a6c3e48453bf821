"""examples/daemon.py, as a user runs it: its door, its health, its metrics, its journal, and its end."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest

from dispatcher.journal import EVENTS, read_rows, verify

from .kit import until
from .kit.commands import run_here

pytest.importorskip("uvicorn", reason="the door's extra is not installed: pip install 'central-dispatcher[web]'")
pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[1] / "examples" / "daemon.py"
TIMEOUT_S = 180.0
DRAIN_TIMEOUT_S = 5.0
"""As in the example."""
STOP_S = 1.0
"""Longest stop of the door, beyond the drain."""


class Shop:
    """The running example."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shop"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(EXAMPLE), str(self.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        )
        assert self.process.stdout is not None
        said = [self.process.stdout.readline().strip() for _ in range(4)]
        assert said[3] == "started", (said, self.process.communicate(timeout=TIMEOUT_S))
        self.health_url, self.metrics_url, self.socket = said[:3]

    def page(self, path: str) -> tuple[int, str]:
        """Status and body, from the port of metrics and health."""
        connection = http.client.HTTPConnection(urlsplit(self.metrics_url).netloc, timeout=TIMEOUT_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    def ask(self, path: str) -> Any:
        """The answer of the door."""
        connection = through(self.socket)
        connection.request("GET", f"/ops/v1{path}")
        answer = connection.getresponse()
        body = json.loads(answer.read())
        connection.close()
        assert answer.status == 200, body
        return body

    def open_stream(self) -> tuple[http.client.HTTPConnection, IO[bytes]]:
        """A client with a stream of events that has had the first one."""
        connection = through(self.socket)
        connection.request("GET", "/ops/v1/stream")
        stream = connection.getresponse()
        assert stream.status == 200
        while stream.readline() != b"event: dispatchers\n":
            pass
        return connection, stream

    def terminate(self) -> tuple[float, str]:
        """Seconds from SIGTERM to its end, and what it wrote to standard error."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        return time.monotonic() - begun, errors


def through(path: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(TIMEOUT_S)
    connection.sock.connect(path)
    return connection


@contextmanager
def running(folder: Path) -> Iterator[Shop]:
    shop = Shop(folder)
    try:
        yield shop
    finally:
        shop.process.kill()
        shop.process.communicate(timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """For tests that look into it and leave it running."""
    with running(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


def wait_for_status(shop: Shop, path: str, wanted: int) -> dict[str, Any]:
    """The body of the first answer with this status. The answer of a check is kept for a second."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        status, body = shop.page(path)
        if status == wanted:
            found: dict[str, Any] = json.loads(body)
            return found
        assert time.monotonic() < deadline, body


def wait_until_handled(shop: Shop, count: int) -> None:
    """Until this start has handled so many orders."""
    until(lambda: shop.ask("/dispatchers/orders")["handled"] >= count, f"the handling of {count} orders")


def test_its_door_shows_both_dispatchers_and_its_parts(shop: Shop) -> None:
    dispatchers = {each["name"]: each for each in shop.ask("/dispatchers")["items"]}
    process = shop.ask("/process")

    assert {name: each["state"] for name, each in dispatchers.items()} == {"letters": "STARTED", "orders": "STARTED"}
    assert dispatchers["letters"]["journal"] is None
    assert dispatchers["orders"]["journal"]["path"] == str(shop.folder / "journal")
    assert dispatchers["orders"]["queue"]["capacity"] == 10_000
    assert process["name"] == "shop"
    assert process["pid"] == shop.process.pid


def test_its_door_is_a_socket_of_its_user_alone(shop: Shop) -> None:
    path = Path(shop.socket)

    assert path == shop.folder.parent / "dispatcher" / f"shop-{shop.process.pid}.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_curl_gets_through_its_door(shop: Shop) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: apt-get install curl")

    url = "http://localhost/ops/v1/dispatchers/orders/types"
    asked = subprocess.run(
        ["curl", "--silent", "--fail", "--max-time", "30", "--unix-socket", shop.socket, url],
        capture_output=True,
        check=True,
    )

    assert [each["event_type"] for each in json.loads(asked.stdout)["items"]] == ["PLACED"]


def test_its_port_has_metrics_and_health(shop: Shop) -> None:
    status, metrics = shop.page("/metrics")

    assert status == 200
    for name in ("letters", "orders"):
        assert f'dispatcher_failed{{dispatcher="{name}"}} 0.0' in metrics
    assert urlsplit(shop.health_url).path == "/readyz"
    for path in ("/livez", "/readyz", "/healthz"):
        status, body = shop.page(path)
        assert (status, json.loads(body)["status"]) == (200, "ok"), body
    assert shop.page("/elsewhere")[0] == 404


def test_the_file_maintenance_makes_it_not_ready_and_leaves_it_live(shop: Shop) -> None:
    (shop.folder / "maintenance").touch()
    refused = wait_for_status(shop, "/readyz", 503)
    live, _ = shop.page("/livez")
    (shop.folder / "maintenance").unlink()
    wait_for_status(shop, "/readyz", 200)

    assert refused["status"] == "check:maintenance"
    assert live == 200


@pytest.mark.parametrize(
    ("arguments", "said"), [(["ps"], "shop"), (["status", "shop"], "orders"), (["top", "--once"], "orders")]
)
def test_the_command_looks_into_it(
    shop: Shop, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("textual", reason="textual is not installed: pip install 'central-dispatcher[cli]'")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shop.folder.parent))

    looked = run_here(*arguments)

    assert looked.code in (0, None), looked
    assert said in looked.out


def ends_with_an_open_stream(shop: Shop) -> float:
    """SIGTERM while a client has a stream of events: the stream ends, and the daemon, with all its work done.

    Returns the seconds from the signal to the end.
    """
    connection, stream = shop.open_stream()

    took_s, errors = shop.terminate()
    rest = stream.read()
    connection.close()

    assert shop.process.returncode == 128 + signal.SIGTERM
    assert errors == ""
    assert rest == b"" or rest.endswith(b"\n\n"), "the stream was cut off in the middle of an event"
    assert not Path(shop.socket).exists()
    assert verify(shop.folder / "journal").problems == ()
    return took_s


def test_sigterm_ends_it_while_a_client_has_a_stream(tmp_path: Path) -> None:
    with running(tmp_path) as shop:
        assert ends_with_an_open_stream(shop) <= DRAIN_TIMEOUT_S + STOP_S


@pytest.mark.slow
@pytest.mark.minutes
def test_sigterm_ends_it_in_time_twenty_times_of_twenty(tmp_path: Path) -> None:
    took_s = []
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        with running(folder) as shop:
            took_s.append(ends_with_an_open_stream(shop))

    assert max(took_s) <= DRAIN_TIMEOUT_S + STOP_S
    # Its handlers take no time, so there is nothing to drain; a busy machine may delay one end or another.
    assert statistics.median(took_s) <= STOP_S


def entities(journal: Path) -> list[str]:
    return [row["entity"] for row in read_rows(journal, EVENTS)]


def test_it_comes_back_on_the_same_folder_after_an_orderly_stop(tmp_path: Path) -> None:
    """Its second start ended with a JournalError: the folder held a journal already."""
    for _ in range(2):
        with running(tmp_path) as shop:
            wait_until_handled(shop, 1)
            assert shop.terminate()[1] == ""

    handled = entities(shop.folder / "journal")
    assert len(handled) >= 2
    assert len(set(handled)) == len(handled), "an order of the second start has the id of one of the first"
    assert verify(shop.folder / "journal").problems == ()


def test_it_comes_back_on_the_same_folder_after_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as killed:
        wait_until_handled(killed, 1)
    with running(tmp_path) as shop:
        wait_until_handled(shop, 1)
        shop.terminate()

    assert shop.process.returncode == 128 + signal.SIGTERM
    assert verify(shop.folder / "journal").problems == ()
