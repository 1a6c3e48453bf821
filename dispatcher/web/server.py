"""The uvicorn server of a host, on a loop of its own, and the thread that runs both. Needs the extra `web`.

Threads: made and started by the thread that starts the host. `begin_stop` and `join` are for any thread; all the rest
runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

import uvicorn

from dispatcher.errors import DispatcherError
from dispatcher.util.foreign import tell
from dispatcher.util.threads import NO_THREAD
from dispatcher.web.config import WebConfig
from dispatcher.web.gate import Gate
from dispatcher.web.listeners import BACKLOG, DoorLoop, Listeners
from dispatcher.web.protocol import DoorProtocol, Places, check_uvicorn

log = logging.getLogger(__name__)

_LONGEST_START_S: Final = 10.0
_POLITE_S: Final = 0.4
"""At a stop, answers under way have this long to be sent."""
_CLOSING_S: Final = 0.35
"""After that, the app's own shutdown has this long."""
_LAST_S: Final = 0.1
_LOOK_S: Final = 1.0
"""Interval at which connections with slow clients are looked for."""


class _Server(uvicorn.Server):
    """Sets `is_listening` once it listens."""

    def __init__(self, config: uvicorn.Config, is_listening: threading.Event) -> None:
        super().__init__(config)
        self._is_listening = is_listening

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:  # older versions return when the app has failed
            self._is_listening.set()


class ServerThread:
    """Serves a gate on listening sockets, from `start` until `begin_stop`.

    If the server ends for another reason, it calls `on_failure` with that, on the loop's thread.
    """

    def __init__(
        self,
        name: str,
        gate: Gate,
        settings: WebConfig,
        listeners: Listeners,
        tls: ssl.SSLContext | None,
        stopping: asyncio.Event,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        check_uvicorn()
        self._name = name
        self._gate = gate
        self._settings = settings
        self._listeners = listeners
        self._stopping = stopping
        self._on_failure = on_failure
        self._is_listening = threading.Event()
        self._failure: BaseException | None = None  # written by the loop's thread, before it ends
        self._open: set[DoorProtocol] = set()  # the loop's thread only
        shared = {
            "settings": settings,
            "all_open": self._open,
            "handed_over": listeners.handed_over,
            "places": {is_local: Places(settings.connections) for is_local in (True, False)},
        }
        protocol = type("Protocol", (DoorProtocol,), shared)
        config = uvicorn.Config(
            gate,
            interface="asgi3",
            http=protocol,
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=settings.header_bytes,
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # seconds of `call_later`
            timeout_graceful_shutdown=None,  # `_abort_all` ends the wait
        )
        config.load()
        config.ssl = tls
        self._serving: asyncio.Task[None] | None = None  # the loop's thread only
        self._server = _Server(config, self._is_listening)
        self._loop = DoorLoop(settings.request_deadline_s)
        self._thread = threading.Thread(target=self._run, name=f"{name}-web", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until it serves.

        Raises:
            DispatcherError: the app failed to start, or took too long.
            RuntimeError, MemoryError: the system has no thread left.
        """
        try:
            self._thread.start()
        except NO_THREAD:
            self._listeners.close()
            self._loop.close()
            raise
        if not self._is_listening.wait(_LONGEST_START_S):
            raise DispatcherError(f"{self._name}: the app did not start within {_LONGEST_START_S:g} s")
        if not self._server.started:
            raise DispatcherError(
                f"{self._name}: the app failed to start; the log has its traceback"
            ) from self._failure

    def begin_stop(self) -> None:
        """End the streams of events, and let other answers be sent; after `_POLITE_S`, abort what is left."""
        try:
            self._loop.call_soon_threadsafe(self._stop)
        except RuntimeError:
            return  # it has ended, and closed its loop

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread; returns whether it has ended. On the thread itself, True at once: it ends later."""
        if self._thread is threading.current_thread():
            return True
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close_in_child(self) -> None:
        """Close a forked child's copies of the sockets, and of what the loop waits for."""
        self._listeners.close_in_child()
        self._loop.close_selector()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.call_soon(self._look)
            self._serving = self._loop.create_task(self._server.serve(list(self._listeners.sockets)))
            self._loop.run_until_complete(self._serving)
        except BaseException as error:
            self._failure = error
            if self._is_listening.is_set() and not self._stopping.is_set():
                tell(log, logging.ERROR, "%s: the door's server has failed", self._name, error=error)
                self._on_failure(error)
        finally:
            self._is_listening.set()  # or has failed; `start` looks
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(self._cancel_rest())
            self._listeners.close()
            self._loop.close()

    def _look(self) -> None:
        """End the connections of clients that take too long. Calls itself again."""
        now_s = self._loop.time()
        for each in list(self._open):
            each.end_if_late(now_s)
        self._loop.call_later(min(_LOOK_S, self._settings.request_deadline_s / 2), self._look)

    def _stop(self) -> None:
        self._stopping.set()
        self._server.should_exit = True
        self._loop.call_later(_POLITE_S, self._abort_all)

    def _abort_all(self) -> None:
        for each in list(self._open):
            each.transport.abort()
        self._gate.end_requests()
        if self._serving is not None:  # the app's start-up or its shutdown may not end
            self._loop.call_later(_CLOSING_S, self._serving.cancel)

    async def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for each in rest:
            each.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_LAST_S)
        for _ in range(10):  # a transport closes its socket in one of the loop's next turns
            for connection in list(self._open):
                connection.transport.abort()
            await asyncio.sleep(0)
