"""A small HTTP server for a WSGI application, in which no client can hold a connection for long.

Threading: `serve_forever` runs on a thread of the caller, each connection on a daemon thread of its own. All others
only shut sockets down, which ends the thread that reads or writes them.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from dispatcher.util.descriptors import NO_DESCRIPTORS

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 32
"""Connections at a time. One more takes the place of the oldest that has not sent its request yet."""
LONGEST_EXCHANGE_S: Final = 10.0
"""A connection ends this long after it was accepted, whatever it waits for."""

_RETRY_ACCEPT_S: Final = 0.1


class _Connection:
    """What the server knows of a connection. Guarded by its server's `_lock`."""

    __slots__ = ("deadline_s", "has_request")

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s  # monotonic
        self.has_request = False  # the request was read: the connection is not idle any longer


class BoundedHTTPServer(ThreadingMixIn, WSGIServer):
    """Serves `application` on (`host`, `port`), IPv4 or IPv6. It listens once it is made; port 0 takes a free one.

    `serve_forever`, `shutdown` and `server_close` are used as in `socketserver`; `server_close` also ends the
    connections. `clock_s` is monotonic, in seconds.

    Raises:
        OSError: the address does not exist here, is in use, or is not allowed. ValueError: it is not an address.
    """

    daemon_threads = True
    request_queue_size = 512  # clients wait here without a descriptor of the process; beyond, for their SYN's retry

    def __init__(
        self,
        host: str,
        port: int,
        application: Callable[..., Any],
        *,
        most_connections: int = MOST_CONNECTIONS,
        longest_exchange_s: float = LONGEST_EXCHANGE_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = infos[0]
        self._most_connections = most_connections  # read only, like the next three
        self._longest_exchange_s = longest_exchange_s
        self._clock_s = clock_s
        self._closing = threading.Event()
        self._lock = threading.Lock()  # leaf lock
        self._connections: dict[socket.socket, _Connection] = {}  # guarded by _lock; in the order of acceptance
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(application)

    @property
    def connections(self) -> int:
        """Number of open connections. Any thread."""
        return len(self._connections)

    # -- called by socketserver on the thread of serve_forever ---------------------------------------------------------

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                self._end(lambda connection: not connection.has_request)
                self._closing.wait(_RETRY_ACCEPT_S)  # the client still waits: without this the loop would spin
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Make room for the connection; False if all others have a request that is being answered."""
        with self._lock:
            if len(self._connections) >= self._most_connections:
                idle = next((each for each, known in self._connections.items() if not known.has_request), None)
                if idle is None:
                    return False
                del self._connections[idle]
                _shut_down(idle)
            self._connections[request] = _Connection(self._clock_s() + self._longest_exchange_s)
        return True

    def service_actions(self) -> None:
        """End the connections whose time is over. The loop calls this at least every half second."""
        now_s = self._clock_s()
        self._end(lambda connection: connection.deadline_s <= now_s)

    def server_close(self) -> None:
        self._closing.set()
        super().server_close()
        self._end(lambda _: True)

    # -- called on the connection's thread -----------------------------------------------------------------------------

    def request_received(self, request: Any) -> None:
        """The request line and the headers were read."""
        with self._lock:
            known = self._connections.get(request)
            if known is not None:
                known.has_request = True

    def shutdown_request(self, request: Any) -> None:
        # Before the descriptor is closed: its number may be reused by a file that must not be shut down.
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Not logged as an error: clients may disconnect, and the server ends connections itself."""
        log.debug("%s: the connection ended early", client_address, exc_info=True)

    def _end(self, is_over: Callable[[_Connection], bool]) -> None:
        with self._lock:
            for request, known in list(self._connections.items()):
                if is_over(known):
                    del self._connections[request]
                    _shut_down(request)


class _Handler(WSGIRequestHandler):
    """One request a connection, not logged."""

    server: BoundedHTTPServer

    def parse_request(self) -> bool:
        is_sound = super().parse_request()
        self.server.request_received(self.request)
        return is_sound

    def log_message(self, format: str, *args: Any) -> None:
        return


def _shut_down(request: socket.socket) -> None:
    """End the connection for the thread that reads or writes it, which then closes it."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client has closed it
