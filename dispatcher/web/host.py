"""An ASGI app served inside a daemon: one thread, one asyncio loop, one uvicorn server.

Threads: `start` and `stop` are for any thread; the app, the gate before it and all connections run on the loop's
thread, `NAME-web`. The host never touches the state of a handler thread, and never waits for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher.errors import DispatcherError, InvalidTypeError
from dispatcher.service import Service
from dispatcher.util.foreign import tell, text_of
from dispatcher.util.functions import require_kind
from dispatcher.util.http_heads import url_of
from dispatcher.web.config import WebConfig
from dispatcher.web.origins import as_address
from dispatcher.web.plain_answers import ErrorBody, plain_error

if TYPE_CHECKING:
    from dispatcher.web.listeners import Listeners
    from dispatcher.web.server import ServerThread

log: logging.Logger = logging.getLogger(__name__)

LONGEST_STOP_S: Final = 0.9


class WebHost(Service):
    """Serves an ASGI app while started: on a Unix socket that only the daemon's user reaches, and on TCP if configured.

    Add the host to a daemon before the dispatchers: it then starts before them and stops after them, so you can inspect
    a daemon while it drains. Once the daemon begins to stop, requests other than GET and HEAD get 503.

    Every request's scope has `principal`, and the host itself as `web_host`. There's no server in a forked child.

    `error_body`: makes the body of the host's error responses, on the loop's thread.
    `takes_form`: path -> whether it accepts an HTML form as body. Called on the loop's thread. Only a page of this
        server can send a form, which the browser's headers must show. All other bodies must be JSON.
    `open_paths`: paths, such as probes, that GET and HEAD reach without a token, and without a Host header.

    Raises:
        ConfigError: from `start`, if it can't, or must not, listen on its address, or if tokens or certificates are
            invalid.
        DispatcherError: from `start`, if the extra `web` is missing, or the app failed to start.
    """

    def __init__(
        self,
        app: Any,
        config: WebConfig | None = None,
        *,
        name: str = "web",
        error_body: ErrorBody = plain_error,
        takes_form: Callable[[str], bool] = lambda _: False,
        open_paths: Collection[str] = (),
    ) -> None:
        super().__init__(name)
        self.settings: WebConfig = config if config is not None else WebConfig()
        require_kind(self.settings, "config", WebConfig)
        if not callable(app):
            raise InvalidTypeError(f"app must be an ASGI app, not {text_of(app)}")
        self.stopping: asyncio.Event = asyncio.Event()
        """Set when the host stops. Use it only on its loop's thread."""
        self._app = app
        self._error_body = error_body
        self._takes_form = takes_form
        self._open_paths = frozenset(open_paths)
        self._pid = os.getpid()
        self._sockets: Listeners | None = None  # written by start, and in a forked child
        self._server: ServerThread | None = None  # written by start, and in a forked child

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket, once started, or None without one."""
        return self._sockets.socket_path if self._sockets is not None else None

    @property
    def port(self) -> int | None:
        """The TCP port, once started, or None without TCP."""
        address = self._sockets.address if self._sockets is not None else None
        return address[1] if address is not None else None

    @property
    def url(self) -> str | None:
        """The TCP address as a URL, once started, or None without TCP."""
        if self.port is None:
            return None
        return url_of("https" if self.settings.tls else "http", self.settings.host, self.port)

    def service_start(self) -> None:
        try:
            from dispatcher.web.gate import Gate
            from dispatcher.web.identities import Identities
            from dispatcher.web.listeners import Listeners
            from dispatcher.web.server import ServerThread
        except ModuleNotFoundError as error:
            raise DispatcherError(
                f"{self.name}: the door needs its extra (no module {error.name}): pip install 'central-dispatcher[web]'"
            ) from None
        settings = self.settings
        self._pid = os.getpid()
        gate = Gate(
            self._app,
            settings,
            Identities(settings),
            self.is_ending,
            {"web_host": self},
            self._error_body,
            self._takes_form,
            self._open_paths,
        )
        self._sockets = Listeners(settings, self.name)
        self._warn_of_plain_tokens()
        self._server = ServerThread(self.name, gate, settings, self._sockets, self.stopping, self._note_failure)
        self._server.start()

    def service_stop(self) -> None:
        if self._pid != os.getpid():
            return
        if self._server is not None:
            self._server.begin_stop()
            if not self._server.join(LONGEST_STOP_S):
                message = "%s: the door's event loop is blocked; its thread is left behind"
                tell(log, logging.WARNING, message, self.name)
            if self._sockets is not None:
                self._sockets.refuse()
        elif self._sockets is not None:  # its start failed half-way
            self._sockets.close()

    def _warn_of_plain_tokens(self) -> None:
        assert self._sockets is not None
        known = as_address(self._sockets.address[0]) if self._sockets.address is not None else None
        if self.settings.tls is None and known is not None and not known.is_loopback:
            message = "%s: web.tls is not set, so tokens pass the network in plain text"
            tell(log, logging.WARNING, message, self.name)

    def _after_fork(self) -> None:
        """In a forked child no thread serves, so there are no addresses to report."""
        super()._after_fork()
        if self._server is not None:
            self._server.close_in_child()
        elif self._sockets is not None:
            self._sockets.close_in_child()
        self._server = self._sockets = None
