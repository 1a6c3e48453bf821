"""The life of a web host, with real clients: start, stop, forks, kills."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from dispatcher import CompositeService, ConfigError, DispatcherError, Service, ServiceState
from dispatcher.web import WebConfig, WebHost, doors, in_pieces, server, within
from dispatcher.web import host as web_host
from dispatcher.web.protocol import Peer

from ...kit import TIMEOUT_S, tries, until
from .conftest import App, MakeHost, audited, by_socket, by_tcp, connect, error_of, read_to_end

pytestmark = pytest.mark.long


def web_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.endswith("-web")]


def test_by_default_there_is_a_unix_socket_for_the_user_alone_and_no_tcp(
    folder: Path, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with WebHost(app.app, name="central") as host:
        path = folder / "dispatcher" / f"central-{os.getpid()}.sock"
        assert (host.socket_path, host.port, host.url) == (path, None, None)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert web_threads() == ["central-web"]
        assert [door.path for door in doors.find_doors()] == [path]
        with by_socket(host) as client:
            assert client.get("/who").json()["role"] == "admin"

    assert not path.exists()
    assert web_threads() == []


def test_a_uvicorn_that_no_longer_calls_what_the_limits_override_fails_the_start(
    folder: Path, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method of another name would never be called: the door would serve without its limits, and say nothing."""
    monkeypatch.delattr(H11Protocol, "on_response_complete")
    host = WebHost(app.app, WebConfig(socket_path=folder / "web.sock"), name="central")

    with pytest.raises(DispatcherError, match=r"no H11Protocol.on_response_complete, .* 'uvicorn<"):
        host.start()

    assert web_threads() == []
    assert doors.find_doors() == []


def test_an_answer_over_tcp_does_not_wait_for_acknowledgements(folder: Path) -> None:
    """Nagle's algorithm held back the body of each answer until its head was acknowledged: 40 ms."""

    async def no_delay(request: Request) -> Response:
        connection = Peer.of(request.scope).transport.get_extra_info("socket")
        return JSONResponse(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    config = WebConfig(socket_path=folder / "a.sock", port=0)
    with WebHost(Starlette(routes=[Route("/", no_delay)]), config) as host, by_tcp(host) as client:
        assert client.get("/").json() == 1


def test_the_tcp_door_is_at_its_url_also_on_ipv6(make_host: MakeHost) -> None:
    try:
        host = make_host(host="::1")
    except ConfigError:
        pytest.skip("no IPv6 on this machine")

    with by_tcp(host) as client:
        assert client.get("/who").status_code == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_beyond_this_machine_it_needs_tokens_or_certificates(make_host: MakeHost, address: str) -> None:
    expected = f"web.host {address}: listening beyond this machine needs web.tokens_file or web.tls.client_ca"
    with pytest.raises(ConfigError) as caught:
        make_host(host=address)

    assert str(caught.value) == expected
    assert web_threads() == []


def test_an_address_in_use_is_refused_in_one_line_and_the_unix_socket_goes(make_host: MakeHost, folder: Path) -> None:
    first = make_host(name="first")

    with pytest.raises(ConfigError, match=rf"web.host 127.0.0.1, web.port {first.port}: cannot listen there: Addr"):
        make_host(name="second", port=first.port)

    assert not (folder / "second.sock").exists()


@pytest.mark.parametrize("host", ["no such host", "x" * 300, "a\0b", "\x1b[31m"], ids=ascii)
def test_a_host_that_is_none_is_refused_in_one_printable_line(app: App, host: str) -> None:
    service = WebHost(app.app, WebConfig.model_construct(host=host, port=0, unix_socket=False))
    service.init()

    with pytest.raises(ConfigError, match=r"^web\.host ") as caught:
        service.start()

    assert str(caught.value).isprintable()


async def nothing() -> None:
    """The begin or the end of an app that has none."""


async def hang() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise RuntimeError("no database")


def app_of(begin: Callable[[], Awaitable[None]] = nothing, end: Callable[[], Awaitable[None]] = nothing) -> Starlette:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await begin()
        yield
        await end()

    return Starlette(lifespan=lifespan)


@pytest.mark.parametrize(
    ("begin", "said"), [(fail, "web: the app failed to start"), (hang, r"web: the app did not start within 0\.5 s")]
)
def test_an_app_that_fails_or_hangs_at_its_start_fails_the_start(
    make_host: MakeHost, folder: Path, monkeypatch: pytest.MonkeyPatch, begin: Any, said: str
) -> None:
    monkeypatch.setattr("dispatcher.web.server._LONGEST_START_S", 0.5 if begin is hang else TIMEOUT_S)

    with pytest.raises(DispatcherError, match=said):
        make_host(app_of(begin))

    assert not (folder / "web.sock").exists()
    until(lambda: web_threads() == [])


def test_an_app_whose_shutdown_hangs_does_not_delay_a_stop(make_host: MakeHost) -> None:
    host = make_host(app_of(end=hang))

    assert stop_timed(host) < MOST_S
    assert web_threads() == []


def test_the_app_s_lifespan_begins_and_ends_with_the_host(make_host: MakeHost) -> None:
    seen = []

    async def begin() -> None:
        seen.append("begun")

    async def end() -> None:
        seen.append("ended")

    host = make_host(app_of(begin, end))
    assert seen == ["begun"]

    host.stop()
    assert seen == ["begun", "ended"]


def test_without_the_extra_the_message_names_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "dispatcher.web.server", raising=False)
    monkeypatch.delitem(sys.modules, "dispatcher.web.protocol", raising=False)
    monkeypatch.delitem(sys.modules, "dispatcher.web.gate", raising=False)
    host = WebHost(app.app)
    host.init()

    with pytest.raises(DispatcherError, match=r"pip install 'central-dispatcher\[web\]'"):
        host.start()


# -- stopping ----------------------------------------------------------------------------------------------------------


LONGEST_STOP_S = web_host.LONGEST_STOP_S  # as it is where no test has changed it
MOST_S = TIMEOUT_S / 2
"""For a stop that takes a second at most, on a machine that has more to do; a delayed one waits for its clients."""


def stop_timed(host: WebHost) -> float:
    begun_s = time.monotonic()
    host.stop()
    return time.monotonic() - begun_s


def test_the_parts_of_a_stop_fit_into_its_longest_time() -> None:
    assert server._POLITE_S + server._CLOSING_S + server._LAST_S < LONGEST_STOP_S < 1.0


@pytest.mark.slow
def test_open_streams_never_delay_a_stop(make_host: MakeHost, app: App, caplog: pytest.LogCaptureFixture) -> None:
    """With streams open on both doors, each stop ends them at once; nothing is logged."""
    for number in range(tries(8)):
        host = make_host(name=f"central{number}")
        with (
            by_tcp(host) as tcp,
            by_socket(host) as local,
            tcp.stream("GET", "/events") as first,
            local.stream("GET", "/events") as second,
            local.stream("GET", "/silent") as third,
        ):
            texts = [stream.iter_text() for stream in (first, second, third)]
            assert all(map(next, texts))
            until(lambda: app.streams == 2)

            took_s = stop_timed(host)

            assert all("".join(text) is not None for text in texts), "each stream has come to its end, without an error"
        assert (took_s < MOST_S, app.streams) == (True, 0), took_s
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []


def test_neither_held_nor_unread_nor_silent_clients_delay_a_stop(make_host: MakeHost, app: App) -> None:
    host = make_host()
    idle, halfway, unread, held = (connect(host, path) for path in ("", "", "/big", "/held"))
    halfway.sendall(b"GET /who HTTP/1.1\r\nHost: localhost\r\nX-")
    assert unread.recv(100)
    until(lambda: app.entered)

    took_s = stop_timed(host)

    assert took_s < MOST_S
    assert web_threads() == []
    for each in (idle, halfway, unread, held):
        read_to_end(each)
        each.close()


def test_a_write_that_a_stop_leaves_unanswered_has_that_in_its_audit_line(
    make_host: MakeHost, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """The line said `no answer within 15 s`, a moment after the request."""
    caplog.set_level(logging.INFO)
    host = make_host()
    with connect(host) as held:
        held.sendall(b"POST /held HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        until(lambda: app.entered)

        host.stop()

    (line,) = audited(caplog)
    assert line.endswith(": the daemon stopped before the answer")


def test_an_app_that_blocks_the_loop_does_not_delay_a_stop(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dispatcher.web.host.LONGEST_STOP_S", 0.1)
    entered, opened = threading.Event(), threading.Event()

    async def blocking(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            entered.set()
            opened.wait(TIMEOUT_S)

    host = make_host(blocking)
    client = connect(host, "/")
    assert entered.wait(TIMEOUT_S)

    took_s = stop_timed(host)

    assert took_s < MOST_S
    assert "the door's event loop is blocked" in caplog.text
    assert host.socket_path is not None
    assert not host.socket_path.exists()
    opened.set()
    until(lambda: web_threads() == [])
    client.close()


def test_a_handler_thread_of_the_app_may_stop_the_host(make_host: MakeHost) -> None:
    hosts: list[WebHost] = []

    async def stopping(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            hosts[0].stop()

    hosts.append(make_host(stopping))
    client = connect(hosts[0], "/")

    until(lambda: web_threads() == [])
    assert hosts[0].state is ServiceState.STOPPED
    client.close()


class Held(Service):
    """A service whose stop the test holds up, as a draining dispatcher does."""

    def __init__(self) -> None:
        super().__init__("held")
        self.stopping = threading.Event()
        self.opened = threading.Event()

    def service_stop(self) -> None:
        self.stopping.set()
        self.opened.wait(TIMEOUT_S)


@pytest.mark.parametrize("is_nested", [False, True])
def test_while_the_daemon_drains_reads_are_answered_and_writes_refused(folder: Path, app: App, is_nested: bool) -> None:
    host = WebHost(app.app, WebConfig(socket_path=folder / "web.sock"))
    daemon, draining = CompositeService("daemon"), Held()
    if is_nested:
        inner = CompositeService("door")
        inner.add_service(host)
        daemon.add_service(inner)
    else:
        daemon.add_service(host)
    daemon.add_service(draining)
    with daemon, by_socket(host) as client:
        assert client.post("/who").status_code == 200

        stopper = threading.Thread(target=daemon.stop)
        stopper.start()
        assert draining.stopping.wait(TIMEOUT_S)
        refused, read = client.post("/who"), client.get("/who")
        draining.opened.set()
        stopper.join(TIMEOUT_S)

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert error_of(refused) == "the daemon is stopping"
    assert read.status_code == 200


# -- other processes ---------------------------------------------------------------------------------------------------

DAEMON = """
import sys, threading
from pathlib import Path
from starlette.applications import Starlette
from dispatcher.web import WebHost, WebConfig
host = WebHost(Starlette(), name="central")
with host:
    print(host.socket_path, flush=True)
    sys.stdin.read()
"""


def start_daemon(folder: Path, code: str = DAEMON) -> tuple[subprocess.Popen[str], str]:
    """A daemon in a process of its own, and the first line that it prints."""
    daemon = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )
    assert daemon.stdout is not None
    return daemon, daemon.stdout.readline().strip()


def test_what_kill_9_leaves_is_removed_by_the_next_door(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    daemon, line = start_daemon(folder)
    path = Path(line)
    assert path.name == f"central-{daemon.pid}.sock"
    assert doors.is_answering(path)
    daemon.send_signal(signal.SIGKILL)
    daemon.communicate(timeout=TIMEOUT_S)
    assert path.exists()
    assert not doors.is_answering(path)

    following, line = start_daemon(folder)
    other = Path(line)

    assert not path.exists()
    assert doors.is_answering(other)
    following.communicate("", timeout=TIMEOUT_S)
    assert following.returncode == 0
    assert not other.exists()


FORKS = """
import os, sys
from pathlib import Path
from starlette.applications import Starlette
from dispatcher.web import WebHost, WebConfig

def show(who):
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(each.readlink()))
        except OSError:
            pass
    sockets = sum(each.startswith("socket:") for each in found)
    print(who, sockets, host.socket_path is not None, host.port is not None, flush=True)

host = WebHost(Starlette(), WebConfig(port=0), name="central")
with host:
    print(host.socket_path, host.port, flush=True)
    sys.stdin.readline()
    show("parent")
    child = os.fork()
    if not child:
        show("child")
        host.stop()
        show("stopped")
        os._exit(0)
    os.waitpid(child, 0)
    show("parent")
    sys.stdin.read()
"""


def test_a_forked_child_has_no_door_and_the_parent_s_stays(folder: Path) -> None:
    daemon, line = start_daemon(folder, FORKS)
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    path, port = line.split()
    local = httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://door")
    tcp = httpx.Client(base_url=f"http://127.0.0.1:{port}")
    with local, tcp:
        assert local.get("/").status_code == tcp.get("/").status_code == 404

        daemon.stdin.write("fork\n")
        daemon.stdin.flush()
        lines = [daemon.stdout.readline().split() for _ in range(4)]

        # Two that listen, two connections, and the pair by which other threads wake the loop.
        assert lines == [
            ["parent", "6", "True", "True"],
            ["child", "2", "False", "False"],
            ["stopped", "2", "False", "False"],
            ["parent", "6", "True", "True"],
        ]
        assert local.get("/").status_code == tcp.get("/").status_code == 404
    assert Path(path).exists()
    daemon.communicate("", timeout=TIMEOUT_S)
    assert not Path(path).exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nobody_answers_for_a_parent_that_has_ended(folder: Path) -> None:
    """A child kept the listening socket: clients of the ended daemon were accepted by the system, and waited."""
    code = DAEMON.replace(
        "    sys.stdin.read()",
        "    import os, time\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        print('forked', flush=True)\n"
        "        sys.stdin.read()\n"
        "        os._exit(0)\n"
        "    os.kill(os.getpid(), 9)",
    )
    daemon, line = start_daemon(folder, code)
    path = Path(line)
    assert daemon.stdout is not None
    daemon.wait(TIMEOUT_S)
    assert daemon.stdout.readline() == "forked\n"  # by then the child has closed what it inherited

    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(path))
    daemon.communicate("", timeout=TIMEOUT_S)


def test_a_mail_that_is_late_costs_its_request_only() -> None:
    late: Future[int] = Future()
    in_time: Future[int] = Future()
    in_time.set_result(7)

    async def ask() -> None:
        assert await within(in_time, 10) == 7
        with pytest.raises(TimeoutError):
            await within(late, 0.001)

    asyncio.run(ask())
    assert late.cancelled()


def test_long_work_gives_others_their_turn() -> None:
    now_s = [0.0]
    turns = []

    async def work() -> int:
        done = 0
        async for _ in in_pieces(range(100), 0.005, clock_s=lambda: now_s[0]):
            done += 1
            now_s[0] += 0.001
        return done

    async def other() -> None:
        while True:
            turns.append(now_s[0])
            await asyncio.sleep(0)

    async def both() -> int:
        beside = asyncio.ensure_future(other())
        done = await work()
        beside.cancel()
        return done

    assert asyncio.run(both()) == 100
    assert len(turns) >= 19
