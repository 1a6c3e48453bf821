"""The uvicorn servers of a host, one for each of its sockets, on a loop of their own, and the thread that runs them.

Each server has its own limit of connections, so TCP clients cannot shut out the administrator at the Unix socket.

Needs the extra `web`. Threads: made and started by the thread that starts the host. `begin_stop` and `join` are for any
thread; all the rest runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import uvicorn

from dispatcher.errors import DispatcherError
from dispatcher.util.foreign import tell
from dispatcher.util.threads import NO_THREAD
from dispatcher.web.config import WebConfig
from dispatcher.web.gate import Gate
from dispatcher.web.listeners import BACKLOG, DoorLoop, Listener, Listeners
from dispatcher.web.protocol import DoorProtocol, check_uvicorn

log: logging.Logger = logging.getLogger(__name__)

_LONGEST_START_S: Final = 10.0
_POLITE_S: Final = 0.4
"""At a stop, answers under way have this long to be sent."""
_CLOSING_S: Final = 0.35
"""After that, the app's own shutdown has this long."""
_LAST_S: Final = 0.1


class _Server(uvicorn.Server):
    """Serves one socket. ServerThread starts and stops the app, and sets `app_state`."""

    def __init__(self, gate: Gate, settings: WebConfig, listener: Listener) -> None:
        self.listener = listener
        self.app_state: dict[str, Any] = {}
        shared = {"settings": settings, "handed_over": listener.handed_over, "waiting": {}}
        config = uvicorn.Config(
            gate,
            interface="asgi3",
            lifespan="off",
            http=type("Protocol", (DoorProtocol,), shared),
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            limit_concurrency=settings.connections + 1,  # uvicorn answers 503 once it has this many
            h11_max_incomplete_event_size=settings.header_bytes,
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # seconds of `call_later`
            timeout_graceful_shutdown=None,  # `abort` ends the wait, without an error in the log
            **listener.tls,
        )
        config.load()
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        self.lifespan.state = self.app_state
        await super().startup(sockets)
        self.is_listening.set()

    def abort(self) -> None:
        """End the connections and their requests."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()


class ServerThread:
    """Serves a gate on listening sockets, from `start` until `begin_stop`.

    If a server fails, it calls `on_failure` with the error, on the loop's thread.

    Raises:
        DispatcherError: this version of uvicorn does not call what a door's limits rely on.
    """

    def __init__(
        self,
        name: str,
        gate: Gate,
        settings: WebConfig,
        listeners: Listeners,
        stopping: asyncio.Event,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        check_uvicorn()
        self._name = name
        self._gate = gate
        self._listeners = listeners
        self._stopping = stopping
        self._on_failure = on_failure
        self._is_listening = threading.Event()
        self._is_up = False  # written by the loop's thread, before _is_listening is set
        self._failure: BaseException | None = None  # written by the loop's thread, before it ends
        self._servers = [_Server(gate, settings, each) for each in listeners.sockets]  # the loop's thread only
        self._serving: asyncio.Task[None] | None = None  # the loop's thread only
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
        if not self._is_up:
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
            self._serving = self._loop.create_task(self._serve())
            self._loop.run_until_complete(self._serving)
        except BaseException as error:
            self._failure = error
            if self._is_up and not self._stopping.is_set():
                tell(log, logging.ERROR, "%s: the door's server has failed", self._name, error=error)
                self._on_failure(error)
        finally:
            self._is_listening.set()  # or has failed; `start` looks
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(self._cancel_rest())
            self._listeners.close()
            self._loop.close()

    async def _serve(self) -> None:
        config = uvicorn.Config(self._gate, interface="asgi3", log_config=None)
        config.load()
        lifespan = config.lifespan_class(config)
        await lifespan.startup()
        if lifespan.should_exit:
            return
        for each in self._servers:
            each.app_state = lifespan.state
        serving = asyncio.gather(*(each.serve([each.listener]) for each in self._servers))
        listening = asyncio.gather(*(each.is_listening.wait() for each in self._servers))
        await asyncio.wait((serving, listening), return_when=asyncio.FIRST_COMPLETED)
        self._is_up = listening.done()
        self._is_listening.set()
        await serving
        await self._stopping.wait()  # a host may have no socket at all
        await lifespan.shutdown()

    def _stop(self) -> None:
        self._stopping.set()
        for each in self._servers:
            each.should_exit = True
        self._loop.call_later(_POLITE_S, self._abort)

    def _abort(self) -> None:
        for each in self._servers:
            each.abort()
        if self._serving is not None:  # the app's start-up or its shutdown may not end
            self._loop.call_later(_CLOSING_S, self._serving.cancel)

    async def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for each in rest:
            each.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_LAST_S)
        for _ in range(10):  # a transport closes its socket in one of the loop's next turns
            for server in self._servers:
                server.abort()
            await asyncio.sleep(0)
