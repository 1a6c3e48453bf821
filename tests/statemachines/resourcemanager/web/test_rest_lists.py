"""Long lists: in pieces, whole, compressed, and cheap once they were made."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from statemachines.resourcemanager import ApplicationSubmission, Resource
from statemachines.simulation.workload import NodeSpec

from ....kit import until
from ...simulation.replays import TIMEOUT_S
from ..daemon.yarn_cluster import Yarn
from ..inner import fields
from .inner import lists, texts
from .served import Served

pytestmark = pytest.mark.long

COUNT = 1_000


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Yarn("n1") as yarn:

        def submit() -> None:
            for number in range(COUNT):
                yarn.clients.submit_application_later(_submission(number))

        yarn.do(submit)
        with Served(yarn.manager) as served:
            served.publish()
            yield served


def _submission(number: int) -> ApplicationSubmission:
    return ApplicationSubmission(f"app-{number}", Resource(99_999, 1), user=f"user-{number % 10}")


def test_a_long_list_comes_in_pieces_in_order(served: Served) -> None:
    answer = served.ask("/apps", headers={"Accept-Encoding": "identity"})

    apps = answer.json()["apps"]["app"]
    assert answer.headers["transfer-encoding"] == "chunked"
    assert [each["name"] for each in apps] == [f"app-{number}" for number in range(COUNT)]
    assert [each["startedTime"] for each in apps] == sorted(each["startedTime"] for each in apps)


def test_a_client_of_http_1_0_gets_the_list_until_the_connection_ends(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(f"GET /ws/v1/cluster/apps HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
        with connection.makefile("rb") as whole:
            head, _, body = whole.read().partition(b"\r\n\r\n")

    assert b"transfer-encoding" not in head.lower()
    assert len(json.loads(body)["apps"]["app"]) == COUNT


def test_clients_that_leave_in_the_middle_leave_nothing_behind(served: Served) -> None:
    before = served.tasks()
    host, port = served.url.removeprefix("http://").split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            connection.sendall(f"GET /ws/v1/cluster/apps HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert connection.recv(100)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset

    until(lambda: served.tasks() <= before, "the tasks of clients that have left are gone")
    assert len(served.ask("/apps").json()["apps"]["app"]) == COUNT


def test_a_fault_in_the_middle_of_a_list_ends_the_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer, last = texts.Texts.writer, list(served.rm.model.apps)[-1]

    def failing_at_last(self: Any, *shape: Any) -> Callable[..., bytes]:
        def write(id: str, *more: Any) -> bytes:
            if id == last:
                raise RuntimeError("a fault in the middle")
            return made(id, *more)

        made = writer(self, *shape)
        return write

    monkeypatch.setattr(lists, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(texts.Texts, "writer", failing_at_last)

    with pytest.raises(httpx.RemoteProtocolError):
        served.ask("/apps", headers={"Accept-Encoding": "identity"})
    assert "a fault in the middle" in caplog.text


def test_a_search_by_state_does_not_walk_all_applications(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request walked all of them: with 10,000, in several pieces, each of which waits for the handlers."""
    monkeypatch.setattr(lists, "PIECE_NS", 0)

    answer = served.ask("/apps?states=RUNNING&limit=100")

    assert answer.json() == {"apps": {"app": []}}
    assert "content-length" in answer.headers


def test_an_application_is_made_into_text_once_per_report(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.ask("/apps")
    made: list[str] = []
    make = texts.Texts._keep
    monkeypatch.setattr(
        texts.Texts, "_keep", lambda self, id, report, around: made.append(id) or make(self, id, report, around)
    )

    again = served.ask("/apps").json()["apps"]["app"]

    assert (len(again), made) == (COUNT, [])


def test_texts_of_forgotten_applications_are_dropped() -> None:
    with Yarn(NodeSpec("n1", Resource(10, 10)), max_completed_applications=1) as yarn, Served(yarn.manager) as served:
        kept = texts.Texts(fields.APPLICATION_FIELDS)
        for number in range(2 * texts.SPARE):
            yarn.kill(yarn.submit(f"app-{number}", am_mb=99_999))
            if number % 50 == 0:
                served.publish()
            for report in list(served.rm.model.apps.values()):
                kept.writer()(report.application_id, report, fields.NOWHERE)
            kept.forget(served.rm.model.apps)

        assert len(kept._kept) <= texts.SPARE + 2


# -- the pieces themselves ---------------------------------------------------------------------------------------------

RM: Any = SimpleNamespace(config=SimpleNamespace(empty_as_null=False))


def request(method: str = "GET", **headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": method, "headers": pairs, "path": "/", "query_string": b""})


async def _pieces(items: Iterator[bytes | None]) -> list[bytes]:
    answer = await lists.list_answer(request(), RM, "apps", "app", items)
    if not isinstance(answer, StreamingResponse):
        return [bytes(answer.body)]
    body: AsyncIterator[Any] = answer.body_iterator  # type: ignore[assignment]
    return [piece async for piece in body]


def pieces_of(items: list[bytes | None]) -> list[bytes]:
    return asyncio.run(_pieces(iter(items)))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 1_000])
@pytest.mark.parametrize("skipped", ["none", "most", "first", "last"])
@pytest.mark.parametrize("size", [1, 1_000, lists.PIECE_BYTES + 1])
def test_pieces_are_the_whole_list(count: int, skipped: str, size: int) -> None:
    if count * size > 10**7:
        count = 30
    texts = [b'"%d%s"' % (number, b"x" * size) for number in range(count)]
    nothing: list[bytes | None] = [None] * 5_000
    items: list[bytes | None] = list(texts)
    if skipped == "most":
        items = [each for text in texts for each in (None, None, text)]
    elif skipped != "none":
        items = [*nothing, *texts] if skipped == "first" else [*texts, *nothing]

    pieces = pieces_of(items)

    assert json.loads(b"".join(pieces)) == {"apps": {"app": [json.loads(text) for text in texts]}}
    assert all(len(piece) <= lists.PIECE_BYTES + size + 64 for piece in pieces)


def test_the_first_piece_has_more_time_than_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of a hundred applications was a stream whenever they had all changed."""
    now_ns = 0

    class Clock:
        @staticmethod
        def perf_counter_ns() -> int:
            return now_ns

    def items() -> Iterator[bytes]:
        nonlocal now_ns
        while True:
            now_ns += lists.PIECE_NS // 64
            yield b"1"

    monkeypatch.setattr(lists, "time", Clock)
    pieces = lists._pieces(items())

    counts = [next(pieces).count(b"1") for _ in range(3)]

    assert counts == [64 * lists.FIRST, 64, 64]


def test_every_piece_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another task runs at least once for each piece after the first two."""
    monkeypatch.setattr(lists, "PIECE_BYTES", 1 << 16)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> int:
        other = asyncio.ensure_future(others())
        pieces = await _pieces(iter([b"1" * 1000] * 2_000))
        other.cancel()
        return len(pieces)

    count = asyncio.run(run())

    assert count > 10
    assert turns >= count - 3
