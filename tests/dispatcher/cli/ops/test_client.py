"""Commands against daemons that answer in their own way, and against daemons that do not answer as they should."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from . import fake_daemon as fake
from .conftest import Run, Start

pytestmark = pytest.mark.long


def answer_and_close(handler: BaseHTTPRequestHandler) -> None:
    fake.reply(handler, 200, fake.process())
    handler.close_connection = True


def body(content: bytes, status: str = "200 OK") -> Callable[..., None]:
    return fake.raw(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content))


def test_one_connection_serves_all_requests(run: Run, start: Start) -> None:
    daemon = start()
    connections = set()
    for path in ("/process", "/dispatchers"):
        answer: Any = daemon.answers[path]
        daemon.answers[path] = lambda handler, answer=answer: (
            connections.add(id(handler.connection)),
            fake.reply(handler, 200, answer),
        )

    assert run("status").code == 0

    assert len(connections) == 1


def test_a_part_of_a_path_is_quoted_whole(run: Run, start: Start) -> None:
    name = "a/b?c#d%é "
    start(answers=fake.answers_of(fake.numbers(name, running=fake.running())))

    assert "NodeEventType.UPDATE of node_17" in run("stack", "-d", name).out


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answer_and_close, id="the connection is made anew for the next request"),
        pytest.param(
            fake.raw(b'HTTP/1.1 200 OK\r\n\r\n{"pid": 1, "name": "rm", "uptime_s": 1, "health": {"status": "ok"}}'),
            id="the answer ends with it: the socket was closed before the body had been read",
        ),
    ],
)
def test_a_daemon_may_close_a_connection_after_an_answer(answer: Callable[..., None], run: Run, start: Start) -> None:
    start(answers=fake.calm() | {"/process": answer})

    assert run("status").code == 0


# -- daemons that do not answer as they should -------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "head", [None, b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"], ids=repr
)
def test_a_daemon_that_does_not_answer_in_time_is_given_up(
    head: bytes | None, run: Run, start: Start, release: threading.Event
) -> None:
    """A byte now and then does not extend the deadline."""
    start(answers={"": (lambda _: release.wait(30)) if head is None else fake.dripping(head, release)})

    ended = run("status")

    assert ended.code == 1
    assert ended.err.startswith("dispatcher: rm (4711): no answer within 0.2 s; ")
    assert "`py-spy dump " in ended.err


CLOSED = "the connection closed before the answer was complete"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (fake.raw(b""), CLOSED),
        (fake.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), CLOSED),
        (fake.raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "BadStatusLine"),
        (fake.raw(b"\x1b[2J\x00\xff\n\n"), "BadStatusLine"),
        (fake.raw(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n"), "headers"),
        (fake.raw(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n"), "header line"),
        (body(b"<html>\x1b[2J"), "not JSON: '<html>"),
        (body(b"[" * 100_000), "not JSON"),
        (body(b'{"pid": ' + b"9" * 5000 + b"}"), "not JSON"),
        (body(b"\xff\xfe"), "not JSON"),
        (body(b"[]"), "/process: invalid answer: "),
        (body(b"{}"), "/process: invalid pid: Field required"),
        (body(b'{"pid": 1, "name": "x", "uptime_s": NaN}'), "/process: invalid uptime_s"),
        (body(b'{"pid": 1e400, "name": "x", "uptime_s": 1}'), "/process: invalid pid"),
        (body(b'{"pid": 1, "name": "x", "uptime_s": 1e300}'), "/process: invalid uptime_s"),
        (body(b"\x1b[2J", "500 No"), "HTTP 500"),
        (body(b"", "302 Found"), "HTTP 302: no reason given"),
        (body(b'{"error": "8 such requests are in flight"}', "429 No"), "HTTP 429: 8 such requests are in flight"),
        (body(b'{"error": ["\\u001b"]}', "503 No"), "HTTP 503"),
        (body(b'"text"', "503 No"), 'HTTP 503: "text"'),
        (body(b" " * (16 * 1024 * 1024 + 1)), "an answer of more than 16 MiB"),
        # `http.client` read a chunk of the size -1 to the end of the connection, however much came.
        (fake.raw(CHUNKED + b"-1\r\n" + b" " * (17 * 1024 * 1024)), "an answer of more than 16 MiB"),
        # It was taken for a daemon that is not there.
        (fake.raw(CHUNKED + b"-5\r\n"), ""),
    ],
)
def test_nonsense_is_one_printable_line_and_exit_code_1(
    answer: Callable[..., None], message: str, run: Run, start: Start
) -> None:
    start(answers={"": answer})

    ended = run("status")

    assert (ended.code, ended.out) == (1, "")
    [line] = ended.err.splitlines()
    assert line.startswith("dispatcher: rm (4711): ")
    assert message in line
    assert line.isprintable()
    assert len(line) < 1000


@pytest.mark.parametrize(
    ("token", "advice"), [(None, "pass a token with --token-file"), ("x", "check the token and its role")]
)
def test_a_refused_token_is_exit_code_2(token: str | None, advice: str, run: Run, start: Start, tmp_path: Path) -> None:
    start(answers={"": fake.refusing(401, "a token is needed")})
    (tmp_path / "token").write_text("x")

    ended = run("status", *(("--token-file", tmp_path / "token") if token else ()))

    assert ended.code == 2
    assert ended.err == f"dispatcher: rm (4711): access denied (HTTP 401): a token is needed; {advice}\n"


# -- doors that cannot be opened ---------------------------------------------------------------------------------------

STOPPED = "rm (4711): no process is listening there; the daemon has stopped or is still starting"


def test_a_daemon_that_ends_between_two_answers(run: Run, start: Start) -> None:
    daemon = start()

    def answer_and_end(handler: BaseHTTPRequestHandler) -> None:
        daemon.end()
        answer_and_close(handler)

    daemon.answers["/process"] = answer_and_end

    assert run("status") == (2, "", f"dispatcher: {STOPPED}\n")


def test_no_permission_on_the_socket(run: Run, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser, as whom tests may run, has every permission: the system's refusal is played."""
    start()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)

    assert run("status") == (2, "", "dispatcher: rm (4711): permission denied; run this as the daemon's user\n")
