"""Which hosts are our own, by the Host header alone."""

from __future__ import annotations

import pytest

from dispatcher.web.origins import is_own_host


@pytest.mark.parametrize(
    ("host", "local", "is_own"),
    [
        ("127.0.0.1:8088", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1:9000", "127.0.0.1", True),  # a tunnel's other port
        ("localhost:8088", "127.0.0.1", True),
        ("LOCALHOST.", "127.0.0.1", True),
        ("[::1]:8088", "::1", True),
        ("[::1]", "127.0.0.1", True),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("192.0.2.7:8088", "192.0.2.7", True),
        ("ops.example", "192.0.2.7", True),
        ("OPS.example.:8443", "192.0.2.7", True),
        ("port.example:8088", "192.0.2.7", True),
        ("port.example:8089", "192.0.2.7", False),
        ("192.0.2.8", "192.0.2.7", False),
        ("192.0.2.7", "127.0.0.1", False),
        ("127.0.0.1", "192.0.2.7", False),
        ("evil.example:8088", "127.0.0.1", False),
        ("localhost.evil.example", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("localhost:port", "127.0.0.1", False),
        ("user@localhost", "127.0.0.1", False),
        ("[::1", "::1", False),
        ("[::1]x", "::1", False),
        ("", "127.0.0.1", False),
        (None, "127.0.0.1", False),
    ],
)
def test_a_host_is_our_own_by_the_address_that_was_reached_or_by_an_allowed_name(
    host: str | None, local: str, is_own: bool
) -> None:
    assert is_own_host(host, local, {"ops.example", "port.example:8088"}) is is_own
