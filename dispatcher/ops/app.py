"""The ops API and the pages as a Starlette app, to be served by an `OpsDoor` or mounted into an app of the user.

Threads: the loop's thread runs the endpoints. None waits for a handler thread, and work that walks over a queue, a
journal, stacks or entities runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router

from dispatcher.ops import changes, configuration, entities, journal_contents, journals, letters, stacks, waiting
from dispatcher.ops import dispatchers as of_dispatchers
from dispatcher.ops import overview as of_overview
from dispatcher.ops import process as of_process
from dispatcher.ops.answers import Answer, Get, Page, whole
from dispatcher.ops.config import OpsConfig
from dispatcher.ops.controls import LogLevel, log_level_request, stop_daemon
from dispatcher.ops.dispatchers import DispatcherNumbers, all_numbers
from dispatcher.ops.process import process_name
from dispatcher.ops.shared import Ops
from dispatcher.ops.sight import MaySeeOf
from dispatcher.ops.stream import ops_events
from dispatcher.util.functions import require_kind
from dispatcher.util.threads import NO_THREAD
from dispatcher.web.endpoints import Endpoint, answer, guarded, json_answer, router_error
from dispatcher.web.events import event_stream, stream_source
from dispatcher.web.origins import foreign_site
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.security import audited, describe_write, require
from dispatcher.web.waiting import without_thread

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

API: Final = "/v1"
_MOST_BODY: Final = 10_000


def ops_app(
    config: OpsConfig | None = None,
    *,
    name: str | None = None,
    stopping: asyncio.Event | None = None,
    may_see: MaySeeOf | None = None,
) -> Starlette:
    """Return pages and the ops API as an ASGI app: `app.mount("/ops", ops_app())` gives the pages at `/ops/`, and the
    API at `/ops/v1/dispatchers` and so on.

    It shows all dispatchers of the process, even later ones. `name` is the daemon's, in /process. To end open streams,
    set `stopping` on the loop. A WebHost ends them itself.

    `may_see(request)` is awaited on the loop for each request, and returns a function from an entity's id to whether
    the user may see it. Any thread calls that function. For None it says whether the user may see everything, with
    payloads and the messages of failures. By default, everyone may.

    Your server, such as a WebHost, or middleware decides which clients reach the app. `/threads` and the controls need
    a `Principal` of role admin in the request's scope.
    """
    config = config if config is not None else OpsConfig()
    require_kind(config, "config", OpsConfig)
    ops = Ops(config, name or process_name(), stopping or asyncio.Event(), may_see)
    return app_of(ops, [Mount("/", LaterPages(ops, API))])


def app_of(ops: Ops, pages: Sequence[BaseRoute] = ()) -> Starlette:
    """The app around its shared part: the API below `/v1`, and these pages."""
    gets = [*of_process.GETS.items(), *stacks.GETS.items(), *of_dispatchers.GETS.items(), *of_overview.GETS.items()]
    gets += [*letters.GETS.items(), *waiting.GETS.items(), *of_dispatchers.ONE.items()]
    gets += [*entities.GETS.items(), *journals.GETS.items(), *journal_contents.GETS.items()]
    gets += configuration.GETS.items()
    routes = [Route(path, guarded(_reading(ops, get)), methods=["GET"]) for path, get in gets]
    admin = require("admin")
    admin_gets = {**stacks.ADMIN_GETS, **changes.ADMIN_GETS}
    routes += [Route(path, guarded(admin(_reading(ops, get))), methods=["GET"]) for path, get in admin_gets.items()]
    routes.append(Route("/stream", guarded(partial(_stream, ops)), methods=["GET"]))
    routes += [_control(ops, path, function) for path, function in _POSTS.items()]
    app = Starlette(routes=[Mount(API, routes=routes), *pages], exception_handlers={HTTPException: router_error()})
    app.router.redirect_slashes = False
    app.state.ops = ops
    return app


class LaterPages:
    """The pages of one ops API, as an app that imports them with its first request: a daemon starts sooner without.

    The API is at the path `api` of the app that has both. The loop's thread.
    """

    def __init__(self, ops: Ops, api: str) -> None:
        self._ops = ops
        self._api = api
        self._router: Router | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._routes()(scope, receive, send)

    def takes_form(self, path: str) -> bool:
        """Whether a POST to a path is a form of these pages: for a WebHost."""
        from dispatcher.pages.site import takes_form

        return takes_form(self._routes().routes)(path)

    def _routes(self) -> Router:
        if self._router is None:
            from dispatcher.pages.site import Site
            from dispatcher.pages.table import NAV, nothing_at, routes_of

            site = Site(self._ops, NAV, api=self._api)
            self._router = Router(routes_of(site), redirect_slashes=False, default=nothing_at(site))
        return self._router


def _reading(ops: Ops, get: Get) -> Endpoint:
    async def read(request: Request) -> Response:
        found = await get(ops, request)
        return json_answer(found) if isinstance(found, bytes) else answer(found)

    return read


Function = Callable[[Ops, Request], Awaitable[Response]]


# -- the stream --------------------------------------------------------------------------------------------------------


async def _stream(ops: Ops, request: Request) -> Response:
    sight = await ops.sight(request)

    async def numbers() -> bytes:
        """All of /dispatchers as JSON, made once a second for all streams that show as much."""
        nonlocal sight
        sight = await ops.sight(request)  # a user may lose access while the stream is open

        async def make() -> Page[DispatcherNumbers]:
            return whole(await all_numbers(ops, sight))

        return await ops.numbers.make("dispatchers" if sight.is_whole else "dispatchers in part", make)

    return event_stream(stream_source(request, ops.stopping), ops_events(ops.views, numbers, lambda: sight))


# -- controls ----------------------------------------------------------------------------------------------------------


async def _content(request: Request) -> Any:
    """The body's JSON; None: it is too long, or no JSON."""
    body = await request.body()
    try:
        return json.loads(body) if len(body) <= _MOST_BODY else None
    except (ValueError, RecursionError):
        return None


async def _log_level(ops: Ops, request: Request) -> Response:
    name, level, for_s = log_level_request(await _content(request))
    describe_write(request.scope, operation=f"log level {level} for {for_s:g} s", target=name or "root")
    try:
        return answer(LogLevel(logger=name, level=level, before=ops.log_levels.change(name, level, for_s), for_s=for_s))
    except NO_THREAD as error:
        raise without_thread(error) from None


def _of_letters(change: Callable[..., Awaitable[Answer]]) -> Function:
    async def change_letters(ops: Ops, request: Request) -> Response:
        view, wanted = ops.view(request), changes.letters_request(await _content(request))
        return answer(await change(ops, request, view, *wanted))

    return change_letters


async def _cancel(ops: Ops, request: Request) -> Response:
    view, keys = ops.view(request), changes.keys_request(await _content(request))
    return answer(await changes.cancel(ops, request, view, keys))


async def _stop_dispatcher(ops: Ops, request: Request) -> Response:
    return answer(await changes.stop(ops, request, ops.view(request)), 202)


async def _stop(ops: Ops, request: Request) -> Response:
    describe_write(request.scope, operation="stop", target=ops.name)
    try:
        return answer(stop_daemon(), 202)
    except NO_THREAD as error:
        raise without_thread(error) from None


def _control(ops: Ops, path: str, function: Function) -> Route:
    """A route of role admin, only with `ops.control`; audited here where no WebHost does it."""

    @require("admin")
    async def allowed(request: Request) -> Response:
        if not ops.config.control:
            raise Refusal(403, "controls are switched off; set ops.control: true")
        # A web host has looked at this already; another server has not.
        if (foreign := foreign_site(request.scope["headers"], request.scope["scheme"])) is not None:
            raise Refusal(403, foreign)
        return await function(ops, request)

    return Route(path, audited(guarded(allowed)), methods=["POST"])


_POSTS: Final[dict[str, Function]] = {
    "/log-level": _log_level,
    "/dispatchers/{name:path}/redeliver": _of_letters(changes.redeliver),
    "/dispatchers/{name:path}/discard": _of_letters(changes.discard),
    "/dispatchers/{name:path}/cancel": _cancel,
    "/dispatchers/{name:path}/stop": _stop_dispatcher,
    "/stop": _stop,
}
