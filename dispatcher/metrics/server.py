"""Serving a registry's metrics, and the health of the process, over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import REGISTRY

from dispatcher.config import MetricsConfig
from dispatcher.errors import ConfigError
from dispatcher.metrics.page import render_page
from dispatcher.service import Service
from dispatcher.supervision.health import Health, HealthAnswer, watch_whole
from dispatcher.supervision.health import health as health_of_process
from dispatcher.util.foreign import reraise_interrupt
from dispatcher.util.functions import require_kind, require_methods
from dispatcher.util.http_heads import takes_gzip, url_of
from dispatcher.util.http_server import BoundedHTTPServer
from dispatcher.util.terminal import one_line

_Environ = dict[str, Any]
_Headers = list[tuple[str, str]]
_Answer = tuple[str, _Headers, bytes]
"""Status line, headers, body."""

_METHODS: Final = ("GET", "HEAD")


class MetricsServer(Service):
    """Serves `/metrics`, `/livez` and `/readyz` (also as `/healthz`) while started, on dedicated threads.

    `/metrics` shows `registry`. The other pages show `health` as JSON, with status 200 or 503: see
    `dispatcher.supervision.health`. Add the server to a daemon first, to have answers while the others start and drain.
    While started, it watches its outermost composite service (`Health.watch`).

    An answer needs neither the handler thread nor a lock held by handlers or logging. Clients can't exhaust the
    process. Up to 32 connections are open, each for up to 10 seconds. A new one replaces the oldest whose client is
    slow to send its request or read the answer. Stopping ends them all, and waits up to a second for their threads.

    Raises:
        ConfigError: from `start`, if the server can't listen on the address.
    """

    def __init__(
        self,
        config: MetricsConfig | None = None,
        registry: CollectorRegistry = REGISTRY,
        *,
        name: str = "MetricsServer",
        health: Health = health_of_process,
    ) -> None:
        super().__init__(name)
        self.settings: MetricsConfig = config if config is not None else MetricsConfig()
        require_kind(self.settings, "config", MetricsConfig)
        require_methods(registry, "registry", "a CollectorRegistry", "collect")
        require_methods(health, "health", "a Health", "ready", "live")
        self._registry = registry
        self._health = health
        self._whole: Service | None = None  # what is watched; the thread that starts sets it, the one that stops reads
        self.port: int | None = None
        """The port, once started."""

    @property
    def url(self) -> str:
        """The address of `/metrics`, as from `url_of`."""
        return self.url_of("/metrics")

    def url_of(self, path: str) -> str:
        """Return the address of a page, for example `/readyz`.

        Before the start it has the configured port, which can be 0, for a free one.
        """
        return url_of("http", self.settings.host, self.port or self.settings.port) + path

    def service_start(self) -> None:
        host, port = self.settings.host, self.settings.port
        try:
            self._server = BoundedHTTPServer(host, port, _Pages(self._registry, self._health))
        except (OSError, ValueError) as error:  # ValueError: no host name has such characters or such a length
            reason = error.strerror or error if isinstance(error, OSError) else f"not a host name ({error})"
            raise ConfigError(
                f"metrics.host {one_line(host)}, metrics.port {port}: cannot listen there: {reason}; "
                "choose another, or port 0 for a free one"
            ) from error
        self._whole = watch_whole(self, self._health)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics-server", daemon=True)
        self.port = self._server.server_port
        self._thread.start()

    def service_stop(self) -> None:
        whole, self._whole = self._whole, None
        if whole is not None:
            self._health.forget(whole)
        if self.port is not None:
            is_started = self._thread.ident is not None
            if is_started:
                self._server.shutdown()
            self._server.server_close()
            if is_started:
                self._thread.join()

    def _after_fork(self) -> None:
        """In a child process, which must not keep the port of the parent."""
        super()._after_fork()
        if self.port is not None:
            self.port = None
            self._server.leave_to_parent()


class _Pages:
    """The pages as a WSGI application. Any thread."""

    def __init__(self, registry: CollectorRegistry, health: Health) -> None:
        self._registry = registry
        self._makers: dict[str, Callable[[_Environ], _Answer]] = {  # never changes
            "/metrics": self._metrics,
            "/livez": lambda _: _health_page(health.live()),
            "/readyz": lambda _: _health_page(health.ready()),
            "/healthz": lambda _: _health_page(health.ready()),
        }

    def __call__(self, environ: _Environ, start_response: Callable[..., Any]) -> list[bytes]:
        status, headers, body = self._answer(environ)
        # Without a Server header of our own, one with the version of Python would be sent.
        start_response(status, [*headers, ("Content-Length", str(len(body))), ("Server", "dispatcher")])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, environ: _Environ) -> _Answer:
        make = self._makers.get(environ["PATH_INFO"])
        if make is None:
            return _text("404 Not Found", f"No such page. The pages are {', '.join(self._makers)}.")
        if environ["REQUEST_METHOD"] not in _METHODS:
            status, headers, body = _text("405 Method Not Allowed", f"Use {' or '.join(_METHODS)}.")
            return status, [*headers, ("Allow", ", ".join(_METHODS))], body
        try:
            return make(environ)
        except BaseException as error:  # such as a MemoryError
            reraise_interrupt(error)
            return _text("500 Internal Server Error", "The page could not be made.")

    def _metrics(self, environ: _Environ) -> _Answer:
        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        names = parse_qs(environ.get("QUERY_STRING", "")).get("name[]")
        body = render_page(self._registry, encode, names)
        headers = [("Content-Type", content_type), ("Vary", "Accept, Accept-Encoding")]
        if takes_gzip([environ.get("HTTP_ACCEPT_ENCODING", "")]):
            headers.append(("Content-Encoding", "gzip"))
            body = gzip.compress(body)
        return "200 OK", headers, body


def _health_page(answer: HealthAnswer) -> _Answer:
    status = "200 OK" if answer.is_ok else "503 Service Unavailable"
    return status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")], answer.to_json().encode()


def _text(status: str, line: str) -> _Answer:
    return status, [("Content-Type", "text/plain; charset=utf-8")], f"{line}\n".encode()
