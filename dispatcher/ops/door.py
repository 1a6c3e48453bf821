"""The door of a daemon: its pages, the ops API, /metrics and the probes, served by a web host of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount

from dispatcher.ops.app import API, LaterPages, app_of
from dispatcher.ops.config import OpsConfig
from dispatcher.ops.probes import PROBES, probe_routes
from dispatcher.ops.process import process_name
from dispatcher.ops.shared import Ops
from dispatcher.ops.sight import MaySeeOf
from dispatcher.service import CompositeService, Service
from dispatcher.supervision.health import health, watch_whole
from dispatcher.util.functions import require_kind, require_methods
from dispatcher.web.config import WebConfig
from dispatcher.web.endpoints import router_error
from dispatcher.web.host import WebHost

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PREFIX: Final = "/ops"


class OpsDoor(CompositeService):
    """Serves the pages at `/` and the ops API at `/ops/v1`, on a Unix socket of the daemon's user, and on TCP if you
    configure it in `web`.

    Add it to a daemon first, to start before the dispatchers and stop after them. It shows every dispatcher of the
    process, even later ones.

    Like a MetricsServer, it serves `/metrics`, `/livez`, `/readyz` and `/healthz`, which equals `/readyz`. The probes
    need no token. While started, it watches its outermost composite service (`Health.watch`).

    `registry`: what `/metrics` shows. By default, prometheus_client's own registry.
    `name`: the daemon's name, in /process and in the socket's name. By default, the program's.
    `may_see`: which entities the user of a request may see, as for `ops_app`.

    Raises:
        ConfigError, DispatcherError: from `start`, as a WebHost.
    """

    is_door: Final = True

    def __init__(
        self,
        config: OpsConfig | None = None,
        web: WebConfig | None = None,
        *,
        registry: CollectorRegistry | None = None,
        name: str | None = None,
        may_see: MaySeeOf | None = None,
    ) -> None:
        if registry is not None:
            require_methods(registry, "registry", "a CollectorRegistry", "collect")
        name = name or process_name()
        super().__init__(f"{name}-door")
        config = config if config is not None else OpsConfig()
        require_kind(config, "config", OpsConfig)
        self._ops = Ops(config, name, asyncio.Event(), may_see)
        self.settings: OpsConfig = config
        pages = LaterPages(self._ops, PREFIX + API)
        routes = [Mount(PREFIX, app_of(self._ops)), *probe_routes(registry, self._ops.workers), Mount("/", pages)]
        outer = Starlette(routes=routes, exception_handlers={HTTPException: router_error()})
        outer.router.redirect_slashes = False
        self.host: WebHost = WebHost(outer, web, name=name, takes_form=pages.takes_form, open_paths=PROBES)
        self.add_service(self.host)
        self._whole: Service | None = None  # what is watched; the thread that starts sets it, the one that stops reads

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket, once started."""
        return self.host.socket_path

    @property
    def url(self) -> str | None:
        """The API's TCP address, once started, or None without TCP."""
        return None if self.host.url is None else self.host.url + PREFIX + API

    def service_start(self) -> None:
        self._whole = watch_whole(self)  # before the host listens: /readyz would be 200 although the daemon is starting
        super().service_start()

    def service_stop(self) -> None:
        whole, self._whole = self._whole, None
        if whole is not None:
            health.forget(whole)
        try:
            super().service_stop()
        finally:
            self._ops.close()
