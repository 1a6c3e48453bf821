"""The door of a daemon: the ops API, served by a web host of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount

from dispatcher.ops.app import ops_app
from dispatcher.ops.config import OpsConfig
from dispatcher.ops.process import process_name
from dispatcher.service import CompositeService
from dispatcher.web.config import WebConfig
from dispatcher.web.endpoints import router_error
from dispatcher.web.host import WebHost

PREFIX: Final = "/ops"


class OpsDoor(CompositeService):
    """Serves the ops API at `/ops/v1`, on a Unix socket of the daemon's user, and on TCP if you configure it in `web`.

    Add it to a daemon first, to start before the dispatchers and stop after them. It shows every dispatcher of the
    process, even later ones.

    `name`: the daemon's name, in /process and in the socket's name. By default, the program's.

    Raises:
        ConfigError, DispatcherError: from `start`, as a WebHost.
    """

    is_door: Final = True

    def __init__(
        self, config: OpsConfig | None = None, web: WebConfig | None = None, *, name: str | None = None
    ) -> None:
        name = name or process_name()
        super().__init__(f"{name}-door")
        app = ops_app(config, name=name)
        self._ops = app.state.ops
        outer = Starlette(routes=[Mount(PREFIX, app)], exception_handlers={HTTPException: router_error()})
        outer.router.redirect_slashes = False
        self.host = WebHost(outer, web, name=name)
        self.add_service(self.host)

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket, once started."""
        return self.host.socket_path

    @property
    def url(self) -> str | None:
        """The API's TCP address, once started, or None without TCP."""
        return None if self.host.url is None else f"{self.host.url}{PREFIX}/v1"

    def service_stop(self) -> None:
        try:
            super().service_stop()
        finally:
            self._ops.close()
