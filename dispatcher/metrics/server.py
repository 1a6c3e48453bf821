"""Serving a registry's metrics over HTTP."""

from __future__ import annotations

import threading

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import REGISTRY

from dispatcher.config import MetricsConfig
from dispatcher.errors import ConfigError
from dispatcher.service import Service
from dispatcher.util.http_server import BoundedHTTPServer
from dispatcher.util.terminal import one_line


class MetricsServer(Service):
    """Serves a registry at `/metrics` while started, on threads of its own.

    Clients cannot exhaust the process: at most 32 connections are open, of which a new one replaces the oldest that has
    sent no request, and each ends 10 seconds after it was accepted.

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
        host = self._settings.host
        if ":" in host:  # IPv6, maybe with a zone, such as fe80::1%eth0
            host = f"[{host.replace('%', '%25')}]"
        return f"http://{host}:{self.port}/metrics"

    def service_start(self) -> None:
        host, port = self._settings.host, self._settings.port
        try:
            self._server = BoundedHTTPServer(host, port, make_wsgi_app(self._registry))
        except (OSError, ValueError) as error:  # ValueError: no host name has such characters or such a length
            reason = error.strerror or error if isinstance(error, OSError) else f"not a host name ({error})"
            raise ConfigError(
                f"metrics.host {one_line(host)}, metrics.port {port}: cannot listen there: {reason}; "
                "choose another, or port 0 for a free one"
            ) from error
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics-server", daemon=True)
        self._thread.start()

    def service_stop(self) -> None:
        if self.port is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
