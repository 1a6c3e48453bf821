"""The head of an HTTP request: the form of its target, and what its client takes as an answer. URLs of servers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

_ABSOLUTE: Final = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


def origin_form(target: str) -> tuple[str | None, str]:
    """The host that a request's target names, None if it names none, and the target from its path on.

    A client may name the host in the target instead of in the header Host, as clients of a proxy do. RFC 9112 has a
    server take the header's value from there.

    >>> [origin_form(each) for each in ("/who?x=1", "http://rm:8088/who?x=1", "HTTP://rm?x=1", "*")]
    [(None, '/who?x=1'), ('rm:8088', '/who?x=1'), ('rm', '/?x=1'), (None, '*')]
    """
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        return None, target
    host, rest = found.groups()
    return host, rest if rest.startswith("/") else f"/{rest}"


def url_of(scheme: str, host: str, port: int) -> str:
    """
    >>> [url_of("http", host, 8088) for host in ("rm", "fe80::1%eth0")]
    ['http://rm:8088', 'http://[fe80::1%25eth0]:8088']
    """
    if ":" in host:  # IPv6, maybe with a zone
        host = f"[{host.replace('%', '%25')}]"
    return f"{scheme}://{host}:{port}"


def takes(values: Iterable[str], *names: str) -> bool:
    """Whether a client takes something, by the values of its header Accept or Accept-Encoding.

    `names`: what would name it, in lower case, the most exact first. The first of them that the header has decides:
    weight 0 refuses.

    >>> [takes([each], "gzip", "*") for each in ("br, gzip", "*;q=0.5", "gzip;q=0, *", "identity", "")]
    [True, True, False, False, False]
    """
    weights = _weights(",".join(values))
    return next((weights[name] for name in names if name in weights), False)


def takes_gzip(values: Iterable[str]) -> bool:
    """Whether a client takes an answer that is compressed with gzip, by the values of its header Accept-Encoding."""
    return takes(values, "gzip", "x-gzip", "*")


@lru_cache(maxsize=64)  # the same few texts come with each request
def _weights(text: str) -> Mapping[str, bool]:
    """By each name in the header, whether its weight is more than 0."""
    found: dict[str, bool] = {}
    for each in text.lower().split(","):
        name, *parameters = (part.strip() for part in each.split(";"))
        weights = [part.removeprefix("q=").rstrip("0") for part in parameters if part.startswith("q=")]
        found[name] = found.get(name, False) or not any(weight in ("", "0.", ".") for weight in weights)
    return found
