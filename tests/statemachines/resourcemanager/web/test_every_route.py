"""Every route of the resource manager's web application: while a handler hangs, and whatever a client sends."""

from __future__ import annotations

import gc
import gzip
import json
import logging
import socket
from collections import Counter
from contextlib import closing, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple

import pytest

from ....kit import tries
from ..inner import waits
from .front import Front
from .fuzzing import Fuzz, Parameters, Sent
from .routes import Known, addresses, running

pytestmark = pytest.mark.long

ANSWER_S = 30.0
BATCH = 4_000
"""Requests to one resource manager: they kill its applications and take its nodes out of use."""
MANY = 104_000
PROBES = ("livez", "readyz", "healthz")
"""They tell of every dispatcher of the process: one of another test may have failed."""
EVENTS = "text/event-stream"
WAITING = "/api/v1/apps/{app}/waiting"


def test_every_route_that_reads_answers_while_the_handler_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages with an application that waits came after a second. Why it waits is an answer that needs the handler."""
    monkeypatch.setattr(waits, "DEADLINE_S", 2 * ANSWER_S)  # the client gives up before
    with running(tmp_path / "journal") as (made, known):
        paths = [each.filled(known.value) for each in addresses(made) if each.method == "GET" and each.path != WAITING]
        answers: dict[str, int] = {}
        with made.hanging():
            for path in paths:
                with made.http.stream("GET", path, timeout=ANSWER_S) as answer:  # /ops/v1/stream has no end
                    answers[path] = answer.status_code
            run = made.manager.dispatcher.view.running()

    assert run is not None
    assert run.description == "hang"
    assert {path: status for path, status in answers.items() if status >= 500 and path.lstrip("/") not in PROBES} == {}
    assert sum(status == 200 for status in answers.values()) > len(answers) / 2


# -- whatever a client sends -------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    status: int | None
    """None: there is none."""
    kind: str = ""
    body: bytes = b""
    """Of a stream nothing."""


class Wire:
    """Sends requests over one connection, as long as that lasts."""

    def __init__(self, host: str) -> None:
        name, _, port = host.partition(":")
        self._address = name, int(port)
        self._connection: socket.socket | None = None

    def ask(self, sent: Sent) -> Answer:
        """Raises TimeoutError: neither an answer nor the end of the connection has come within ANSWER_S."""
        connection = self._connection or socket.create_connection(self._address, ANSWER_S)
        self._connection = None
        with suppress(ConnectionError):  # it may be refused before all of it is sent
            connection.sendall(sent.data)
            if sent.is_cut:
                connection.shutdown(socket.SHUT_WR)
        answer = HTTPResponse(connection, method=sent.method)
        try:
            answer.begin()
            kind = answer.headers.get("content-type", "")
            body = b"" if kind.startswith(EVENTS) else answer.read()
        except TimeoutError:
            connection.close()
            raise
        except (HTTPException, ConnectionError):
            connection.close()
            return Answer(None)
        if answer.will_close or sent.is_cut or kind.startswith(EVENTS):
            answer.close()
            connection.close()
        else:
            self._connection = connection
        is_zipped = body and answer.headers.get("content-encoding") == "gzip"
        return Answer(answer.status, kind, gzip.decompress(body) if is_zipped else body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Tracebacks(logging.Handler):
    """Keeps the messages of records that have a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            self.found.append(self.format(record))


def flaw(sent: Sent, answer: Answer) -> str:
    """What is wrong with an answer; empty: nothing."""
    status, path = answer.status, sent.data.split(b" ")[1].partition(b"?")[0].decode("latin-1")
    if status is None:
        return "" if sent.is_cut else "no answer"
    if status >= 500:
        return "" if status == 503 and path.lstrip("/") in PROBES else f"{status} {answer.body[:300]!r}"
    if answer.body and "json" in answer.kind:
        try:
            content = json.loads(answer.body)
        except ValueError as error:
            return f"{error}: {answer.body[:300]!r}"
        if path.startswith("/ws/") and (status >= 400) != ("RemoteException" in content or "error" in content):
            return f"{status} {answer.body[:300]!r}"
    return ""


def learn(made: Front, known: Known, parameters: Parameters) -> None:
    """Ask every route that reads: without parameters, and then with those that it has looked for."""
    for each in addresses(made):
        parameters.path = each.path
        for _ in range(2 if each.method == "GET" else 0):
            query = dict.fromkeys(parameters.names[each.path] - {"user.name"}, "1")
            with made.http.stream("GET", each.filled(known.value), params=query):
                pass


def fuzz(folder: Path, batch: int, statuses: Counter[int | None], count: int = BATCH) -> None:
    """Send a batch of requests to a resource manager of its own."""
    seen, flaws = Tracebacks(), []
    logging.getLogger().addHandler(seen)
    try:
        with pytest.MonkeyPatch.context() as patch, running(folder / f"journal{batch}") as (made, known):
            patch.setattr("dispatcher.ops.app.stop_daemon", lambda: "a test, which goes on")
            patch.setattr("dispatcher.ops.changes._stop_now", lambda _: None)
            host, parameters = str(made.door.url).removeprefix("http://"), Parameters(patch)
            learn(made, known, parameters)
            made_up = Fuzz(addresses(made), known.value, parameters.names, host)
            with closing(Wire(host)) as wire:
                for number in range(count):
                    sent = made_up.request(f"{batch} {number}")
                    try:
                        answer = wire.ask(sent)
                        wrong = flaw(sent, answer)
                        statuses[answer.status] += 1
                    except TimeoutError:
                        wrong = f"no answer within {ANSWER_S:g} s"
                    if wrong:
                        flaws.append(f"request {number} of batch {batch}: {wrong}\n{sent.data[:3000]!r}")
            assert made.get("/info").json()["clusterInfo"]["haState"] == "ACTIVE"
        gc.collect()  # asyncio tells of an exception that was never retrieved when its task goes
    finally:
        logging.getLogger().removeHandler(seen)
    assert not flaws, "\n".join(flaws)
    assert not seen.found, "\n".join(seen.found)


def test_no_request_is_answered_with_a_fault_of_ours(tmp_path: Path) -> None:
    """Forms of many fields and numbers beyond a float were, at some time."""
    statuses: Counter[int | None] = Counter()

    fuzz(tmp_path, 0, statuses, tries(600))

    assert {200, 400, 404, 405} <= statuses.keys()


@pytest.mark.slow
@pytest.mark.minutes
@pytest.mark.timeout(3600)
def test_none_of_104000_requests_is_answered_with_a_fault_of_ours(tmp_path: Path) -> None:
    statuses: Counter[int | None] = Counter()

    for batch in range(1, 1 + MANY // BATCH):
        fuzz(tmp_path, batch, statuses)

    assert statuses.total() == MANY
