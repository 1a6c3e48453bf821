"""The ops API as a Starlette app, to be served by an `OpsDoor` or mounted into an app of the user.

Threads: the loop's thread runs the endpoints. None waits for a handler thread, and work that walks over a queue, a
journal, stacks or entities runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from dispatcher.ops import dispatchers as of_dispatchers
from dispatcher.ops import entities, journals, stacks
from dispatcher.ops import process as of_process
from dispatcher.ops.answers import Get, Page, whole
from dispatcher.ops.config import OpsConfig
from dispatcher.ops.controls import LogLevel, log_level_request, redeliver_letters, redelivery_request, stop_daemon
from dispatcher.ops.dispatchers import DispatcherNumbers, all_numbers
from dispatcher.ops.process import process_name
from dispatcher.ops.shared import Ops
from dispatcher.ops.stream import ops_events
from dispatcher.util.threads import NO_THREAD
from dispatcher.web.endpoints import Endpoint, answer, guarded, json_answer, router_error
from dispatcher.web.events import event_stream, stream_source
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.security import Principal, WriteNote, audit, describe_write, require
from dispatcher.web.waiting import without_thread

_MOST_BODY: Final = 10_000


def ops_app(
    config: OpsConfig | None = None, *, name: str | None = None, stopping: asyncio.Event | None = None
) -> Starlette:
    """Return the ops API as an ASGI app: `app.mount("/ops", ops_app())` gives `/ops/v1/dispatchers` and so on.

    It shows all dispatchers of the process, even later ones. `name` is the daemon's, in /process. To end open streams,
    set `stopping` on the loop. A WebHost ends them itself.

    Your server, such as a WebHost, or middleware decides which clients reach the app. `/threads` and the controls need
    a `Principal` of role admin in the request's scope.
    """
    return app_of(Ops(config or OpsConfig(), name or process_name(), stopping or asyncio.Event()))


def app_of(ops: Ops) -> Starlette:
    """The app around its shared part."""
    gets = [*of_process.GETS.items(), *stacks.GETS.items(), *of_dispatchers.GETS.items(), *of_dispatchers.ONE.items()]
    gets += [*entities.GETS.items(), *journals.GETS.items()]
    routes = [Route(path, guarded(_reading(ops, get)), methods=["GET"]) for path, get in gets]
    admin = require("admin")
    routes += [
        Route(path, guarded(admin(_reading(ops, get))), methods=["GET"]) for path, get in stacks.ADMIN_GETS.items()
    ]
    routes.append(Route("/stream", guarded(partial(_stream, ops)), methods=["GET"]))
    routes += [_control(ops, path, function) for path, function in _POSTS.items()]
    app = Starlette(routes=[Mount("/v1", routes=routes)], exception_handlers={HTTPException: router_error()})
    app.router.redirect_slashes = False
    app.state.ops = ops
    return app


def _reading(ops: Ops, get: Get) -> Endpoint:
    async def read(request: Request) -> Response:
        found = await get(ops, request)
        return json_answer(found) if isinstance(found, bytes) else answer(found)

    return read


Function = Callable[[Ops, Request], Awaitable[Response]]


# -- the stream --------------------------------------------------------------------------------------------------------


async def _stream(ops: Ops, request: Request) -> Response:
    async def numbers() -> bytes:
        """All of /dispatchers as JSON, made once a second for all streams."""

        async def make() -> Page[DispatcherNumbers]:
            return whole(await all_numbers(ops))

        return await ops.numbers.make("dispatchers", make)

    return event_stream(stream_source(request, ops.stopping), ops_events(ops.views, numbers))


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


async def _redeliver(ops: Ops, request: Request) -> Response:
    view = ops.view(request)
    numbers, journal_id = redelivery_request(await _content(request))
    describe_write(request.scope, operation=f"redeliver {len(numbers)} dead letters", target=view.name)
    return answer(await ops.scans.run(lambda: redeliver_letters(view, numbers, journal_id)))


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
        return await function(ops, request)

    answering = guarded(allowed)

    async def audited(request: Request) -> Response:
        is_ours = "audit" not in request.scope
        note = request.scope.setdefault("audit", WriteNote(request.method, request.url.path))
        response = await answering(request)
        if is_ours:
            principal = request.scope.get("principal")
            user = principal.name if isinstance(principal, Principal) else "-"
            audit(user, request.client.host if request.client else "-", note, response.status_code)
        return response

    return Route(path, audited, methods=["POST"])


_POSTS: Final[dict[str, Function]] = {
    "/log-level": _log_level,
    "/dispatchers/{name:path}/redeliver": _redeliver,
    "/stop": _stop,
}
