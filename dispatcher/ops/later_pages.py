"""The pages as an ASGI app that imports them with the first request: a daemon starts sooner without their templates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Router

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from dispatcher.ops.shared import Ops


class LaterPages:
    """The pages of one ops API, which is at the path `api` of the app that has both. The loop's thread."""

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
