"""What the endpoints of every door share, once for all doors."""

from __future__ import annotations

import gzip

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.web.endpoints import zipped

LONG = b"a" * 2000


@pytest.mark.parametrize(
    ("encoding", "body", "is_zipped"),
    [("gzip", LONG, True), ("br, x-gzip;q=0.5", LONG, True), ("gzip;q=0, *", LONG, False), ("gzip", b"short", False)],
)
def test_an_answer_is_compressed_where_that_pays_and_the_client_takes_it(
    encoding: str, body: bytes, is_zipped: bool
) -> None:
    request = Request({"type": "http", "headers": [(b"accept-encoding", encoding.encode())]})

    answer = zipped(request, Response(body, headers={"Vary": "Accept"}))

    assert (answer.headers.get("content-encoding") == "gzip") is is_zipped
    assert (gzip.decompress(answer.body) if is_zipped else answer.body) == body
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["vary"] == ("Accept, Accept-Encoding" if is_zipped else "Accept")
