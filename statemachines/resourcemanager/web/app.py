"""The resource manager's web address as a Starlette app: the REST API, /jmx, pages, the ops API, /metrics, and probes.

Threads: the loop's thread runs all of it. Nothing here waits for a handler thread but with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.metrics.page import render_page
from dispatcher.ops.app import app_of
from dispatcher.ops.config import OpsConfig
from dispatcher.ops.shared import Ops
from dispatcher.supervision.health import HealthAnswer, health
from dispatcher.web.endpoints import guarded, json_answer, router_error, zipped
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.security import describe_write
from dispatcher.web.waiting import Workers
from statemachines.resourcemanager.read.model import ReadModel
from statemachines.resourcemanager.records.web_config import RMWebConfig
from statemachines.resourcemanager.web import jmx, pages, rest
from statemachines.resourcemanager.web.shared import RMWeb
from statemachines.resourcemanager.web.users import UserCookies

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from statemachines.resourcemanager.resource_manager import ResourceManager

OPS: Final = "/ops"
AGE_HEADER: Final = b"x-state-age-ms"
_PAGE_ZIP_LEVEL: Final = 9
_READ_ONLY: Final = "nothing can be changed through this address: it is for reading only (web.read_only)"


def resource_manager_app(
    manager: ResourceManager,
    web: RMWebConfig | None = None,
    ops: OpsConfig | None = None,
) -> Starlette:
    """Return the app for one resource manager, which can still be unstarted. `app.state.rm` is the `RMWeb`.

    `web`: by default, the resource manager's.
    `ops`: configuration of the ops API. By default, the resource manager's, and without the ops API if that isn't
        enabled.

    Your server must run the app's lifespan. Otherwise the first request begins to follow the resource manager, and
    nothing ends it. Without a WebHost, no request has a `Principal`, and so none may change anything.

    Raises:
        ConfigError: the file with the secret of users' cookies is invalid.
    """
    settings, web = manager.settings, web or manager.settings.web
    model = ReadModel(manager, web.refresh_ms)
    rm = RMWeb(model, manager.clients, manager.admin, web, manager.name)
    ops = ops or settings.ops
    routes: list[BaseRoute] = [
        *rest.routes(rm),
        *pages.routes(rm, settings.model_dump(mode="json"), has_ops=ops.enabled),
    ]
    routes.append(jmx.route(rm))
    routes.append(Route("/metrics", guarded(_metrics(manager.registry, rm.workers)), methods=["GET"]))
    routes += [Route(path, _probe(answer), methods=["GET"]) for path, answer in _PROBES.items()]
    parts: Ops | None = None
    if ops.enabled:
        parts = Ops(ops, manager.name, asyncio.Event())
        routes.append(Mount(OPS, app_of(parts)))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        rm.model.follow()
        rm.past.follow()
        try:
            yield
        finally:
            await rm.past.close()
            await rm.model.close()

    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: router_error(rest.remote_exception)},
        middleware=[
            Middleware(_Frame, model=rm.model, is_read_only=web.read_only),
            Middleware(UserCookies, users=rm.users),
        ],
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.rm, app.state.ops = rm, parts
    return app


class _Frame:
    """Around every request: follows the resource manager, tells the state's age, and forgives slashes.

    A client whose endpoint ends in a slash sends two; JAX-RS does not mind one at the end of a path. Refuses all
    changes if the address is for reading only.
    """

    def __init__(self, app: ASGIApp, model: ReadModel, is_read_only: bool) -> None:
        self._app = app
        self._model = model
        self._is_read_only = is_read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._model.follow()
        path: str = scope["path"]
        if path.startswith("//") or (path.endswith("/") and path.lstrip("/").startswith("ws/")):
            path = "/" + path.lstrip("/")
            scope = {**scope, "path": path.rstrip("/") if path.startswith("/ws/") else path}

        async def send_with_age(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (AGE_HEADER, b"%d" % self._model.age_ms())]
                message = {**message, "headers": headers}
            await send(message)

        if self._is_read_only and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            describe_write(scope, reason=_READ_ONLY)
            refused = await rest.remote_exception(Request(scope), Refusal(403, _READ_ONLY))
            await refused(scope, receive, send_with_age)
            return
        await self._app(scope, receive, send_with_age)


_PROBES: Final[Mapping[str, Callable[[], HealthAnswer]]] = {
    "/livez": health.live,
    "/readyz": partial(health.ready, waits_for_checks=False),
    "/healthz": partial(health.ready, waits_for_checks=False),
}


def _probe(answer: Callable[[], HealthAnswer]) -> Callable[[Request], Awaitable[Response]]:
    """As on the port of metrics, which a daemon may do without."""

    async def probe(request: Request) -> Response:
        found = answer()
        return json_answer(found.to_json().encode(), 200 if found.is_ok else 503)

    return probe


def _metrics(registry: CollectorRegistry, workers: Workers) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of /metrics. A page of many series takes long, so it is rendered on a thread."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        names = request.query_params.getlist("name[]") or None

        def render() -> Response:
            page = Response(render_page(registry, encode, names), headers={"Content-Type": content_type})
            return zipped(request, page, _PAGE_ZIP_LEVEL)

        return await workers.run(render)

    return metrics
