"""Long lists as JSON, made and sent in pieces: no piece holds up other requests, or the handlers, for long.

The loop's thread.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import chain
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dispatcher.web.endpoints import ZIP_LEVEL, wants_gzip
from statemachines.resourcemanager.web.rest.rest_endpoints import JSON, json_answer
from statemachines.resourcemanager.web.shared import RMWeb

PIECE_NS: Final = 3_000_000
"""How long one piece may take to make."""
PIECE_BYTES: Final = 1 << 19
"""Beside a busy handler, each piece costs several waits of 5 ms for the interpreter, so there should be few."""
FIRST: Final = 2
"""The first piece may take this many times as long: a hundred applications that have all changed are one answer then,
and a stream costs more of the interpreter than a millisecond or two."""
_LOOK_EVERY: Final = 16
"""Items between two looks at the clock."""
_REST: Final = 3
"""After each piece the loop's thread rests for this many times as long as the piece took, for the handlers' sake: while
one of them waits for the interpreter, every piece delays it."""
_GZIP: Final = 16 + zlib.MAX_WBITS


async def list_answer(request: Request, rm: RMWeb, outer: str, inner: str, items: Iterable[bytes | None]) -> Response:
    """`{"outer": {"inner": [...]}}` of items that are JSON already. None is an item that was left out.

    A list that is made within one piece is one answer; a longer one is a stream, which may fail half-way.
    """
    pieces = _pieces(items)
    first = next(pieces)
    second = next(pieces, None)
    if second is None:
        if not first and rm.config.empty_as_null:
            return json_answer(b'{"%s":null}' % outer.encode())
        return json_answer(b'{"%s":{"%s":[%s]}}' % (outer.encode(), inner.encode(), first))
    is_zipped = wants_gzip(request)
    headers = {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if is_zipped else {})
    if request.method == "HEAD":
        return Response(b"", 200, headers, JSON)
    texts = _whole(rm, outer, inner, chain((first, second), pieces))
    body = _zipped(texts) if is_zipped else texts
    return StreamingResponse(body, 200, headers, JSON)


def _pieces(items: Iterable[bytes | None]) -> Iterator[bytes]:
    """The items with commas between them, in texts of at most about PIECE_BYTES; at least one text."""
    parts: list[bytes] = []
    size, is_first = 0, True
    until_ns = time.perf_counter_ns() + FIRST * PIECE_NS
    for number, item in enumerate(items, 1):
        if item is not None:
            parts.append(item)
            size += len(item)
        if size >= PIECE_BYTES or (number % _LOOK_EVERY == 0 and time.perf_counter_ns() >= until_ns):
            text = b",".join(parts)
            yield b"," + text if text and not is_first else text
            is_first = is_first and not text
            parts.clear()
            size, until_ns = 0, time.perf_counter_ns() + PIECE_NS
    text = b",".join(parts)
    if text or is_first:
        yield b"," + text if text and not is_first else text


async def _whole(rm: RMWeb, outer: str, inner: str, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The text of the list, and a rest after each piece."""
    is_empty, head = True, b'{"%s":{"%s":[' % (outer.encode(), inner.encode())
    while True:
        begun_ns = time.thread_time_ns()
        piece = next(pieces, None)
        if piece is None:
            break
        if piece:
            yield head + piece if is_empty else piece
            is_empty = False
        await asyncio.sleep(_REST * (time.thread_time_ns() - begun_ns) / 1e9)
    if not is_empty:
        yield b"]}}"
    elif rm.config.empty_as_null:
        yield b'{"%s":null}' % outer.encode()
    else:
        yield head + b"]}}"


async def _zipped(texts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The compression lets other threads run."""
    packer = zlib.compressobj(ZIP_LEVEL, zlib.DEFLATED, _GZIP)
    async for text in texts:
        packed = packer.compress(text)
        if packed:
            yield packed
    yield packer.flush()
