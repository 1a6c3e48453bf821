"""Limits of a web host, against real clients: sizes, numbers and times, and what a client hears beyond them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dispatcher import ConfigError
from dispatcher.web import WebConfig, WebHost
from dispatcher.web.protocol import DoorProtocol
from dispatcher.web.waiting import Pace

from ...kit import TIMEOUT_S, until
from .conftest import App, MakeHost, Users, by_socket, by_tcp, connect, error_of, raw, read_to_end

pytestmark = pytest.mark.long

JSON = {"content-type": "application/json"}


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def whole(size: int) -> bytes:
    return b"1" * size


def pieces(size: int) -> Iterator[bytes]:
    for at in range(0, size, 1000):
        yield b"1" * min(1000, size - at)


@pytest.mark.parametrize("content", [whole, pieces])
@pytest.mark.parametrize("client_of", [by_tcp, by_socket])
def test_a_body_with_or_without_a_length_is_413_as_soon_as_it_is_too_long(
    make_host: MakeHost, client_of: Any, content: Any
) -> None:
    host = make_host(body_bytes=100_000, anonymous_role="user")
    with client_of(host) as client:
        assert client.put("/who", content=content(100_000), headers=JSON).json()["bytes"] == 100_000
        answer = client.put("/who", content=content(100_001), headers=JSON)

    assert (answer.status_code, error_of(answer)) == (413, "the body is longer than 100,000 bytes")


@pytest.mark.parametrize(
    ("size", "header"), [(2 << 20, "X-A: b"), (64 << 20, "Expect:"), (64 << 20, "Transfer-Encoding: chunked")]
)
def test_curl_hears_that_its_file_is_too_long(serve: MakeHost, tmp_path: Path, size: int, header: str) -> None:
    file = tmp_path / "large"
    with file.open("wb") as made:
        made.truncate(size)

    arguments = ["-sS", "-w", "%{http_code}", "-H", "Content-Type: application/json", "-H", header]
    done = subprocess.run(
        ["curl", *arguments, "-T", str(file), f"{serve().url}/who"], capture_output=True, text=True, timeout=TIMEOUT_S
    )

    assert done.stdout == '{"error": "the body is longer than 1,048,576 bytes"}\n413', done.stderr


def test_after_a_body_that_was_too_long_the_connection_goes_on(make_host: MakeHost) -> None:
    host = make_host(body_bytes=1000)
    with connect(host) as connection:
        head = b"PUT /who HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
        long = head + b"x" * 5000
        connection.sendall(long + b"GET /who HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = read_to_end(connection)

    assert answers.count(b"HTTP/1.1 413") == 1
    assert answers.count(b"HTTP/1.1 200") == 1


def test_the_body_of_a_get_does_not_reach_the_app(serve: MakeHost) -> None:
    with by_socket(serve()) as client:
        answer = client.request("GET", "/who", content=b"x" * 1000)

    assert answer.json()["bytes"] == 0


@pytest.mark.parametrize("target", ["header", "one of many headers", "path", "query"])
def test_headers_beyond_the_limit_are_431(serve: MakeHost, target: str) -> None:
    host = serve()
    parts: dict[str, tuple[str, dict[str, str]]] = {
        "header": ("/who", {"x": "y" * 17_000}),
        "one of many headers": ("/who", {f"x{number}": "y" * 100 for number in range(200)}),
        "path": ("/" + "p" * 17_000, {}),
        "query": ("/who?" + "q" * 17_000, {}),
    }
    path, headers = parts[target]
    with by_tcp(host) as tcp, by_socket(host) as local:
        for client in (tcp, local):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 431
            assert error_of(answer) == "the request line with the headers is longer than 16,384 bytes"
            assert client.get("/who", headers={"x": "y" * 15_000}).status_code == 200


def test_headers_that_never_end_are_431(serve: MakeHost) -> None:
    answer = raw(serve(), b"GET /who HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000)

    assert answer.startswith(b"HTTP/1.1 431 ")
    assert body_of(answer).count(b"\n") == 1


HOSTED = b"PUT /who HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GARBAGE\r\n\r\n",
        b"GET /who\r\n",
        HOSTED + b"Content-Length: " + b"9" * 5000,
        HOSTED + b"Content-Length: -1",
        HOSTED + b"Content-Length: 1\r\nContent-Length: 2",
        HOSTED + b"Host: other",
        b"GET /who HTTP/1.1",
    ],
)
def test_what_is_no_request_is_400_and_not_logged(
    serve: MakeHost, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = raw(serve(), data + b"\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert body_of(answer) == b'{"error": "this is not an HTTP request"}\n'
    assert b"x-content-type-options: nosniff" in answer
    assert not caplog.records


def test_a_client_that_goes_before_its_second_request_is_refused_leaves_nothing_in_the_log(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the second answer failed, within the app that had given the first one."""
    host, refuse, is_refused = make_host(), DoorProtocol.refuse, threading.Event()
    client = connect(host)

    def refuse_once_it_has_gone(self: DoorProtocol, status: int, reason: str) -> None:
        answer = b""
        while not answer.endswith(b"}"):  # what it has not read would have the system reset the connection
            answer += client.recv(10_000)
        client.close()
        try:
            refuse(self, status, reason)
        finally:
            is_refused.set()

    monkeypatch.setattr(DoorProtocol, "refuse", refuse_once_it_has_gone)
    client.sendall(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\nGARBAGE\r\n\r\n")

    assert is_refused.wait(TIMEOUT_S)
    with by_tcp(host) as another:
        assert another.get("/who").status_code == 200
    assert not [record for record in caplog.records if record.exc_info]


def held_connections(host: WebHost, app: App, stack: contextlib.ExitStack, count: int) -> list[socket.socket]:
    """Connections that have sent a request, whose answer the app holds back."""
    held = [stack.enter_context(connect(host, "/held")) for _ in range(count)]
    until(lambda: app.entered == count, f"{count} requests in the app")
    return held


def test_tcp_has_256_connections_one_more_gets_503_and_the_unix_socket_has_its_own(
    make_host: MakeHost, app: App
) -> None:
    host = make_host()
    with contextlib.ExitStack() as stack:
        held = held_connections(host, app, stack, 256)
        for _ in range(300):  # beyond, each is refused by itself
            refused = raw_who(host)
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert body_of(refused) == b"Service Unavailable"

        with by_socket(host) as local:  # both shared one limit: clients of TCP shut out the administrator
            assert local.get("/who").status_code == 200
        held[0].close()
        until(lambda: raw_who(host).startswith(b"HTTP/1.1 200 "), "the room that one has left")


def test_a_silent_connection_beyond_the_limit_yields_to_the_next_request(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made while all others were in use, it stayed until its deadline, and requests on the others got 503."""
    accept, accepted = DoorProtocol.connection_made, threading.Semaphore(0)
    entered, opened = threading.Event(), threading.Event()

    def count(self: DoorProtocol, transport: asyncio.Transport) -> None:
        accept(self, transport)
        accepted.release()

    async def held(request: Request) -> Response:
        entered.set()
        await asyncio.to_thread(opened.wait, TIMEOUT_S)
        return PlainTextResponse("opened")

    monkeypatch.setattr(DoorProtocol, "connection_made", count)
    host = make_host(Starlette(routes=[Route("/held", held)]), connections=1)
    with connect(host, "/held") as used, contextlib.ExitStack() as stack:
        assert entered.wait(TIMEOUT_S)
        silent = stack.enter_context(connect(host))
        assert all(accepted.acquire(timeout=TIMEOUT_S) for _ in range(2))

        opened.set()
        assert used.recv(12) == b"HTTP/1.1 200"
        used.sendall(b"GET /held HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

        assert b"HTTP/1.1 200" in read_to_end(used)
        assert read_to_end(silent) == b""


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /who HTTP/1.1\r\nX: "])
def test_300_slow_connections_hold_no_other_up(make_host: MakeHost, sent: bytes) -> None:
    """As many as the limit shut out every other client until their deadline."""
    host = make_host()
    with contextlib.ExitStack() as stack, by_tcp(host) as client:
        slow = [stack.enter_context(connect(host)) for _ in range(300)]
        for each in slow:
            with contextlib.suppress(ConnectionError):
                each.sendall(sent)

        times = []
        for _ in range(30):
            begun_s = time.monotonic()
            assert client.get("/who", headers={"connection": "close"}).status_code == 200
            times.append(time.monotonic() - begun_s)
        assert read_to_end(slow[0]) == b"", "the oldest has yielded"

    assert min(times) < 0.1  # the others as well, but for what else the machine does


def test_a_connection_that_has_had_its_answer_yields_without_a_word(make_host: MakeHost) -> None:
    """The client would take it for the answer to its next request."""
    host = make_host(connections=1)
    with connect(host, "/who") as resting:
        first = resting.recv(1 << 16)
        other = raw_who(host)
        rest = read_to_end(resting)

    assert first.startswith(b"HTTP/1.1 200 ")
    assert other.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1" not in rest


def test_a_stream_that_is_open_yields_to_nobody(make_host: MakeHost) -> None:
    host = make_host(connections=1)
    with by_tcp(host) as client, client.stream("GET", "/silent") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": still here"

        assert raw_who(host).startswith(b"HTTP/1.1 503 ")
        assert next(lines) == ""


def host_connections(host: WebHost) -> int:
    """The established connections to the host's TCP port, as the system counts them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return sum(line[1].endswith(f":{host.port:04X}") and line[3] == "01" for line in lines)


def raw_who(host: WebHost) -> bytes:
    return raw(host, b"GET /who HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


def test_a_flood_of_connections_leaves_those_that_are_open_alone(make_host: MakeHost) -> None:
    host = make_host(connections=4)
    with by_tcp(host) as client, contextlib.ExitStack() as stack:
        assert client.get("/who").status_code == 200
        flood = [stack.enter_context(connect(host)) for _ in range(400)]

        assert client.get("/who").status_code == 200

        for each in flood[:-4]:
            assert read_to_end(each) == b""
        assert client.get("/who").status_code == 200


def test_64_writes_are_under_way_and_one_more_gets_429(make_host: MakeHost, app: App) -> None:
    host = make_host()
    with by_socket(host, limits=httpx.Limits(max_connections=100)) as client, ThreadPoolExecutor(64) as pool:
        held = [pool.submit(client.post, "/held") for _ in range(64)]
        until(lambda: app.entered == 64)

        refused = client.post("/who")
        read = client.get("/who")
        open_held(host, app)
        answers = [each.result(TIMEOUT_S).status_code for each in held]

        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert error_of(refused) == "64 requests other than GET and HEAD are in flight"
        assert read.status_code == 200
        assert answers == [200] * 64
        assert client.post("/who").status_code == 200


def open_held(host: WebHost, app: App) -> None:
    """Let the held requests go, on the host's loop."""

    async def answer(request: Request) -> Response:
        app.opened.set()
        return Response()

    app.app.add_route("/open", answer)
    with by_socket(host) as client:
        assert client.get("/open").status_code == 200


def test_no_answer_within_the_deadline_is_503(make_host: MakeHost, app: App) -> None:
    host = make_host(request_deadline_s=0.2, writes=1)
    with by_socket(host) as client:
        for _ in range(2):  # the write that was late has made room
            answer = client.post("/held")
            assert answer.status_code == 503
            assert error_of(answer) == "no answer within 0.2 s"
        until(lambda: client.get("/who").status_code == 200, "an answer within the deadline")


def test_a_blocking_endpoint_is_left_at_the_deadline(make_host: MakeHost) -> None:
    opened = threading.Event()

    def blocking(request: Request) -> PlainTextResponse:  # Starlette runs it on a thread, which nothing can cancel
        opened.wait(TIMEOUT_S)
        return PlainTextResponse("late")

    host = make_host(Starlette(routes=[Route("/", blocking, methods=["POST"])]), request_deadline_s=0.2, writes=1)
    with by_socket(host) as client:
        assert client.post("/").status_code == 503
        opened.set()
        until(lambda: client.post("/").status_code == 200, "the room that the late call leaves when it ends")


@pytest.mark.parametrize(
    ("sent", "status", "deadline_s"),
    [
        (b"", b"408", 0.3),
        (b"GET /who HTTP/1.1\r\nHost: local", b"408", 0.3),
        (
            b"POST /who HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n1",
            b"408",
            0.3,
        ),
        (b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\nGET /wh", b"200", 3.0),  # the second one never arrives
        (b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200", TIMEOUT_S),
    ],
)
def test_a_request_that_does_not_arrive_ends_its_connection(
    make_host: MakeHost, sent: bytes, status: bytes, deadline_s: float
) -> None:
    host = make_host(request_deadline_s=deadline_s, keep_alive_s=0.3, anonymous_role="admin")

    answer = raw(host, sent)

    assert answer.startswith(b"HTTP/1.1 " + status)


def test_one_byte_now_and_then_does_not_prolong_the_time(make_host: MakeHost) -> None:
    host = make_host(request_deadline_s=0.3)
    with connect(host) as connection:
        connection.settimeout(0.02)
        answer = b""
        for _ in range(1000):
            with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                connection.send(b"x")
                answer += connection.recv(1000)
            if answer:
                break

    assert answer.startswith(b"HTTP/1.1 408 ")


@contextlib.contextmanager
def connected_with_little_room(host: WebHost) -> Iterator[socket.socket]:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(TIMEOUT_S)
        connection.connect(("127.0.0.1", host.port))
        yield connection


@pytest.mark.parametrize("path", [b"/big", b"/events?large"])
def test_a_client_that_does_not_read_loses_its_connection(make_host: MakeHost, app: App, path: bytes) -> None:
    host = make_host(request_deadline_s=0.3)
    with connected_with_little_room(host) as connection:
        connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(10)

        until(lambda: host_connections(host) == 0, "the host closes a connection whose client does not read")
        until(lambda: app.streams == 0, "the end of its stream")
        assert len(read_to_end(connection)) < 20_000_000


def test_a_client_that_reads_no_refusal_loses_its_connection(make_host: MakeHost, users: Users) -> None:
    """It kept its place for as long as it liked, without a token, and the stop logged a traceback."""
    host = make_host(request_deadline_s=0.3, tokens_file=users.file, requests_per_s=1_000_000)
    with connected_with_little_room(host) as connection:
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)

        until(lambda: host_connections(host) == 0, "the end of a connection whose refusals nobody reads")


def test_32_clients_have_a_stream_and_one_more_gets_429(make_host: MakeHost, app: App) -> None:
    host = make_host()
    with by_socket(host, limits=httpx.Limits(max_connections=100)) as client, contextlib.ExitStack() as stack:
        streams = [stack.enter_context(client.stream("GET", "/events")) for _ in range(32)]
        assert [each.status_code for each in streams] == [200] * 32

        refused = client.get("/events")
        assert refused.status_code == 429
        assert error_of(refused) == "32 streams of events are open already"

        streams[0].close()
        until(lambda: app.streams == 31, "the end of a stream whose client has left")
        with client.stream("GET", "/events") as again:
            assert again.status_code == 200
    until(lambda: app.streams == 0)


def test_a_stream_outlives_the_deadline_and_comes_as_events(make_host: MakeHost) -> None:
    host = make_host(request_deadline_s=1.0)
    with by_tcp(host) as client, client.stream("GET", "/events") as stream:
        lines = stream.iter_lines()
        seen = [next(lines) for _ in range(8)]
        end_s = time.monotonic() + 1.5
        while time.monotonic() < end_s:
            assert next(lines) is not None

    assert stream.headers["content-type"].startswith("text/event-stream")
    assert seen[0].startswith(":")
    assert seen[2:6] == ["event: number", "id: 0", 'data: {"number":0}', ""]


@pytest.mark.parametrize("path", ["/fails", "/exits"])
def test_an_app_that_fails_gives_500_in_one_line_and_a_traceback_in_the_log(
    make_host: MakeHost, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            raise SystemExit(3) if scope["path"] == "/exits" else RuntimeError("of the app")

    host = make_host(failing)
    with by_tcp(host) as client:
        answers = [client.get(path) for _ in range(2)]

    assert [error_of(each) for each in answers] == ["the app failed; the daemon's log has its traceback"] * 2
    assert [record.message for record in caplog.records] == [f"GET {path}: the app failed"] * 2
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize(
    "key", ["body_bytes", "header_bytes", "connections", "writes", "request_deadline_s", "keep_alive_s"]
)
def test_what_a_request_costs_is_bounded_by_a_key(key: str) -> None:
    with pytest.raises(ConfigError):
        WebConfig(**{key: -1})


def test_requests_beyond_the_pace_wait_for_their_turn(make_host: MakeHost) -> None:
    host = make_host(requests_per_s=50)
    with by_socket(host) as client:
        begun = time.monotonic()
        statuses = [client.get("/").status_code for _ in range(170)]

    assert len(set(statuses)) == 1
    assert time.monotonic() - begun >= 0.35  # 150 pass at once, 20 take a fiftieth of a second each


def test_a_stop_ends_the_wait_for_a_turn(make_host: MakeHost) -> None:
    host = make_host(requests_per_s=0.01)
    with by_socket(host) as client:
        client.get("/")  # the only one of the burst
        waiting = connect(host, "/")

        begun = time.monotonic()
        host.stop()

        assert time.monotonic() - begun < TIMEOUT_S / 2  # of the 100 s until its turn
    waiting.close()


def test_the_pace_spaces_requests_and_forgives_a_rest() -> None:
    now = 100.0
    pace = Pace(10, lambda: now)

    at_once = [pace.take_turn() for _ in range(31)]
    assert max(at_once) <= 0.0 + 1e-9
    assert [round(pace.take_turn(), 6) for _ in range(3)] == [0.1, 0.2, 0.3]

    now = 1000.0
    assert [pace.take_turn() <= 1e-9 for _ in range(32)] == [True] * 31 + [False]
