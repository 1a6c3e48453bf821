"""Hosts on free ports and in temporary folders, and an app to serve."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'central-dispatcher[web]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'central-dispatcher[web]'")
pytest.importorskip("httpx", reason="httpx is not installed: scripts/test does")

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dispatcher.web import WebConfig, WebHost, describe_write, event_bytes, event_stream, require

from ...kit import TIMEOUT_S

METHODS = ["GET", "POST", "PUT", "DELETE"]
PATIENT = {"request_deadline_s": 100 * TIMEOUT_S, "keep_alive_s": 100 * TIMEOUT_S}
"""Of hosts whose deadlines no test is about: on a busy machine, a request that is held would not outlast the usual."""


@pytest.fixture(autouse=True)
def _patient_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits for the host's thread until it has ended: on a busy machine, it may not have done so in 0.9 s."""
    monkeypatch.setattr("dispatcher.web.host.LONGEST_STOP_S", TIMEOUT_S)


class App:
    """An app whose endpoints the test can hold up."""

    def __init__(self) -> None:
        self.entered = 0
        self.opened = asyncio.Event()  # set it by `open`
        self.streams = 0
        self.app = Starlette(
            routes=[
                Route("/who", self.who, methods=METHODS),
                Route("/submit", self.submit, methods=["POST"]),
                Route("/admin", require("admin")(self.who), methods=METHODS),
                Route("/held", self.held, methods=METHODS),
                Route("/big", self.big),
                Route("/events", self.events),
                Route("/silent", self.silent),
                Route("/fails", self.fails, methods=METHODS),
                Route("/cached", self.cached),
            ]
        )

    async def who(self, request: Request) -> Response:
        principal = request.scope["principal"]
        body = await request.body()
        return JSONResponse({"name": principal.name, "role": principal.role, "bytes": len(body)})

    async def submit(self, request: Request) -> Response:
        describe_write(request.scope, operation="Submit Application Request", target="app_17")
        return JSONResponse({}, 202)

    async def held(self, request: Request) -> Response:
        self.entered += 1
        await self.opened.wait()
        return PlainTextResponse("opened")

    async def big(self, request: Request) -> Response:
        return PlainTextResponse("x" * 20_000_000)

    async def events(self, request: Request) -> Response:
        padding = {"padding": "x" * 100_000} if "large" in request.query_params else {}

        async def numbers() -> AsyncIterator[bytes]:
            self.streams += 1
            try:
                number = 0
                while True:
                    yield event_bytes("number", {"number": number} | padding, number=number)
                    number += 1
                    await asyncio.sleep(0)
            finally:
                self.streams -= 1

        return event_stream(request.scope["web_host"], numbers())

    async def silent(self, request: Request) -> Response:
        async def nothing() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        return event_stream(request.scope["web_host"], nothing(), comment_after_s=0.02)

    async def fails(self, request: Request) -> Response:
        raise RuntimeError("of the app")

    async def cached(self, request: Request) -> Response:
        return Response("body {}", media_type="text/css", headers={"Cache-Control": "max-age=60"})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: that of a Unix socket has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="door-"))
    yield path
    shutil.rmtree(path)


MakeHost = Callable[..., WebHost]


@pytest.fixture
def make_host(folder: Path, app: App) -> Iterator[MakeHost]:
    """Makes started hosts of the app, by keys of WebConfig; they have a TCP port unless `port=None`."""
    hosts: list[WebHost] = []

    def make(
        served: Any = None,
        name: str = "web",
        takes_form: Callable[[str], bool] = lambda _: False,
        **keys: Any,
    ) -> WebHost:
        keys = {"port": 0, "socket_path": folder / f"{name}.sock", **PATIENT, **keys}
        settings, app_served = WebConfig(**keys), served if served is not None else app.app
        host = WebHost(app_served, settings, name=name, takes_form=takes_form)
        hosts.append(host)
        host.init()
        host.start()
        return host

    yield make
    for host in hosts:
        host.stop()


@pytest.fixture(scope="module")
def serve() -> Iterator[MakeHost]:
    """A started host with these keys of WebConfig, one for the whole module. `forms`: a path that takes them."""
    folder = Path(tempfile.mkdtemp(prefix="door-"))
    hosts: dict[str, WebHost] = {}

    def served(forms: str = "", **keys: Any) -> WebHost:
        key = repr((forms, sorted(keys.items())))
        if key not in hosts:
            settings = WebConfig(port=0, socket_path=folder / f"{len(hosts)}.sock", **PATIENT, **keys)
            hosts[key] = WebHost(App().app, settings, takes_form=lambda path: path == forms)
            hosts[key].init()
            hosts[key].start()
        return hosts[key]

    yield served
    for host in hosts.values():
        host.stop()
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Users:
    """A tokens file with alice, who may view, ursula, a user, and the administrator boss."""

    file: Path
    tokens: Mapping[str, str]

    def bearer(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[name]}"}


def add_user(file: Path, name: str, role: str) -> str:
    """Add a line to the tokens file; returns the token."""
    token = secrets.token_urlsafe()
    with file.open("a") as tokens:
        tokens.write(f"{name} {role} {digest_of(token)}\n")
    file.chmod(0o600)
    return token


def digest_of(token: str) -> str:
    """The token as a line of the file has it."""
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    file = tmp_path_factory.mktemp("users") / "tokens"
    roles = {"alice": "view", "ursula": "user", "boss": "admin"}
    return Users(file, {name: add_user(file, name, role) for name, role in roles.items()})


def by_socket(host: WebHost, **options: Any) -> httpx.Client:
    """A client of the Unix socket."""
    transport = httpx.HTTPTransport(uds=str(host.socket_path))
    return httpx.Client(transport=transport, base_url="http://door", timeout=TIMEOUT_S, trust_env=False, **options)


def by_tcp(host: WebHost, **options: Any) -> httpx.Client:
    """A client of the TCP port."""
    return httpx.Client(base_url=str(host.url), timeout=TIMEOUT_S, trust_env=False, **options)


def connect(host: WebHost, path: str = "") -> socket.socket:
    """A plain connection to the TCP port, which has asked for the path if there is one."""
    assert host.port is not None
    connection = socket.create_connection(("127.0.0.1", host.port), TIMEOUT_S)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() if path else b"")
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the server ends the connection; fails the test if it does not."""
    received = bytearray()
    while True:
        try:
            piece = connection.recv(1 << 16)
        except ConnectionResetError:
            return bytes(received)
        if not piece:
            return bytes(received)
        received += piece


def raw(host: WebHost, data: bytes) -> bytes:
    """All that the door answers to these bytes over TCP, until it ends the connection."""
    with connect(host) as connection:
        connection.sendall(data)
        return read_to_end(connection)


def ask(host: WebHost, request: str, *headers: str, body: str = "") -> tuple[int, str]:
    """Status and body of the answer over TCP to a request line with these headers; `Host: localhost` is the default."""
    given = {each.partition(":")[0].lower() for each in headers}
    more = [] if "host" in given else ["Host: localhost"]
    more += [f"Content-Length: {len(body)}"] if body and "transfer-encoding" not in given else []
    lines = [f"{request} HTTP/1.1", *more, *headers, "Connection: close", "", body]
    head, _, content = raw(host, "\r\n".join(lines).encode("latin-1")).partition(b"\r\n\r\n")
    return int(head.split()[1]), content.decode()


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]) -> Iterator[int]:
    """The port of a plain web server; `answer`: status, headers and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answer(self)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "dispatcher.audit"]


def error_of(answer: httpx.Response) -> str:
    """The one line of JSON of an answer that refuses."""
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.text.count("\n") <= 1
    [(key, reason)] = answer.json().items()
    assert key == "error"
    return str(reason)
