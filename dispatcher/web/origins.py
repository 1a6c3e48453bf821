"""Protection from other web sites: against forged requests (CSRF) and DNS rebinding.

A web site that a user visits can make the browser send requests to a door on the same machine: Origin and
Sec-Fetch-Site reveal them. It can also point a host name of its own at the door, and the browser then takes the answers
for the site's own: the Host header reveals that name. Programs send neither Origin nor Sec-Fetch-Site.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import urlsplit

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def header_values(headers: Headers, name: bytes) -> list[str]:
    """Every value of a header."""
    return [value.decode("latin-1").strip() for key, value in headers if key == name]


def header(headers: Headers, name: bytes) -> str | None:
    """The value of a header; None if it is absent or there are several."""
    values = header_values(headers, name)
    return values[0] if len(values) == 1 else None


def is_own_host(host: str | None, local_address: str, allowed: Collection[str]) -> bool:
    """Whether a Host header names the door: by the address that the client reached, as localhost, or as allowed.

    `allowed` has lower-case names, or name:port. The other names pass with any port: a tunnel may have changed it.
    """
    split = _split_host(host or "")
    if split is None:
        return False
    name, port = split
    if name == "localhost" or name in allowed or f"{name}:{port}" in allowed:
        return True
    address, local = as_address(name), as_address(local_address)
    if address is None or local is None:
        return False
    return address == local or (address.is_loopback and local.is_loopback)


def foreign_site(headers: Headers, scheme: str) -> str | None:
    """Why a request that changes something may come from another web site; None if it does not.

    Call it for a request whose Host header was found to be our own.
    """
    sites = header_values(headers, b"sec-fetch-site")
    for site in sites:
        if site not in ("none", "same-origin"):
            return f"Sec-Fetch-Site is {site}: the request comes from another web site"
    host = header(headers, b"host")
    for origin in header_values(headers, b"origin"):
        # Our pages ask for no Referer, and browsers then hide their origin. No page can set Sec-Fetch-Site.
        if origin == "null" and sites and set(sites) == {"same-origin"}:
            continue
        if not _is_own_origin(origin, scheme, host):
            return f"Origin is {origin}: the request comes from another web site"
    return None


def is_json(headers: Headers) -> bool:
    """Whether the body is declared as JSON. A page of another site cannot send this without a CORS preflight."""
    return _content_type(headers) == "application/json"


def is_form(headers: Headers) -> bool:
    """Whether the body is declared as an HTML form's. A page of another site can send this."""
    return _content_type(headers) == "application/x-www-form-urlencoded"


def is_own_page(headers: Headers, scheme: str) -> bool:
    """Whether the browser says that one of our own pages sent the request. Programs say nothing: False.

    Call it for a request whose Host header was found to be our own.
    """
    if foreign_site(headers, scheme) is not None:
        return False
    sites, host = header_values(headers, b"sec-fetch-site"), header(headers, b"host")
    return sites == ["same-origin"] or any(
        _is_own_origin(origin, scheme, host) for origin in header_values(headers, b"origin")
    )


@lru_cache(maxsize=64)  # the same few texts come with each request
def as_address(text: str) -> Address | None:
    """An IP literal without brackets, maybe with a zone; an IPv4 address inside IPv6 counts as IPv4."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _content_type(headers: Headers) -> str:
    return (header(headers, b"content-type") or "").partition(";")[0].strip().lower()


def _is_own_origin(origin: str, scheme: str, host: str | None) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    # A proxy that ends TLS before us serves our pages by https.
    return host is not None and parts.scheme in (scheme, "https") and parts.netloc.lower() == host.lower()


def _split_host(host: str) -> tuple[str, str] | None:
    """Name and port of a Host header; None if it is malformed."""
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return None
        port = rest[1:]
    else:
        name, _, port = host.partition(":")
        name = name.lower().removesuffix(".")
    if not name or (port and not (port.isascii() and port.isdigit())):
        return None
    return name, port
