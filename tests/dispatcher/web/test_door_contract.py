"""What every server of /metrics and the probes promises: a metrics server, a daemon's door, a resource manager's."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Counter

from dispatcher import MetricsConfig, MetricsServer
from dispatcher.ops import OpsDoor
from dispatcher.web import WebConfig
from statemachines.resourcemanager import ResourceManager, ResourceManagerConfig
from statemachines.resourcemanager.web import RMDoor

from ...kit import TIMEOUT_S

pytestmark = pytest.mark.long

PROBES = ("/livez", "/readyz", "/healthz")
WEB = {"port": 0, "unix_socket": False}


class Served(NamedTuple):
    """A started server: its address, and the registry that it shows."""

    url: str
    registry: CollectorRegistry

    def ask(self, target: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        address = urlsplit(self.url)
        client = http.client.HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_S)
        try:
            client.request(method, target, headers=headers)
            answer = client.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            client.close()


@contextmanager
def metrics_server() -> Iterator[Served]:
    registry = CollectorRegistry()
    with MetricsServer(MetricsConfig(), registry) as server:
        yield Served(server.url_of(""), registry)


@contextmanager
def ops_door() -> Iterator[Served]:
    registry = CollectorRegistry()
    with OpsDoor(web=WebConfig.model_validate(WEB), registry=registry, name="daemon") as door:
        yield Served(str(door.host.url), registry)


@contextmanager
def rm_door() -> Iterator[Served]:
    settings = {"metrics": {"enabled": False}, "web": WEB}
    manager = ResourceManager(ResourceManagerConfig.model_validate(settings))
    with RMDoor(manager) as door:
        yield Served(str(door.url), manager.registry)
    manager.stop()


DOORS = [metrics_server, ops_door, rm_door]


@pytest.fixture(scope="module", params=DOORS, ids=lambda door: door.__name__)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with request.param() as found:
        for name in ("one", "two"):
            Counter(name, "Worth to be compressed. " * 100, registry=found.registry).inc()
        yield found


@pytest.mark.parametrize("path", ["/metrics", *PROBES, "/readyz?verbose"])
def test_a_page_is_served_by_get_and_head(served: Served, path: str) -> None:
    status, headers, body = served.ask(path)
    head_status, head_headers, head_body = served.ask(path, "HEAD")

    assert status == 200 or (status == 503 and path != "/metrics")
    assert (head_status, head_body) == (status, b"")
    assert int(headers["content-length"]) == len(body)
    assert head_headers.keys() == headers.keys()
    assert "python" not in headers.get("server", "").lower()


@pytest.mark.parametrize("path", PROBES)
def test_a_probe_is_json_that_nobody_keeps(served: Served, path: str) -> None:
    status, headers, body = served.ask(path)

    assert (headers["content-type"], headers["cache-control"]) == ("application/json", "no-store")
    found = json.loads(body)
    assert {"status", "reasons", "uptime_s"} <= found.keys()
    assert (status == 200) is (not found["reasons"])


@pytest.mark.parametrize("path", ["/metrics", *PROBES])
def test_nothing_can_be_changed(served: Served, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        status, headers, body = served.ask(path, method)

        assert (status, headers.get("allow")) == (405, "GET, HEAD"), method
        assert body.count(b"\n") <= 1


@pytest.mark.parametrize("path", ["/metrics/x", "/Livez", "/favicon.ico", "/livez/../metrics"])
def test_what_is_not_there_is_404_in_one_line(served: Served, path: str) -> None:
    status, headers, body = served.ask(path)

    assert status == 404
    assert body.count(b"\n") <= 1
    assert "python" not in headers.get("server", "").lower()


def test_a_scrape_may_choose_names_and_be_compressed(served: Served) -> None:
    _, headers, body = served.ask("/metrics?name[]=two_total", **{"Accept-Encoding": "deflate, gzip;q=1.0"})

    assert headers["content-encoding"] == "gzip"
    assert headers["content-type"].startswith("text/plain; version=")
    page = gzip.decompress(body)
    assert b"two_total 1.0" in page
    assert b"one_total" not in page


@pytest.mark.parametrize(
    ("path", "accepted", "is_compressed"),
    [
        ("/metrics", "gzip", True),
        ("/metrics", "br, x-gzip;q=0.5", True),
        ("/metrics", "gzip;q=0, *", False),
        ("/livez", "gzip", False),
    ],
)
def test_an_answer_is_compressed_where_that_pays_and_the_client_takes_it(
    served: Served, path: str, accepted: str, is_compressed: bool
) -> None:
    _, headers, body = served.ask(path, **{"Accept-Encoding": accepted})

    assert (headers.get("content-encoding") == "gzip") is is_compressed
    assert headers["content-length"] == str(len(body))


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
def test_a_cache_tells_the_formats_and_encodings_of_metrics_apart(served: Served, accepted: str) -> None:
    _, headers, _ = served.ask("/metrics", **{"Accept-Encoding": accepted})

    assert headers["vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize("path", ["/livez", "/metrics?name[]=one_total"])
def test_a_target_that_is_a_url_is_served_as_its_path(served: Served, path: str) -> None:
    assert served.ask(f"http://localhost:80{path}")[0] == 200


def test_idle_connections_keep_no_scrape_and_no_probe_from_its_answer(served: Served) -> None:
    address = urlsplit(served.url)
    with ExitStack() as clients:
        for _ in range(250):
            clients.enter_context(socket.create_connection((address.hostname, address.port), TIMEOUT_S))

        assert served.ask("/metrics")[0] == 200
        assert served.ask("/livez")[0] == 200


@pytest.mark.parametrize("door", DOORS)
def test_after_a_stop_nobody_listens(door: Callable[[], AbstractContextManager[Served]]) -> None:
    with door() as served:
        address = urlsplit(served.url)
        client = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
    with client, suppress(ConnectionResetError):
        assert client.recv(1) == b"", "the connection that was open has ended"

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port), TIMEOUT_S)
