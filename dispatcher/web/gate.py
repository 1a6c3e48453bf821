"""The ASGI layer around the app: limits, origin checks, users, response headers and the audit log.

Threads: the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from dispatcher.util.foreign import describe, tell
from dispatcher.util.http_heads import origin_form
from dispatcher.web import login
from dispatcher.web.config import WebConfig
from dispatcher.web.login import Identities, LoginPage
from dispatcher.web.origins import foreign_site, header, header_values, is_form, is_json, is_own_host, is_own_page
from dispatcher.web.plain_answers import (
    SOON,
    ErrorBody,
    Refusal,
    Send,
    header_pairs,
    plain_error,
    send_answer,
    with_security_headers,
)
from dispatcher.web.protocol import Peer
from dispatcher.web.security import Principal, WriteNote, audit
from dispatcher.web.waiting import Pace

log = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

_RETRY_LATER: Final = {"Retry-After": "5"}
_END: Final = {"Connection": "close"}
_HTML: Final = b"text/html; charset=utf-8"


class _Sender:
    """Sends one answer: adds headers, records the status, and gives up a stream whose client does not read.

    The app calls it; the gate calls `deliver`.
    """

    def __init__(self, send: Send, peer: Peer, send_s: float) -> None:
        self._send = send
        self._peer = peer
        self._send_s = send_s
        self.status: int | None = None
        self.is_stream = False
        self.is_over = False  # complete, or given up
        self.is_taken_over = False  # the gate answers instead of the app, which is late

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
        if not self.is_stream:
            await self._send(message)
            return
        try:
            await asyncio.wait_for(self._send(message), self._send_s)
        except TimeoutError:
            await self.give_up()

    async def give_up(self) -> None:
        """End the connection in the middle of an answer."""
        self.is_over = True
        self._peer.transport.abort()
        for _ in range(10):  # uvicorn learns of it in one of the loop's next turns
            if self._peer.is_lost:
                break
            await asyncio.sleep(0)


class Gate:
    """An ASGI app around the app.

    `is_stopping` tells whether the daemon has begun to stop. `extras` go into the scope of each request. `takes_form`
    tells for which paths a body may be an HTML form's instead of JSON; only our own pages can send one.
    """

    def __init__(
        self,
        app: App,
        settings: WebConfig,
        identities: Identities,
        is_stopping: Callable[[], bool],
        extras: Mapping[str, Any],
        error_body: ErrorBody = plain_error,
        takes_form: Callable[[str], bool] = lambda _: False,
        site: str = "",
        style_sheet: str = "",
    ) -> None:
        self._app = app
        self._settings = settings
        self._identities = identities
        self._is_stopping = is_stopping
        self._extras = extras
        self._error_body = error_body
        self._takes_form = takes_form
        self._login = LoginPage(identities, settings.session_s, site, style_sheet) if identities.has_login else None
        self._allowed = frozenset(each.lower() for each in settings.allowed_hosts)
        self._writes = 0
        self._pace = Pace(settings.requests_per_s)
        self._under_way: set[asyncio.Future[None]] = set()  # one for each request that waits for its turn or the app
        self._tasks: set[asyncio.Task[BaseException | None]] = set()  # the app's; a late one outlives its request
        self._has_ended = False  # the loop's thread only; once True, what still waits is woken without an answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        await self._wait_for_turn()
        _take_host_from_target(scope)
        peer = Peer.of(scope)
        sender = _Sender(send, peer, self._settings.request_deadline_s)
        is_write = scope["method"] not in ("GET", "HEAD")
        note = WriteNote(scope["method"], scope["path"])
        cookie_name = login.cookie_name_of(scope)
        principal = self._identities.find(scope["headers"], peer, cookie_name)
        has_session = not peer.is_local and self._identities.has_session(scope["headers"], cookie_name)
        scope.update(self._extras, principal=principal, audit=note, has_session=has_session)
        try:
            self._check_request(scope, peer, is_write)
            if self._login is not None and scope["path"] in login.PATHS:
                principal = await self._log_in(self._login, scope, receive, sender, note) or principal
                return
            if principal is None:
                raise login.not_logged_in(scope["headers"], scope["path"], self._login is not None)
            await self._pass_on(scope, receive, sender, is_write)
        except Refusal as refusal:
            note.reason = note.reason or refusal.reason
            body = self._error_body(scope["path"], refusal.status, refusal.reason)
            await send_answer(sender.deliver, refusal.status, body, refusal.pairs)
        finally:
            if is_write:
                audit(principal.name if principal is not None else "-", peer.address, note, sender.status)

    def end_requests(self) -> None:
        """Wake every request that waits: the host has stopped."""
        self._has_ended = True
        for each in self._under_way:
            _wake(each)

    # -- before the app ------------------------------------------------------------------------------------------------

    async def _wait_for_turn(self) -> None:
        delay_s = self._pace.take_turn()
        if delay_s <= 0:
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._under_way.add(turn)
        timer = loop.call_later(delay_s, _wake, turn)
        try:
            await turn
        finally:
            timer.cancel()
            self._under_way.discard(turn)

    def _check_request(self, scope: Scope, peer: Peer, is_write: bool) -> None:
        headers = scope["headers"]
        size = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
        if size + sum(len(name) + len(value) + 4 for name, value in headers) > self._settings.header_bytes:
            most = self._settings.header_bytes
            raise Refusal(431, f"the request line with the headers is longer than {most:,} bytes", _END)
        if not peer.is_local and not is_own_host(header(headers, b"host"), peer.door_address, self._allowed):
            raise Refusal(421, "the Host header does not name this door; add its name to web.allowed_hosts", _END)
        foreign = foreign_site(headers, scope["scheme"]) if is_write else None
        if foreign is not None:
            raise Refusal(403, foreign)

    async def _log_in(
        self, page: LoginPage, scope: Scope, receive: Receive, sender: _Sender, note: WriteNote
    ) -> Principal | None:
        headers, path, cookie_name = scope["headers"], scope["path"], login.cookie_name_of(scope)
        allowed = {login.SHEET: ("GET", "HEAD"), login.LOGOUT: ("POST",), login.PATH: ("GET", "HEAD", "POST")}[path]
        if scope["method"] not in allowed:
            raise Refusal(405, f"only {' and '.join(allowed)}", {"Allow": ", ".join(allowed)})
        if path == login.SHEET:
            await send_answer(sender.deliver, 200, page.style_sheet, (), b"text/css; charset=utf-8")
            return None
        if scope["method"] != "POST":
            user = scope["principal"].name if scope["has_session"] else None
            await send_answer(sender.deliver, 200, page.show(scope["query_string"], user), (), _HTML)
            return None
        note.operation, note.target = path[1:], path
        body = await self._body(scope, receive)
        if path == login.LOGOUT:
            await send_answer(sender.deliver, 303, b"", page.log_out(headers, cookie_name))
            return None
        try:
            principal, target, cookie = page.answer(headers, body, cookie_name, scope["scheme"])
        except Refusal as refusal:
            if not (is_form(headers) and login.wants_page(headers)):
                raise
            note.reason = refusal.reason
            shown = page.show(body, problem=f"{refusal.reason[:1].upper()}{refusal.reason[1:]}.")
            await send_answer(sender.deliver, refusal.status, shown, refusal.pairs, _HTML)
            return None
        await send_answer(sender.deliver, 303, b"", [(b"location", target.encode()), *cookie])
        return principal

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body. A GET's has no meaning: it is read and thrown away."""
        headers, most = scope["headers"], self._settings.body_bytes
        lengths = header_values(headers, b"content-length")
        if not header_values(headers, b"transfer-encoding") and lengths in ([], ["0"]):
            return b""
        too_long = f"the body is longer than {most:,} bytes"
        declared = int(lengths[0]) if len(lengths) == 1 and lengths[0].isdigit() else None
        if declared is not None and declared > most:
            raise Refusal(413, too_long)
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.request_deadline_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the client disconnected before the end of the body")
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise Refusal(413, too_long)
                    if not message.get("more_body", False):
                        return bytes(body) if scope["method"] not in ("GET", "HEAD") else b""
        except TimeoutError:
            late = f"the body did not arrive within {self._settings.request_deadline_s:g} s"
            raise Refusal(408, late, _END) from None

    # -- around the app ------------------------------------------------------------------------------------------------

    async def _pass_on(self, scope: Scope, receive: Receive, sender: _Sender, is_write: bool) -> None:
        if not is_write:
            await self._run(scope, _Body(await self._body(scope, receive), receive), sender, is_write)
            return
        if self._is_stopping():
            raise Refusal(503, "the daemon is stopping", _RETRY_LATER)
        if self._writes >= self._settings.writes:
            raise Refusal(429, f"{self._settings.writes} requests other than GET and HEAD are in flight", SOON)
        self._writes += 1
        is_handed_over = False
        try:
            body = await self._body(scope, receive)
            self._check_type(scope, body)
            if self._is_stopping():  # it may have begun while the body came
                raise Refusal(503, "the daemon is stopping", _RETRY_LATER)
            is_handed_over = True
            await self._run(scope, _Body(body, receive), sender, is_write)
        finally:
            if not is_handed_over:
                self._writes -= 1

    def _check_type(self, scope: Scope, body: bytes) -> None:
        headers = scope["headers"]
        if not body or is_json(headers):
            return
        if not (is_form(headers) and self._takes_form(scope["path"])):
            raise Refusal(415, "the body must be application/json")
        # Another site's page can send a form as well, and a very old browser would not say that it did.
        if not is_own_page(headers, scope["scheme"]):
            raise Refusal(403, "neither Origin nor Sec-Fetch-Site says that a page of this door sent the form")

    async def _run(self, scope: Scope, receive: Receive, sender: _Sender, is_write: bool) -> None:
        """Run the app until it has answered, its deadline passes, or the host stops.

        A late call is cancelled and abandoned. An abandoned write counts until it ends.
        """
        loop = asyncio.get_running_loop()
        is_done: asyncio.Future[None] = loop.create_future()

        def ended(task: asyncio.Task[BaseException | None]) -> None:
            self._tasks.discard(task)
            self._writes -= is_write
            _wake(is_done)

        def time_is_over() -> None:
            if not sender.is_stream:
                _wake(is_done)

        task = loop.create_task(_caught(self._app(scope, receive, sender)))
        self._tasks.add(task)
        task.add_done_callback(ended)
        self._under_way.add(is_done)
        timer = loop.call_later(self._settings.request_deadline_s, time_is_over)
        try:
            await is_done
        finally:
            timer.cancel()
            self._under_way.discard(is_done)
        if not task.done():
            task.cancel()
            await self._end_late(scope, sender)
        elif not task.cancelled():
            await self._end_failed(scope, sender, task.result())

    async def _end_late(self, scope: Scope, sender: _Sender) -> None:
        if sender.status is not None:
            await sender.give_up()
            return
        reason = (
            "the daemon stopped before the answer"
            if self._has_ended
            else f"no answer within {self._settings.request_deadline_s:g} s"
        )
        scope["audit"].reason = reason
        sender.is_taken_over = True
        await send_answer(
            sender.deliver, 503, self._error_body(scope["path"], 503, reason), header_pairs({**SOON, **_END})
        )

    async def _end_failed(self, scope: Scope, sender: _Sender, error: BaseException | None) -> None:
        if error is not None:
            tell(log, logging.ERROR, "%s %s: the app failed", scope["method"], scope["path"], error=error)
            scope["audit"].reason = describe(error)
        if sender.status is None:
            reason = "the app failed; the daemon's log has its traceback"
            await send_answer(sender.deliver, 500, self._error_body(scope["path"], 500, reason))
        elif not sender.is_over:
            await sender.give_up()


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


def _take_host_from_target(scope: Scope) -> None:
    """Make a request whose target is a URL one for its path, with the URL's host as the header Host."""
    host, target = origin_form(scope["raw_path"].decode("latin-1"))
    if host is not None:
        scope["path"], scope["raw_path"] = unquote(target), target.encode("latin-1")
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope["headers"] = [(b"host", host.encode("latin-1")), *others]


async def _caught(running: Awaitable[None]) -> BaseException | None:
    """What the app raises, even SystemExit, which would end the loop."""
    try:
        await running
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return error
    return None


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
