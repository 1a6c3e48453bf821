"""A small HTTP server for a WSGI application, in which no client can hold a connection for long.

Threading: `serve_forever` runs on a thread of the caller, and each connection on a daemon thread of its own, or on the
caller's while the system has no thread left. Other threads only shut sockets down, which ends the thread that reads or
writes them. `server_close` waits a moment for these threads. The server logs nothing: a thread that holds logging's
lock for ever must not keep a client from its answer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from io import BufferedIOBase
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from dispatcher.util.descriptors import NO_DESCRIPTORS
from dispatcher.util.http_heads import origin_form
from dispatcher.util.threads import try_to_start

MOST_CONNECTIONS: Final = 32
"""Most open connections. One more replaces the oldest that waits for its client: for the request, or for the client to
read the answer."""
LONGEST_EXCHANGE_S: Final = 10.0
"""A connection is closed this long after it was accepted, whatever it waits for."""

LONGEST_CLOSE_S: Final = 1.0
"""Closing the server waits at most this long for the threads of its connections."""

GRACE_S: Final = 0.05
"""No connection is replaced sooner: in a flood of idle ones, a client that sends its request at once is answered."""

_RETRY_ACCEPT_S: Final = 0.1
_HERE_S: Final = 1.0
"""On the loop's own thread, a client has this long to send its request, and again to read the answer."""
_LOOK_S: Final = 0.01
_LONGEST_HEAD: Final = 1 << 16


class _AcceptedConnection:
    """What the server knows of a connection. Guarded by its server's `_lock`."""

    __slots__ = ("accepted_s", "waits")

    def __init__(self, accepted_s: float) -> None:
        self.accepted_s = accepted_s  # monotonic
        self.waits = True  # for the client: until its request is read, and while it does not read the answer


class BoundedHTTPServer(ThreadingMixIn, WSGIServer):
    """Serves `application` on (`host`, `port`), IPv4 or IPv6. It listens once it is made; port 0 takes a free one.

    `serve_forever`, `shutdown` and `server_close` are used as in `socketserver`. `clock_s` is monotonic, in seconds.

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
        grace_s: float = GRACE_S,
        longest_close_s: float = LONGEST_CLOSE_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = infos[0]
        # Read only.
        self._most_connections = most_connections
        self._longest_exchange_s = longest_exchange_s
        self._grace_s = grace_s
        self._longest_close_s = longest_close_s
        self._clock_s = clock_s

        self._closing = threading.Event()
        self._lock = threading.Lock()  # leaf lock
        self._ended = threading.Condition(self._lock)  # a connection has ended
        self._connections: dict[socket.socket, _AcceptedConnection] = {}  # guarded by _lock; in the order of acceptance
        self._request_threads: list[threading.Thread] = []  # guarded by _lock; those that have ended go with the next
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
                self._end(lambda connection: connection.waits)
                self._closing.wait(_RETRY_ACCEPT_S)  # the client still waits: without this the loop would spin
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Make room for the connection; False if all others have requests that are being answered."""
        with self._ended:
            oldest = self._oldest_that_waits()
            if oldest is not None:
                grace_s = self._connections[oldest].accepted_s + self._grace_s - self._clock_s()
                # Meanwhile further clients wait to be accepted.
                self._ended.wait_for(lambda: len(self._connections) < self._most_connections, max(0.0, grace_s))
            if len(self._connections) >= self._most_connections:
                oldest = self._oldest_that_waits()
                if oldest is None:
                    return False
                del self._connections[oldest]
                _shut_down(oldest)
            self._connections[request] = _AcceptedConnection(self._clock_s())
        return True

    def _oldest_that_waits(self) -> socket.socket | None:
        """Under _lock."""
        return next((request for request, known in self._connections.items() if known.waits), None)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own. `ThreadingMixIn` forgets daemon threads, and `server_close` waits for them.

        If the system has no thread left, the loop's own answers, to a client that makes it wait for a second at most.
        """
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="http-request", daemon=True
        )
        if not try_to_start(thread):
            if self._has_sent(request):
                request.settimeout(_HERE_S)  # for the answer
                self.process_request_thread(request, client_address)
            else:
                self.shutdown_request(request)
            return
        with self._lock:
            self._request_threads = [each for each in self._request_threads if each.is_alive()]
            self._request_threads.append(thread)

    def _has_sent(self, request: socket.socket) -> bool:
        """Wait until the client has sent its whole request; returns whether it has done so in time."""
        end_s = time.monotonic() + _HERE_S
        with contextlib.suppress(OSError):  # the client has closed the connection, or sends nothing
            while (left_s := end_s - time.monotonic()) > 0:
                request.settimeout(left_s)
                received = request.recv(_LONGEST_HEAD, socket.MSG_PEEK)
                if b"\r\n\r\n" in received:
                    return True
                if not received or self._closing.wait(_LOOK_S):  # until there is more, `recv` returns the same
                    return False
        return False

    def service_actions(self) -> None:
        """End the connections that are too old. The loop calls this at least every half second."""
        too_old_s = self._clock_s() - self._longest_exchange_s
        self._end(lambda connection: connection.accepted_s <= too_old_s)

    def leave_to_parent(self) -> None:
        """In a forked child, whose parent serves on: close the child's copy of the socket that listens."""
        self.socket.close()

    def shutdown(self) -> None:
        with contextlib.suppress(OSError):  # some systems do not allow this, and the loop looks every half second
            self.socket.shutdown(socket.SHUT_RDWR)  # the loop is woken: it fails to accept a connection
        super().shutdown()

    def server_close(self) -> None:
        """End all connections, and wait for their threads: `longest_close_s` at most.

        A thread whose client hangs ends at once. One that is still making an answer after this time is left behind: it
        is a daemon thread, and ends once the answer is made.
        """
        self._closing.set()
        super().server_close()
        self._end(lambda _: True)
        with self._lock:
            threads = list(self._request_threads)
        end_s = time.monotonic() + self._longest_close_s  # a thread can be waited for in real time only
        for thread in threads:
            if thread is not threading.current_thread():  # an application may close its own server
                thread.join(max(0.0, end_s - time.monotonic()))

    # -- called on the connection's thread -----------------------------------------------------------------------------

    def note(self, request: Any, *, waits: bool) -> None:
        """From now on the connection's thread waits for its client, or works on the answer."""
        with self._lock:
            known = self._connections.get(request)
            if known is not None:
                known.waits = waits

    def shutdown_request(self, request: Any) -> None:
        # Before the descriptor is closed: its number may be reused by a file that must not be shut down.
        with self._lock:
            self._connections.pop(request, None)
            self._ended.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: the connection ended early. Clients may disconnect, and the server ends connections itself."""

    def _end(self, is_over: Callable[[_AcceptedConnection], bool]) -> None:
        with self._lock:
            for request, known in list(self._connections.items()):
                if is_over(known):
                    del self._connections[request]
                    _shut_down(request)


class _Handler(WSGIRequestHandler):
    """One request a connection, not logged."""

    server: BoundedHTTPServer

    def setup(self) -> None:
        super().setup()
        self.wfile = _Answer(self.server, self.request)

    def parse_request(self) -> bool:
        is_sound = super().parse_request()
        if is_sound:
            _, self.path = origin_form(self.path)
        self.server.note(self.request, waits=False)
        return is_sound

    def log_message(self, format: str, *args: Any) -> None:
        return


class _Answer(BufferedIOBase):
    """Sends what is written, and notes meanwhile that the connection waits for its client."""

    def __init__(self, server: BoundedHTTPServer, request: socket.socket) -> None:
        self._server = server
        self._request = request

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._server.note(self._request, waits=True)
        self._request.sendall(data)
        self._server.note(self._request, waits=False)
        return memoryview(data).nbytes


def _shut_down(request: socket.socket) -> None:
    """End the connection for the thread that reads or writes it, which then closes it."""
    with contextlib.suppress(OSError):  # the client has closed it
        request.shutdown(socket.SHUT_RDWR)
