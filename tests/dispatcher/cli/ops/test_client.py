"""The client against daemons that answer, and against daemons that do not answer as they should."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli.ops.client import Address, Client
from dispatcher.cli.ops.errors import NoAnswerError, NoDaemonError, NotThereError, RefusedError
from dispatcher.ops.answers import Page
from dispatcher.ops.dispatchers import DispatcherNumbers
from dispatcher.ops.process import Process

from . import fake_daemon as fake
from .conftest import Start

pytestmark = pytest.mark.long

SHORT_S = 0.2


def client_of(daemon: fake.FakeDaemon, timeout_s: float = 10.0, **more: Any) -> Client:
    return Client(Address("rm (4711)", socket=daemon.path, **more), timeout_s)


def ask(daemon: fake.FakeDaemon, timeout_s: float = 10.0, **more: Any) -> Process:
    with client_of(daemon, timeout_s, **more) as client:
        return client.get(Process, "process")


def test_one_connection_serves_all_requests(start: Start) -> None:
    daemon = start()
    connections = []
    daemon.answers["/process"] = lambda handler: (
        connections.append(handler.client_address or id(handler.connection)),
        fake.reply(handler, 200, fake.process()),
    )

    with client_of(daemon) as client:
        pids = [client.get(Process, "process").pid for _ in range(3)]

    assert pids == [4711] * 3
    assert len(set(connections)) == 1


def test_a_part_of_a_path_is_quoted_whole(start: Start) -> None:
    name = "a/b?c#d%é "
    daemon = start(answers={f"/dispatchers/{name}": fake.numbers(name)})

    with client_of(daemon) as client:
        assert client.get(DispatcherNumbers, "dispatchers", name).name == name


def test_what_was_not_given_is_not_in_the_query(start: Start) -> None:
    daemon = start()

    with client_of(daemon) as client:
        client.get(Page[DispatcherNumbers], "dispatchers", limit=5, after=None)

    assert daemon.asked == ["/ops/v1/dispatchers?limit=5"]


def test_a_connection_that_the_daemon_has_closed_in_between_is_made_anew(start: Start) -> None:
    daemon = start()

    def answer_and_close(handler: BaseHTTPRequestHandler) -> None:
        fake.reply(handler, 200, fake.process())
        handler.close_connection = True

    daemon.answers["/process"] = answer_and_close

    with client_of(daemon) as client:
        assert [client.get(Process, "process").pid for _ in range(3)] == [4711] * 3


def test_a_token_is_sent_as_the_bearer(start: Start) -> None:
    daemon = start()

    with client_of(daemon, token="abc") as client:
        client.get(Process, "process")

    assert daemon.headers[0]["Authorization"] == "Bearer abc"


def test_an_answer_may_end_with_its_connection(start: Start) -> None:
    """The socket was closed before the body had been read."""
    answer = b'HTTP/1.1 200 OK\r\n\r\n{"pid": 1, "name": "rm", "uptime_s": 1, "health": {"status": "ok"}}'

    assert ask(start(answers={"/process": fake.raw(answer)})).pid == 1


# -- daemons that do not answer as they should -------------------------------------------------------------------------


def test_a_daemon_that_does_not_answer_in_time_is_given_up(start: Start) -> None:
    release = threading.Event()
    daemon = start(answers={"": lambda handler: release.wait(30)})
    try:
        with pytest.raises(NoAnswerError, match=r"rm \(4711\): no answer within 0.2 s; .*py-spy dump"):
            ask(daemon, SHORT_S)
    finally:
        release.set()


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"], ids=repr
)
def test_a_byte_now_and_then_does_not_move_the_deadline(head: bytes, start: Start) -> None:
    release = threading.Event()
    daemon = start(answers={"": fake.dripping(head, release)})
    try:
        with pytest.raises(NoAnswerError, match="no answer within"):
            ask(daemon, SHORT_S)
    finally:
        release.set()


def test_a_daemon_that_ends_between_two_answers(start: Start) -> None:
    daemon = start()
    with client_of(daemon) as client:
        client.get(Process, "process")
        daemon.end()

        with pytest.raises(NoDaemonError, match=r"rm \(4711\): no process is listening there; the daemon has stopped"):
            client.get(Process, "process")


@pytest.mark.parametrize(
    "answer",
    [
        fake.raw(b""),
        fake.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n"),
        fake.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
    ],
    ids=["nothing", "head", "body"],
)
def test_a_daemon_that_ends_in_the_middle_of_an_answer(answer: Callable[..., None], start: Start) -> None:
    with pytest.raises(NoAnswerError, match="the connection closed before the answer was complete"):
        ask(start(answers={"": answer}))


def body(content: bytes, status: str = "200 OK") -> Callable[..., None]:
    return fake.raw(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (fake.raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "BadStatusLine"),
        (fake.raw(b"\x1b[2J\x00\xff\n\n"), "BadStatusLine"),
        (fake.raw(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n"), "headers"),
        (fake.raw(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n"), "header line"),
        (body(b"<html>\x1b[2J"), "not JSON: '<html>"),
        (body(b"{"), "not JSON"),
        (body(b"[" * 100_000), "not JSON"),
        (body(b'{"pid": ' + b"9" * 5000 + b"}"), "not JSON"),
        (body(b"\xff\xfe"), "not JSON"),
        (body(b"[]"), "/process: invalid answer: "),
        (body(b"null"), "/process: invalid answer: "),
        (body(b"{}"), "/process: invalid pid: Field required"),
        (body(b'{"pid": 1, "name": "x", "uptime_s": NaN}'), "/process: invalid uptime_s"),
        (body(b'{"pid": 1e400, "name": "x", "uptime_s": 1}'), "/process: invalid pid"),
        (body(b'{"pid": 1, "name": "x", "uptime_s": 1e300}'), "/process: invalid uptime_s"),
        (body(b"\x1b[2J", "500 No"), "HTTP 500"),
        (body(b"", "302 Found"), "HTTP 302: no reason given"),
        (body(b'{"error": "8 such requests are in flight"}', "429 No"), "HTTP 429: 8 such requests are in flight"),
        (body(b'{"error": ["\\u001b"]}', "503 No"), "HTTP 503"),
        (body(b'"text"', "503 No"), "HTTP 503"),
    ],
)
def test_nonsense_is_one_printable_line(answer: Callable[..., None], message: str, start: Start) -> None:
    with pytest.raises(NoAnswerError, match=message) as raised:
        ask(start(answers={"": answer}))

    text = str(raised.value)
    assert text.startswith("rm (4711): ")
    assert text.isprintable()
    assert len(text) < 1000


def test_an_answer_has_a_greatest_size(start: Start) -> None:
    with pytest.raises(NoAnswerError, match="an answer of more than 16 MiB"):
        ask(start(answers={"": body(b" " * (16 * 1024 * 1024 + 1))}))


def test_chunks_count_for_the_greatest_size_too(start: Start) -> None:
    """`http.client` read a chunk of the size -1 to the end of the connection, however much came."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"

    with pytest.raises(NoAnswerError, match="an answer of more than 16 MiB"):
        ask(start(answers={"": fake.raw(head + b" " * (17 * 1024 * 1024))}))


def test_a_chunk_of_a_negative_size_is_nonsense(start: Start) -> None:
    """It was taken for a daemon that is not there."""
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n"

    with pytest.raises(NoAnswerError):
        ask(start(answers={"": fake.raw(answer)}))


@pytest.mark.parametrize(
    ("token", "advice"), [(None, "pass a token with --token-file"), ("x", "check the token and its role")]
)
def test_a_refused_token_is_its_own_error(token: str | None, advice: str, start: Start) -> None:
    daemon = start(answers={"": fake.refusing(401, "a token is needed")})

    with pytest.raises(RefusedError, match=rf"access denied \(HTTP 401\): a token is needed; {advice}"):
        ask(daemon, token=token)


def test_what_is_not_there_is_told_by_the_daemon(start: Start) -> None:
    with (
        client_of(start()) as client,
        pytest.raises(NotThereError, match=r"rm \(4711\): /entities/app_9: nothing has this path"),
    ):
        client.get_json("entities", "app_9")


# -- doors that cannot be opened ---------------------------------------------------------------------------------------


def test_a_socket_on_which_nobody_listens(tmp_path: Path) -> None:
    path = tmp_path / "rm-1.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    with pytest.raises(NoDaemonError, match="no process is listening there"):
        Client(Address("rm (1)", socket=path)).get(Process, "process")


def test_no_socket(tmp_path: Path) -> None:
    with pytest.raises(NoDaemonError, match="no process is listening there"):
        Client(Address("rm (1)", socket=tmp_path / "no.sock")).get(Process, "process")


@pytest.mark.parametrize("path", ["x" * 500, "a\0b"])
def test_a_path_that_no_socket_can_have(path: str) -> None:
    with pytest.raises(NoDaemonError):
        Client(Address("rm", socket=Path(path))).get(Process, "process")


def test_no_permission_on_the_socket(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser, as whom tests may run, has every permission: the system's refusal is played."""
    daemon = start()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)

    with pytest.raises(NoDaemonError, match=r"permission denied; run this as the daemon's user"):
        ask(daemon)


def test_a_port_on_which_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    with pytest.raises(NoDaemonError, match="no process is listening there"):
        Client(Address("http://127.0.0.1", host="127.0.0.1", port=port)).get(Process, "process")
