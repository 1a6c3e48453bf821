"""What the endpoints of every door share, once for all doors."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from starlette.requests import Request
from starlette.responses import Response

from dispatcher import DispatcherError
from dispatcher.web.endpoints import guarded, zipped
from dispatcher.web.plain_answers import SOON, Refusal
from dispatcher.web.security import WriteNote

LONG = b"a" * 2000


def request_of(**more: Any) -> Request:
    headers = [(b"accept-encoding", more.pop("encoding", "gzip").encode())]
    return Request({"type": "http", "method": "GET", "path": "/x", "query_string": b"", "headers": headers, **more})


@pytest.mark.parametrize(
    ("encoding", "body", "is_zipped"),
    [("gzip", LONG, True), ("br, x-gzip;q=0.5", LONG, True), ("gzip;q=0, *", LONG, False), ("gzip", b"short", False)],
)
def test_an_answer_is_compressed_where_that_pays_and_the_client_takes_it(
    encoding: str, body: bytes, is_zipped: bool
) -> None:
    answer = zipped(request_of(encoding=encoding), Response(body, headers={"Vary": "Accept"}))

    assert (answer.headers.get("content-encoding") == "gzip") is is_zipped
    assert (gzip.decompress(answer.body) if is_zipped else answer.body) == body
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["vary"] == ("Accept, Accept-Encoding" if is_zipped else "Accept")


@pytest.mark.parametrize(
    ("error", "status", "text", "headers"),
    [
        (Refusal(429, "busy\nnow", SOON), 429, b'{"error": "busy\\\\nnow"}\n', "1"),
        (DispatcherError("no journal"), 503, b'{"error": "no journal"}\n', None),
        (ValueError("x"), 500, b'{"error": "ValueError: x; the log has its traceback"}\n', None),
    ],
)
def test_whatever_an_endpoint_raises_is_an_answer_and_in_the_audit_line(
    error: Exception, status: int, text: bytes, headers: str | None
) -> None:
    note = WriteNote("GET", "/x")

    async def fails(request: Request) -> Response:
        raise error

    answer = asyncio.run(_answered(guarded(fails), request_of(audit=note)))

    assert (answer.status_code, answer.body, answer.headers.get("retry-after")) == (status, text, headers)
    assert note.reason.partition(";")[0] in (str(error), f"ValueError: {error}")


async def _answered(endpoint: Any, request: Request) -> Response:
    answer: Response = await endpoint(request)
    return answer
