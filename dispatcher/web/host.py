"""An ASGI app served inside a daemon: one thread, one asyncio loop, one uvicorn server.

Threads: `start` and `stop` are for any thread; the app, the gate before it and all connections run on the loop's
thread, `NAME-web`. The host never touches the state of a handler thread, and never waits for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.service import Service
from dispatcher.util.foreign import tell
from dispatcher.util.terminal import one_line
from dispatcher.web import doors
from dispatcher.web.config import WebConfig
from dispatcher.web.security import Principal

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger(__name__)

_LONGEST_START_S: Final = 10.0
_LONGEST_STOP_S: Final = 0.9
_BACKLOG: Final = 512


class WebHost(Service):
    """Serves an ASGI app while started: on a Unix socket that only the daemon's user reaches, and on TCP if asked to.

    Add it to a daemon before the dispatchers: it then starts before and stops after them, so that a daemon that drains
    can be looked at.

    Raises (from `start`):
        ConfigError: it cannot listen where it is told to, or must not. DispatcherError: the extra `web` is missing, or
        the app failed to start.
    """

    def __init__(self, app: Any, config: WebConfig | None = None, name: str = "web") -> None:
        super().__init__(name)
        self.settings = config or WebConfig()
        self.socket_path: Path | None = None  # written by start and stop
        """The Unix socket, once started."""
        self.port: int | None = None  # written by start and stop
        """The TCP port, once started; None without TCP."""
        self.stopping = asyncio.Event()
        """Set when the host stops: on its loop's thread, which alone may wait for it."""
        self._app = app
        self._server: uvicorn.Server | None = None  # written by start, before the thread starts
        self._loop: asyncio.AbstractEventLoop | None = None  # written by start, before the thread starts
        self._thread: threading.Thread | None = None  # written by start
        self._listeners_bound: list[socket.socket] = []  # written by start, before the thread starts
        self._pid = os.getpid()

    @property
    def url(self) -> str | None:
        """The TCP address as a URL, once started; None without TCP."""
        if self.port is None:
            return None
        host = self.settings.host
        if ":" in host:
            host = f"[{host.replace('%', '%25')}]"
        return f"{'https' if self.settings.tls else 'http'}://{host}:{self.port}"

    def service_start(self) -> None:
        try:
            import uvicorn
        except ModuleNotFoundError:
            raise DispatcherError("the door needs its extra: pip install 'central-dispatcher[web]'") from None
        settings = self.settings
        if settings.unix_socket:
            path = settings.socket_path or doors.socket_path(self.name)
            self._listeners_bound.append(doors.listen_at(path, _BACKLOG))
            self.socket_path = path
        if settings.port is not None:
            self._listeners_bound.append(self._tcp_socket(settings.host, settings.port))
            self.port = self._listeners_bound[-1].getsockname()[1]
        uv_config = uvicorn.Config(
            self._gate,
            interface="asgi3",
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]
        )
        self._server = uvicorn.Server(uv_config)
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name=f"{self.name}-web", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _LONGEST_START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise DispatcherError(f"{self.name}: the app did not start; see the log")
            time.sleep(0.002)

    def service_stop(self) -> None:
        if self._pid != os.getpid() or self._thread is None:
            return
        assert self._loop is not None
        if self.socket_path is not None:
            self.socket_path.unlink(missing_ok=True)
        try:
            self._loop.call_soon_threadsafe(self._begin_stop)
        except RuntimeError:
            return  # the loop has ended
        self._thread.join(_LONGEST_STOP_S)
        if self._thread.is_alive():
            tell(log, logging.WARNING, "%s: the door's thread has not ended in %s s", self.name, _LONGEST_STOP_S)

    def _begin_stop(self) -> None:
        self.stopping.set()
        if self._server is not None:
            self._server.should_exit = True

    def _run(self, started: threading.Event) -> None:
        assert self._loop is not None
        assert self._server is not None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._server.serve(self._listeners_bound))
        except BaseException as error:
            self.note_failure(error)
            tell(log, logging.ERROR, "%s: the door's server failed", self.name, error=error)
        finally:
            self._loop.close()

    async def _gate(self, scope: Any, receive: Any, send: Any) -> None:
        scope["web_host"] = self
        scope["principal"] = Principal("local", "admin")
        await self._app(scope, receive, send)

    def _tcp_socket(self, host: str, port: int) -> socket.socket:
        try:
            return socket.create_server((host, port), backlog=_BACKLOG)
        except (OSError, ValueError) as error:
            raise ConfigError(f"web.host {one_line(host)}, web.port {port}: cannot listen there: {error}") from error
