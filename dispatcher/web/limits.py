"""ASGI middlewares that bound what one request takes: the size of its body, and the time for the body and the answer.

Threads: the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from dispatcher.web.origins import header_values
from dispatcher.web.plain_answers import SOON, Refusal, Send, with_security_headers
from dispatcher.web.protocol import Peer

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

END: Final = {"Connection": "close"}


class Sender:
    """Sends one answer: adds headers, records the status, and ends the connection of a client that does not read.

    The app calls it; the host calls `deliver`.
    """

    def __init__(self, send: Send, peer: Peer, send_s: float) -> None:
        self._send = send
        self._peer = peer
        self._send_s = send_s
        self.status: int | None = None
        self.is_stream = False
        self.is_over = False  # complete, or given up
        self.is_taken_over = False  # the host answers instead of the app

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if not self.is_taken_over and not self.is_over:
            await self.deliver(message)

    async def deliver(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            headers = with_security_headers(message.get("headers", ()))
            content_type = next((value for name, value in headers if name.lower() == b"content-type"), b"")
            self.is_stream = content_type.startswith(b"text/event-stream")
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_over = True
        try:
            # Refusals too: a client that sends many requests at once and reads no answer would keep its place for ever.
            async with asyncio.timeout(self._send_s):
                await self._send(message)
        except TimeoutError:
            self.give_up()

    def give_up(self) -> None:
        """End the connection in the middle of an answer."""
        self.is_over = True
        self._peer.transport.abort()


class BodyLimit:
    """Reads the body of a request before it calls the app. The body of a GET is thrown away.

    Raises Refusal: the body is too long (413), does not arrive in time (408), or is cut off (400).
    """

    def __init__(self, app: App, most_bytes: int, deadline_s: float) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._deadline_s = deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Sender) -> None:
        body = b""
        if has_body(scope):
            try:
                async with asyncio.timeout(self._deadline_s):
                    body = await self._read(scope, receive)
            except TimeoutError:
                raise Refusal(408, f"the body did not arrive within {self._deadline_s:g} s", END) from None
        await self._app(scope, _Body(body if scope["method"] not in ("GET", "HEAD") else b"", receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        too_long = Refusal(413, f"the body is longer than {self._most_bytes:,} bytes")
        [declared, *_] = header_values(scope["headers"], b"content-length") or ["0"]
        if int(declared) > self._most_bytes:
            raise too_long
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the client disconnected before the end of the body")
            body += message.get("body", b"")
            if len(body) > self._most_bytes:
                raise too_long
            if not message.get("more_body", False):
                return bytes(body)


def has_body(scope: Scope) -> bool:
    """Whether the headers of a request announce a body."""
    headers = scope["headers"]
    return bool(header_values(headers, b"transfer-encoding")) or header_values(headers, b"content-length") not in (
        [],
        ["0"],
    )


class _Body:
    """A `receive` that returns a body already read, and then waits for the client to disconnect."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message


class Deadline:
    """Runs the app until it has answered or its time is over. A stream of events may go on.

    A late call is cancelled, but not awaited: it may ignore the cancellation, or wait for a thread. `scope["call"]` is
    the call's task.

    Raises Refusal: the answer is late (503). Otherwise what the app raises.
    """

    def __init__(self, app: App, deadline_s: float) -> None:
        self._app = app
        self._deadline_s = deadline_s
        self._calls: set[asyncio.Future[Any]] = set()  # the loop keeps no reference to a task

    async def __call__(self, scope: Scope, receive: Receive, send: Sender) -> None:
        call = asyncio.ensure_future(_caught(self._app(scope, receive, send)))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        scope["call"] = call
        try:
            await asyncio.wait((call,), timeout=self._deadline_s)
            if send.is_stream:
                await asyncio.wait((call,))
        finally:
            if not call.done():
                call.cancel()
                send.is_taken_over = True
        if not call.done():
            raise Refusal(503, f"no answer within {self._deadline_s:g} s", {**SOON, **END})
        with suppress(asyncio.CancelledError):
            error = call.result()
            if error is not None:
                raise error


async def _caught(running: Awaitable[None]) -> BaseException | None:
    """What the app raises, even SystemExit, which would end the loop."""
    try:
        await running
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return error
    return None
