"""The ASGI layer around the app: who may enter, origin checks, response headers and the audit log.

Threads: the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from dispatcher.util.foreign import describe, tell
from dispatcher.util.http_heads import origin_form
from dispatcher.web.config import WebConfig
from dispatcher.web.identities import Identities, NotIdentified
from dispatcher.web.limits import END, App, BodyLimit, Deadline, Receive, Scope, Sender, has_body
from dispatcher.web.origins import foreign_site, header, header_values, is_form, is_json, is_own_host, is_own_page
from dispatcher.web.plain_answers import SOON, ErrorBody, Refusal, Send, send_answer
from dispatcher.web.protocol import Peer
from dispatcher.web.security import WriteNote, audit
from dispatcher.web.waiting import Pace

log: logging.Logger = logging.getLogger(__name__)

_FAILED: Final = Refusal(500, "the app failed; the daemon's log has its traceback")
_STOPPING: Final = Refusal(503, "the daemon is stopping", {"Retry-After": "5"})


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
        error_body: ErrorBody,
        takes_form: Callable[[str], bool],
        open_paths: Collection[str],
    ) -> None:
        self._app = app
        self._settings = settings
        self._identities = identities
        self._is_stopping = is_stopping
        self._extras = extras
        self._error_body = error_body
        self._takes_form = takes_form
        self._open_paths = open_paths
        self._allowed = frozenset(each.lower() for each in settings.allowed_hosts)
        self._writes = 0
        self._pace = Pace(settings.requests_per_s)
        within_s = settings.request_deadline_s
        self._bounded = BodyLimit(Deadline(self._enter, within_s), settings.body_bytes, within_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        _take_host_from_target(scope)
        peer = Peer.of(scope)
        sender = Sender(send, peer, self._settings.request_deadline_s)
        is_write = scope["method"] not in ("GET", "HEAD")
        note = WriteNote(scope["method"], scope["path"])
        identify = partial(self._identities.find, scope["headers"], peer)
        principal = identify()
        scope.update(self._extras, principal=principal, identify=identify, audit=note)
        try:
            try:
                await self._answer(scope, receive, sender, is_write)
            except Refusal as refusal:
                await self._refuse(scope, sender, refusal)
        except asyncio.CancelledError:  # the connection is closed already
            note.reason = "the daemon stopped before the answer"
        except BaseException as error:
            tell(log, logging.ERROR, "%s %s: the app failed", scope["method"], scope["path"], error=error)
            note.reason = describe(error)
            await self._refuse(scope, sender, _FAILED)
        finally:
            if is_write:
                audit(principal.name if principal is not None else "-", peer.address, note, sender.status)

    async def _refuse(self, scope: Scope, sender: Sender, refusal: Refusal) -> None:
        if sender.status is not None:
            if not sender.is_over:
                sender.give_up()
            return
        scope["audit"].reason = scope["audit"].reason or refusal.reason
        body = self._error_body(scope["path"], refusal.status, refusal.reason)
        await send_answer(sender.deliver, refusal.status, body, refusal.pairs)

    async def _answer(self, scope: Scope, receive: Receive, sender: Sender, is_write: bool) -> None:
        delay_s = self._pace.take_turn()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        is_open = not is_write and scope["path"] in self._open_paths
        self._check_request(scope, is_write, is_open=is_open)
        if scope["principal"] is None and not is_open:
            raise NotIdentified
        if not is_write:
            await self._bounded(scope, receive, sender)
        else:
            await self._write(scope, receive, sender)
        if not sender.is_over:
            await self._refuse(scope, sender, _FAILED)

    async def _write(self, scope: Scope, receive: Receive, sender: Sender) -> None:
        self._check_stopping(scope)
        self._check_type(scope)
        if self._writes >= self._settings.writes:
            raise Refusal(429, f"{self._settings.writes} requests other than GET and HEAD are in flight", SOON)
        self._writes += 1
        try:
            await self._bounded(scope, receive, sender)
        finally:
            call: asyncio.Future[Any] | None = scope.get("call")
            if call is None or call.done():
                self._writes -= 1
            else:  # an abandoned call counts until it ends
                call.add_done_callback(self._end_write)

    def _end_write(self, _: object) -> None:
        self._writes -= 1

    async def _enter(self, scope: Scope, receive: Receive, sender: Sender) -> None:
        """Call the app, unless the stop has begun while the body arrived."""
        self._check_stopping(scope)
        await self._app(scope, receive, sender)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_stopping(self, scope: Scope) -> None:
        if scope["method"] not in ("GET", "HEAD") and self._is_stopping():
            raise _STOPPING

    def _check_request(self, scope: Scope, is_write: bool, *, is_open: bool) -> None:
        headers, peer = scope["headers"], Peer.of(scope)
        size = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
        if size + sum(len(name) + len(value) + 4 for name, value in headers) > self._settings.header_bytes:
            most = self._settings.header_bytes
            raise Refusal(431, f"the request line with the headers is longer than {most:,} bytes", END)
        host = header(headers, b"host")
        needs_host = not peer.is_local and not (is_open and not header_values(headers, b"host"))
        if needs_host and not is_own_host(host, peer.door_address, self._allowed):
            raise Refusal(421, "the Host header does not name this door; add its name to web.allowed_hosts", END)
        foreign = foreign_site(headers, scope["scheme"]) if is_write else None
        if foreign is not None:
            raise Refusal(403, foreign)

    def _check_type(self, scope: Scope) -> None:
        headers = scope["headers"]
        if not has_body(scope) or is_json(headers):
            return
        if not (is_form(headers) and self._takes_form(scope["path"])):
            raise Refusal(415, "the body must be application/json")
        # Another site's page can send a form as well, and a very old browser would not say that it did.
        if not is_own_page(headers, scope["scheme"]):
            raise Refusal(403, "neither Origin nor Sec-Fetch-Site says that a page of this door sent the form")


def _take_host_from_target(scope: Scope) -> None:
    """Make a request whose target is a URL one for its path, with the URL's host as the header Host."""
    host, target = origin_form(scope["raw_path"].decode("latin-1"))
    if host is not None:
        scope["path"], scope["raw_path"] = unquote(target), target.encode("latin-1")
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope["headers"] = [(b"host", host.encode("latin-1")), *others]
