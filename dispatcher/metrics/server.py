"""Serving a registry's metrics over HTTP."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import REGISTRY

from dispatcher.config import MetricsConfig
from dispatcher.errors import ConfigError
from dispatcher.service import Service


class MetricsServer(Service):
    """Serves a registry at `/metrics` while started, on a thread of prometheus-client.

    Raises (from `start`):
        ConfigError: the server cannot listen on the address.
    """

    def __init__(self, config: MetricsConfig | None = None, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__("MetricsServer")
        self._settings = config or MetricsConfig()
        self._registry = registry
        self.port: int | None = None
        """The port, once started."""

    @property
    def url(self) -> str:
        return f"http://{self._settings.host}:{self.port}/metrics"

    def service_start(self) -> None:
        host, port = self._settings.host, self._settings.port
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            raise ConfigError(
                f"metrics.host {host}, metrics.port {port}: cannot listen there: {error.strerror or error}; "
                "choose another, or port 0 for a free one"
            ) from error
        self.port = self._server.server_port

    def service_stop(self) -> None:
        if self.port is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
