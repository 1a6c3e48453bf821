"""The resource manager's web address as a service: the app, served by a web host of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from dispatcher.ops.config import OpsConfig
from dispatcher.ops.probes import PROBES
from dispatcher.service import CompositeService
from dispatcher.util.functions import require_methods
from dispatcher.web.host import WebHost
from statemachines.resourcemanager.records.web_config import RMWebConfig
from statemachines.resourcemanager.web.app import resource_manager_app
from statemachines.resourcemanager.web.rest import error_body

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from statemachines.resourcemanager.resource_manager import ResourceManager


class RMDoor(CompositeService):
    """Serves the REST API, the pages, /metrics, and, as an OpsDoor does, the ops API at `/ops/v1`.

    Add it to a daemon before the resource manager, to start before it and stop after it. Until the resource manager has
    recovered, the REST API answers 503.

    `web`, `ops`: by default, the resource manager's configuration.

    Raises:
        ConfigError, DispatcherError: from `start`, as a WebHost.
    """

    is_door: Final = True

    def __init__(self, manager: ResourceManager, web: RMWebConfig | None = None, ops: OpsConfig | None = None) -> None:
        require_methods(manager, "manager", "a ResourceManager", "is_ending")
        super().__init__(f"{manager.name}-door")
        web = web or manager.settings.web
        self.app: Starlette = resource_manager_app(manager, web, ops)
        self.host: WebHost = WebHost(
            self.app,
            web,
            name=manager.name,
            error_body=error_body,
            takes_form=self.app.state.takes_form,
            open_paths=() if web.probes_need_token else PROBES,
        )
        self.add_service(self.host)

    def unready_reason(self) -> str | None:
        return None if self.app.state.rm.model.is_readable() else "starting"

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket, once started."""
        return self.host.socket_path

    @property
    def url(self) -> str | None:
        """The TCP address, without a path, once started, or None without TCP."""
        return self.host.url

    def service_stop(self) -> None:
        try:
            super().service_stop()
        finally:
            self.app.state.ops.close()
