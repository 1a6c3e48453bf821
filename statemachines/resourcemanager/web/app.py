"""The resource manager's web address as a Starlette app: the REST API, /jmx, pages, the ops API, /metrics, and probes.

Threads: the loop's thread runs all of it. Nothing here waits for a handler thread but with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.ops.app import API, app_of
from dispatcher.ops.config import OpsConfig
from dispatcher.ops.probes import probe_routes
from dispatcher.ops.shared import Ops
from dispatcher.pages.site import takes_form
from dispatcher.supervision.health import HealthAnswer, HealthReason, health
from dispatcher.util.functions import require_methods
from dispatcher.web.endpoints import router_error
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.security import describe_write
from statemachines.resourcemanager.read.model import ReadModel
from statemachines.resourcemanager.read.series import ClusterSeries
from statemachines.resourcemanager.records.web_config import RMWebConfig
from statemachines.resourcemanager.web import jmx, pages, rest
from statemachines.resourcemanager.web.shared import RMWeb
from statemachines.resourcemanager.web.users import UserCookies
from statemachines.resourcemanager.web.visibility import may_see

if TYPE_CHECKING:
    from statemachines.resourcemanager.resource_manager import ResourceManager

OPS: Final = "/ops"
AGE_HEADER: Final = b"x-state-age-ms"
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
    """
    require_methods(manager, "manager", "a ResourceManager", "is_ending")
    settings, web = manager.settings, web or manager.settings.web
    model = ReadModel(manager, web.refresh_ms)
    manager.show_metrics("series", ClusterSeries(manager, model))
    rm = RMWeb(model, manager.clients, manager.admin, web, manager.name)
    ops = ops or settings.ops
    parts = Ops(ops, manager.name, asyncio.Event(), partial(may_see, rm))
    of_pages = pages.routes(rm, parts, OPS + API)
    routes: list[BaseRoute] = [*rest.routes(rm), *of_pages, jmx.route(rm)]
    ready = partial(_ready, model, HealthReason("starting", service=f"{manager.name}-door"))
    routes += probe_routes(manager.registry, rm.workers, ready)
    if ops.enabled:
        routes.append(Mount(OPS, app_of(parts)))
    else:
        parts.close()  # nobody asks for samples

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        rm.model.follow()
        rm.past.follow()
        rm.wait_groups.follow()
        try:
            yield
        finally:
            await rm.wait_groups.close()
            await rm.past.close()
            await rm.model.close()

    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: router_error(rest.remote_exception)},
        middleware=[
            Middleware(_RequestFrame, model=rm.model, is_read_only=web.read_only),
            Middleware(UserCookies, users=rm.users),
        ],
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.rm, app.state.ops, app.state.takes_form = rm, parts, takes_form(of_pages)
    return app


class _RequestFrame:
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


def _ready(model: ReadModel, unpublished: HealthReason) -> HealthAnswer:
    """The readiness of the process, which also waits until REST and pages have something to show."""
    return health.ready(waits_for_checks=False, also=() if model.number else (unpublished,))
