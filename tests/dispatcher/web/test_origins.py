"""The rules against foreign web sites, on headers alone."""

from __future__ import annotations

import pytest

from dispatcher.web.origins import foreign_site, is_json, is_own_host


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


HOST = (b"host", b"127.0.0.1:8088")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"sec-fetch-site", b"none")],
        [(b"sec-fetch-site", b"same-origin"), (b"origin", b"http://127.0.0.1:8088")],
        [(b"sec-fetch-site", b"same-origin"), (b"origin", b"null")],  # our page, whose policy is no-referrer
        [(b"origin", b"HTTP://127.0.0.1:8088")],
        [(b"origin", b"https://127.0.0.1:8088")],  # behind a proxy that ends TLS
    ],
)
def test_programs_and_our_own_pages_may_change_something(headers: list[tuple[bytes, bytes]]) -> None:
    assert foreign_site([HOST, *headers], "http") is None


@pytest.mark.parametrize(
    "headers",
    [
        [(b"sec-fetch-site", b"cross-site")],
        [(b"sec-fetch-site", b"same-site")],
        [(b"sec-fetch-site", b"none"), (b"sec-fetch-site", b"cross-site")],
        [(b"sec-fetch-site", b"")],
        [(b"origin", b"http://evil.example")],
        [(b"origin", b"null")],
        [(b"sec-fetch-site", b"none"), (b"origin", b"null")],
        [(b"sec-fetch-site", b"same-origin"), (b"origin", b"http://evil.example")],
        [(b"origin", b"http://127.0.0.1:8089")],
        [(b"origin", b"http://127.0.0.1")],
        [(b"origin", b"ftp://127.0.0.1:8088")],
        [(b"origin", b"http://[")],
        [(b"origin", b"http://127.0.0.1:8088"), (b"origin", b"http://evil.example")],
    ],
)
def test_a_foreign_site_may_not(headers: list[tuple[bytes, bytes]]) -> None:
    assert foreign_site([HOST, *headers], "http") is not None


def test_a_plain_page_may_not_change_what_is_served_by_tls() -> None:
    assert foreign_site([HOST, (b"origin", b"http://127.0.0.1:8088")], "https") is not None


@pytest.mark.parametrize(
    ("value", "is_it"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"text/plain", False),
        (b"application/jsonp", False),
        (b"application/x-www-form-urlencoded", False),
        (b"", False),
    ],
)
def test_json_is_json_by_its_media_type(value: bytes, is_it: bool) -> None:
    assert is_json([(b"content-type", value)]) is is_it
