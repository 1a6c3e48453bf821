"""The metrics' server: its address as a URL, and addresses that cannot be listened on."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import ConfigError, MetricsConfig, MetricsServer, ServiceState

from ...kit import TIMEOUT_S


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
def test_an_ipv6_address_is_served_at_its_url() -> None:
    server = MetricsServer(MetricsConfig(host="::1"), CollectorRegistry())
    with server, urllib.request.urlopen(server.url, timeout=TIMEOUT_S) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]"), ("fe80::1%eth0", "[fe80::1%25eth0]"), ("127.0.0.1", "127.0.0.1")]
)
def test_the_url_shows_the_host_as_a_url_has_it(host: str, shown: str) -> None:
    assert MetricsServer(MetricsConfig(host=host, port=9464)).url == f"http://{shown}:9464/metrics"


@pytest.mark.parametrize("host", ["x" * 300, "a..b", "a\0b", "\udcff", "no such host", "\x1b[31m"], ids=ascii)
def test_a_host_that_is_none_is_refused_in_one_printable_line(host: str) -> None:
    server = MetricsServer(MetricsConfig.model_construct(host=host, port=0), CollectorRegistry())
    server.init()

    with pytest.raises(ConfigError) as caught:
        server.start()

    assert str(caught.value).startswith("metrics.host ")
    assert str(caught.value).isprintable()


def test_a_port_in_use_is_named_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = MetricsServer(MetricsConfig(port=port), CollectorRegistry())
        server.init()

        with pytest.raises(ConfigError, match=rf"metrics.port {port}: cannot listen there.*port 0 for a free one"):
            server.start()

    assert server.state is ServiceState.STOPPED
