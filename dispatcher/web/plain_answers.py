"""Answers made without a framework, as ASGI messages or as bytes: JSON, a page, or a Refusal."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from dispatcher.util.terminal import one_line

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
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
"""Added to every answer that does not set them itself."""


SOON: Final = {"Retry-After": "1"}
"""The header of an error that may be over in a second."""


class Refusal(Exception):
    """Raised inside the gate or by an endpoint: the answer is this status, the reason in one line, and the headers."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers: Mapping[str, str] | dict[str, str] = headers or {}

    @property
    def pairs(self) -> Pairs:
        """The headers as ASGI has them."""
        return header_pairs(self.headers)


def to_plain(model: BaseModel) -> dict[str, Any]:
    """A model as JSON has it: the fields that it was given, by their aliases."""
    return model.model_dump(by_alias=True, exclude_unset=True)


json_text: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=to_plain).encode
"""`json.dumps` with options makes an encoder for each call, which takes longer than a short text."""


def utf8(text: str) -> bytes:
    """Lone surrogates become escapes."""
    return text.encode("utf-8", "backslashreplace")


def to_json(content: Any) -> bytes:
    """As UTF-8. It may be a model, or have models in it."""
    if isinstance(content, BaseModel):
        try:
            return content.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except PydanticSerializationError:  # a lone surrogate: UTF-8 has none
            content = to_plain(content)
    return utf8(json_text(content))


def error_line(reason: str) -> bytes:
    return json.dumps({"error": one_line(reason)}).encode() + b"\n"


def plain_error(path: str, status: int, reason: str) -> bytes:
    """The body of an error: JSON of one line, whatever the path."""
    return error_line(reason)


def header_pairs(headers: Mapping[str, str]) -> Pairs:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


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
