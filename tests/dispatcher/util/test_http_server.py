"""The HTTP server of the metrics: no client can hold a connection, or all of them, for long."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from dispatcher.util.http_server import BoundedHTTPServer

from ...kit import TIMEOUT_S, until


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def hello(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


@contextmanager
def serving(server: BoundedHTTPServer) -> Iterator[BoundedHTTPServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(TIMEOUT_S)


def connect(server: BoundedHTTPServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), TIMEOUT_S)


def read(server: BoundedHTTPServer) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=TIMEOUT_S) as answer:
        return bytes(answer.read())


def is_ended(client: socket.socket) -> bool:
    """Blocks until the server ends the connection, up to the timeout."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_an_idle_connection_ends_when_its_time_is_over() -> None:
    clock = Clock()
    with serving(BoundedHTTPServer("127.0.0.1", 0, hello, clock_s=clock)) as server, connect(server) as client:
        until(lambda: server.connections == 1)
        clock.now_s = 9.9
        client.sendall(b"GET / HTTP/1.0\r\nX-Slow: ")  # a client that sends a byte now and then is no better
        clock.now_s = 10.0

        assert is_ended(client)
        until(lambda: server.connections == 0)


def test_a_client_that_does_not_read_its_answer_is_sent_away() -> None:
    def endless(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [])
        while True:
            yield b"x" * 65536

    clock = Clock()
    with serving(BoundedHTTPServer("127.0.0.1", 0, endless, clock_s=clock)) as server, connect(server) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(4) == b"HTTP"
        clock.now_s = 10.0

        until(lambda: server.connections == 0)


def test_idle_connections_beyond_the_bound_make_room_for_new_ones_oldest_first() -> None:
    with serving(BoundedHTTPServer("127.0.0.1", 0, hello, most_connections=3)) as server, ExitStack() as clients:
        idle = [clients.enter_context(connect(server)) for _ in range(5)]

        assert all(map(is_ended, idle[:2]))
        assert read(server) == b"hello"
        assert is_ended(idle[2])
        assert server.connections <= 3


def test_clients_that_do_not_read_their_answers_make_room_for_new_ones() -> None:
    """They held their places for the ten seconds of an exchange."""
    body = b"x" * 20_000_000  # more than the buffers of both sockets

    def endless_or_short(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        return [body] if environ["PATH_INFO"] == "/long" else [b"hello"]

    with serving(BoundedHTTPServer("127.0.0.1", 0, endless_or_short)) as server, ExitStack() as clients:
        for _ in range(40):
            client = clients.enter_context(connect(server))
            client.sendall(b"GET /long HTTP/1.0\r\n\r\n")
            assert client.recv(4) == b"HTTP"

        assert read(server) == b"hello"
        assert server.connections <= 32


def test_a_connection_that_makes_room_has_had_time_to_send_its_request() -> None:
    """In a flood, a connection lost its place before the server had read the request that was there."""
    patient = BoundedHTTPServer("127.0.0.1", 0, hello, most_connections=1, grace_s=TIMEOUT_S)
    with serving(patient) as server, connect(server) as first:
        until(lambda: server.connections == 1)
        with connect(server) as second:
            until(lambda: bool(server._ended._waiters))  # type: ignore[attr-defined]  # it waits for room
            second.sendall(b"GET / HTTP/1.0\r\n\r\n")
            first.sendall(b"GET / HTTP/1.0\r\n\r\n")

            assert first.makefile("rb").read().endswith(b"hello")
            assert second.makefile("rb").read().endswith(b"hello")


def test_a_request_that_is_being_answered_keeps_its_place() -> None:
    entered, leave = threading.Semaphore(0), threading.Event()

    def slow(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        entered.release()
        assert leave.wait(TIMEOUT_S)
        return hello(environ, start_response)

    with serving(BoundedHTTPServer("127.0.0.1", 0, slow, most_connections=2)) as server, ExitStack() as clients:
        asking = [clients.enter_context(connect(server)) for _ in range(2)]
        for client in asking:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert entered.acquire(timeout=TIMEOUT_S)

        with connect(server) as late:
            assert is_ended(late)
        leave.set()

        assert [client.makefile("rb").read().endswith(b"hello") for client in asking] == [True, True]


class RequestUnderWay:
    """A server with a request that is being answered: `then` runs once the server has ended the connection."""

    def __init__(self, then: Callable[[], object], **settings: Any) -> None:
        self._entered = threading.Event()
        self._then = then
        self.threads: list[threading.Thread] = []
        self.server = BoundedHTTPServer("127.0.0.1", 0, self._application, **settings)
        self._loop = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.005})
        self._loop.start()
        self.client = connect(self.server)
        self.client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert self._entered.wait(TIMEOUT_S)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._loop.join(TIMEOUT_S)

    def _application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        self.threads.append(threading.current_thread())
        self._entered.set()
        with self.client:
            assert is_ended(self.client)
        self._then()
        return hello(environ, start_response)


def test_closing_the_server_waits_for_an_answer_that_is_under_way() -> None:
    """A stopped metrics server left the thread of its last request, which was about to end."""
    is_closed = threading.Event()
    was_closed: list[bool] = []
    request = RequestUnderWay(lambda: was_closed.append(is_closed.wait(0.1)), longest_close_s=TIMEOUT_S)

    request.close()
    is_closed.set()

    assert was_closed == [False]
    assert [thread.is_alive() for thread in request.threads] == [False]


def test_closing_the_server_leaves_an_answer_behind_that_takes_too_long() -> None:
    leave = threading.Event()
    request = RequestUnderWay(lambda: leave.wait(TIMEOUT_S), longest_close_s=0.01)

    request.close()

    [thread] = request.threads
    assert thread.is_alive()
    leave.set()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_a_client_that_sends_nothing_does_not_hold_the_close() -> None:
    threads = set(threading.enumerate())
    with serving(BoundedHTTPServer("127.0.0.1", 0, hello, longest_close_s=TIMEOUT_S)) as server:
        client = connect(server)
        until(lambda: server.connections == 1)

    with client:
        # Its thread would be left after the longest time of a close, if the connection had not been ended.
        assert set(threading.enumerate()) <= threads
        assert is_ended(client)


def test_an_application_may_close_its_own_server() -> None:
    outcome: list[str] = []

    def closing(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        server.shutdown()
        server.server_close()
        outcome.append("closed")
        return hello(environ, start_response)

    with serving(BoundedHTTPServer("127.0.0.1", 0, closing)) as server, connect(server) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert is_ended(client)
        until(lambda: outcome == ["closed"])
