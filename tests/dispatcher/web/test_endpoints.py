"""What the endpoints of every door share. That answers are compressed: see test_door_contract.py."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.web.endpoints import zipped


def test_a_cache_tells_compressed_answers_apart() -> None:
    request = Request({"type": "http", "headers": [(b"accept-encoding", b"gzip")]})

    answer = zipped(request, Response(b"a" * 2000, headers={"Vary": "Accept"}))

    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept, Accept-Encoding"
