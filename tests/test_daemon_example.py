"""examples/daemon.py, as a user runs it: its door, its health, its metrics, its journal, and its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

pytest.importorskip("httpx", reason="httpx is not installed: scripts/test does")
pytest.importorskip("uvicorn", reason="the door's extra is not installed: pip install 'central-dispatcher[web]'")

import httpx

from dispatcher.journal import EVENTS, read_rows, verify

from .kit import until

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[1] / "examples" / "daemon.py"
TIMEOUT_S = 180.0
DRAIN_TIMEOUT_S = 5.0
"""As in the example."""
STOP_S = 1.0
"""Longest stop of the door, beyond the drain."""


class Shop:
    """The running example."""

    def __init__(self, folder: Path, runtime: str) -> None:
        self.folder = folder / "shop"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(EXAMPLE), str(self.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_RUNTIME_DIR": runtime},
        )
        assert self.process.stdout is not None
        said = [self.process.stdout.readline().strip() for _ in range(4)]
        assert said[3] == "started", (said, self.process.communicate(timeout=TIMEOUT_S))
        self.health_url, self.metrics_url, self.socket = said[:3]
        door = httpx.HTTPTransport(uds=self.socket)
        self.door = httpx.Client(transport=door, base_url="http://localhost/ops/v1", timeout=TIMEOUT_S)

    def page(self, path: str) -> tuple[int, str]:
        """Status and body, from the port of metrics and health."""
        answer = httpx.get(urljoin(self.metrics_url, path), timeout=TIMEOUT_S)
        return answer.status_code, answer.text

    def ask(self, path: str) -> Any:
        """The answer of the door."""
        answer = self.door.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def terminate(self) -> tuple[float, str]:
        """Seconds from SIGTERM to its end, and what it wrote to standard error."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        return time.monotonic() - begun, errors


@contextmanager
def running(folder: Path) -> Iterator[Shop]:
    # The path of a socket has to be short, and tmp_path's may not be.
    with TemporaryDirectory() as runtime:
        shop = Shop(folder, runtime)
        try:
            yield shop
        finally:
            shop.door.close()
            shop.process.kill()
            shop.process.communicate(timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """For tests that look into it and leave it running."""
    with running(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


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
    until(lambda: shop.page("/readyz")[0] == 503, "it is not ready")  # the answer of a check is kept for a second
    refused, live = shop.page("/readyz")[1], shop.page("/livez")[0]
    (shop.folder / "maintenance").unlink()
    until(lambda: shop.page("/readyz")[0] == 200, "it is ready again")

    assert (json.loads(refused)["status"], live) == ("check:maintenance", 200)


def ends_with_an_open_stream(shop: Shop) -> float:
    """SIGTERM while a client has a stream of events: the stream ends, and the daemon, with all its work done.

    Returns the seconds from the signal to the end.
    """
    with shop.door.stream("GET", "/stream") as stream:
        lines = stream.iter_lines()
        while next(lines) != "event: dispatchers":
            pass
        took_s, errors = shop.terminate()
        rest = list(lines)

    assert shop.process.returncode == 128 + signal.SIGTERM
    assert errors == ""
    assert rest[-1:] in ([], [""]), "the stream was cut off in the middle of an event"
    assert not Path(shop.socket).exists()
    assert verify(shop.folder / "journal").problems == ()
    return took_s


def test_sigterm_ends_it_while_a_client_has_a_stream(tmp_path: Path) -> None:
    with running(tmp_path) as shop:
        ends_with_an_open_stream(shop)


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


@pytest.mark.parametrize("ending", ["a stop", "a kill"])
def test_it_comes_back_on_the_same_folder_after(ending: str, tmp_path: Path) -> None:
    """After an orderly stop, the start ended with a JournalError: the folder held a journal already."""
    with running(tmp_path) as first:
        wait_until_handled(first, 1)
        assert ending == "a kill" or first.terminate()[1] == ""
    with running(tmp_path) as shop:
        wait_until_handled(shop, 1)
        assert shop.terminate()[1] == "" or ending == "a kill"  # then it tells what it has recovered

    assert shop.process.returncode == 128 + signal.SIGTERM
    assert verify(shop.folder / "journal").problems == ()
    handled = [row["entity"] for row in read_rows(shop.folder / "journal", EVENTS)]
    if ending == "a stop":
        assert 2 <= len(handled) == len(set(handled)), "an order of the second start has the id of one of the first"
