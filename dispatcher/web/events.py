"""Streams of server-sent events: limited in number, and ended when the host stops or the user loses its access.

Needs the extra `web`.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from dispatcher.util.functions import require_kind
from dispatcher.web.endpoints import json_answer
from dispatcher.web.host import WebHost
from dispatcher.web.plain_answers import error_line

COMMENT: Final = b": still here\n\n"
"""Sent after a silence, so that proxies keep the connection and dead clients are noticed."""
_MOST_STREAMS: Final = 32
CHECK_S: Final = 0.5
"""How often it is asked whether the client is still the user that has opened the stream."""

# By source; each source's is its loop's thread's.
_open_streams: weakref.WeakKeyDictionary[asyncio.Event, int] = weakref.WeakKeyDictionary()


def event_stream(
    source: WebHost | asyncio.Event,
    events: AsyncIterator[bytes],
    *,
    most: int | None = None,
    comment_after_s: float = 15.0,
) -> Response:
    """An answer that sends `events`, each made by `event_bytes`, until the host stops or the client leaves.

    `source` is the host, or the stop event of an app that another server serves; all streams of one source are counted
    together. A client beyond `most` (the host's `event_streams`, or 32) gets 429, and one that comes during a stop 503.
    Under a host, the stream also ends within a second once the client's token is revoked, or its role is another one:
    nothing is sent after that.
    The answer to HEAD has no event, and does not count. `events` is closed at the end, even if it was never started.
    Call it on the loop.
    """
    require_kind(source, "source", WebHost, asyncio.Event)
    stopping = source if isinstance(source, asyncio.Event) else source.stopping
    if most is None:
        most = _MOST_STREAMS if isinstance(source, asyncio.Event) else source.settings.event_streams
    return _EventStream(stopping, events, most, comment_after_s)


def stream_source(request: Request, stopping: asyncio.Event) -> WebHost | asyncio.Event:
    """The host that serves the request; `stopping` where another server does."""
    host = request.scope.get("web_host")
    return host if isinstance(host, WebHost) else stopping


def event_bytes(name: str, data: Any, *, number: int | None = None) -> bytes:
    """One event of a stream, with `data` as JSON; bytes are JSON already, in one line.

    `number` comes back as Last-Event-ID when a client reconnects.
    """
    head = f"event: {name}\n" + (f"id: {number}\n" if number is not None else "") + "data: "
    body = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":"), default=str).encode()
    return head.encode() + body + b"\n\n"


class _EventStream(StreamingResponse):
    media_type = "text/event-stream"

    def __init__(
        self, stopping: asyncio.Event, events: AsyncIterator[bytes], most: int, comment_after_s: float
    ) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._stopping = stopping
        self._events = events
        self._most = most
        self._comment_after_s = comment_after_s
        self._is_same_user: Callable[[], bool] = lambda: True
        self.body_iterator = self._until_stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        count = _open_streams.get(self._stopping, 0)
        try:
            if scope["method"] == "HEAD":  # a stream of nothing would hold the place of a client
                await Response(headers=dict(self.headers))(scope, receive, send)
            elif self._stopping.is_set():
                await _refusal(503, "the daemon is stopping")(scope, receive, send)
            elif count >= self._most:
                await _refusal(429, f"{self._most} streams of events are open already")(scope, receive, send)
            else:
                _open_streams[self._stopping] = count + 1
                identify, principal = scope.get("identify"), scope.get("principal")
                if identify is not None:
                    self._is_same_user = lambda: identify() == principal
                try:
                    await super().__call__(scope, receive, send)
                finally:
                    _open_streams[self._stopping] -= 1
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _until_stop(self) -> AsyncIterator[bytes]:
        yield COMMENT  # the headers leave at once, so the client knows that it is connected
        stop = asyncio.ensure_future(self._stopping.wait())
        following: asyncio.Future[bytes] | None = None
        clock_s = asyncio.get_running_loop().time
        comment_s = clock_s() + self._comment_after_s
        try:
            while True:
                following = following or asyncio.ensure_future(anext(self._events))
                pause_s = max(0.0, min(CHECK_S, comment_s - clock_s()))
                done, _ = await asyncio.wait((stop, following), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                if stop in done or not self._is_same_user():
                    return
                if not done:
                    if clock_s() >= comment_s:
                        comment_s = clock_s() + self._comment_after_s
                        yield COMMENT
                    continue
                try:
                    event = following.result()
                except StopAsyncIteration:
                    return
                following = None
                comment_s = clock_s() + self._comment_after_s
                yield event
        finally:
            stop.cancel()
            if following is not None:
                following.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await following


def _refusal(status: int, reason: str) -> Response:
    return json_answer(error_line(reason), status, {"Retry-After": "5"})
