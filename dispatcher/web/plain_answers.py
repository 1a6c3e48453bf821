"""Answers made without a framework: one line of JSON, or a page, as ASGI messages or as bytes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Pairs: TypeAlias = list[tuple[bytes, bytes]]
ErrorBody: TypeAlias = Callable[[str, int, str], bytes]
"""Makes the body of an error, in JSON, from the request's path, the status and the reason."""

SECURITY_HEADERS: Final[Pairs] = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
"""Added to every answer that does not set them itself."""


class Refusal(Exception):
    """Raised inside the gate: the answer is this status, and the reason as one line of JSON."""

    def __init__(self, status: int, reason: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = list(headers)


def error_line(reason: str) -> bytes:
    return json.dumps({"error": reason}).encode() + b"\n"


def plain_error(path: str, status: int, reason: str) -> bytes:
    """The body of an error: JSON of one line, whatever the path."""
    return error_line(reason)


def with_security_headers(headers: Iterable[tuple[bytes, bytes]]) -> Pairs:
    found = list(headers)
    names = {name.lower() for name, _ in found}
    return found + [(name, value) for name, value in SECURITY_HEADERS if name not in names]


async def send_answer(
    send: Send,
    status: int,
    body: bytes,
    headers: Iterable[tuple[bytes, bytes]] = (),
    content_type: bytes = b"application/json",
) -> None:
    """Send a whole answer."""
    pairs = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def raw_refusal(status: int, reason: str) -> bytes:
    """A complete HTTP/1.1 response that closes the connection, for a request that cannot be parsed."""
    body = error_line(reason)
    headers = with_security_headers(
        [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *([(b"retry-after", b"1")] if status in (429, 503) else []),
        ]
    )
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    return first + b"".join(b"%s: %s\r\n" % pair for pair in headers) + b"\r\n" + body
