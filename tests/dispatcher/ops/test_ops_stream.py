"""The stream: numbers once a second, failures as they come and no more than ten a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from dispatcher.ops import ops_app
from dispatcher.ops.stream import FailureFeed, ops_events
from dispatcher.view import FailureRecord

from .client import Client


class View:
    """A dispatcher with failures that a test adds."""

    def __init__(self, name: str = "central") -> None:
        self.name = name
        self._failures: list[FailureRecord] = []
        self.looks = 0

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            number = self._failures[0].number + 1 if self._failures else 1
            record = FailureRecord(number, 1.5, "Job", "FAIL", None, "ValueError", f"failure {number}", ())
            self._failures = [record, *self._failures][:100]

    def failures(self, after: int = 0) -> list[FailureRecord]:
        self.looks += 1
        return [each for each in self._failures if each.number > after]

    def last_failure(self) -> int:
        return self._failures[0].number if self._failures else 0


def feed(*views: Any) -> FailureFeed:
    return FailureFeed(views, 0.0)


def messages(told: list[dict[str, Any]]) -> list[Any]:
    return [each.get("message", each.get("dropped")) for each in told]


def test_only_new_failures_are_told_oldest_first() -> None:
    view: Any = View()
    view.fail(3)
    client = feed(view)
    assert client.look([view], 0.1) == []

    view.fail(2)

    told = client.look([view], 0.2)
    assert messages(told) == ["failure 4", "failure 5"]
    assert (told[0]["dispatcher"], told[0]["at"], told[0]["event_type"]) == ("central", 1500, "FAIL")
    assert client.look([view], 0.3) == []


def test_texts_of_failures_are_made_only_for_those_that_are_told() -> None:
    view: Any = View()
    view.fail()
    client = feed(view)
    client.look([view], 0.1)
    view.fail(10)
    client.look([view], 0.2)
    view.fail(200)
    client.look([view], 0.3)

    assert view.looks == 1


def test_failures_of_a_dispatcher_that_came_later_are_told() -> None:
    client, later = feed(), View("later")
    later.fail()
    views: Any = [later]

    assert messages(client.look(views, 0.1)) == ["failure 1"]


def test_at_most_ten_a_second_are_told_and_then_how_many_were_dropped() -> None:
    view: Any = View()
    client = feed(view)

    view.fail(7)
    first = client.look([view], 0.2)
    view.fail(7)
    second = client.look([view], 0.4)
    view.fail(200)
    third = client.look([view], 0.9)
    fourth = client.look([view], 1.0)
    view.fail()
    fifth = client.look([view], 1.2)

    assert messages(first) == [f"failure {number}" for number in range(1, 8)]
    assert messages(second) == ["failure 8", "failure 9", "failure 10"]
    assert third == []
    assert fourth == [{"dropped": 204}]
    assert messages(fifth) == ["failure 215"]


def test_numbers_come_once_a_second() -> None:
    now_s = 0.0

    async def sleep(delay_s: float) -> None:
        nonlocal now_s
        now_s += max(delay_s, 0.01)

    async def numbers() -> Any:
        return {"items": [now_s], "next": None, "total": 1}

    async def collect(events: AsyncIterator[bytes]) -> list[bytes]:
        return [event async for event, _ in _zip(events, 4)]

    found = asyncio.run(collect(ops_events(list, numbers, clock_s=lambda: now_s, sleep=sleep)))

    assert [line.split(b"\n")[0] for line in found] == [b"event: dispatchers"] * 4
    times = [json.loads(event.split(b"data: ")[1])["items"][0] for event in found]
    assert times == pytest.approx([0.0, 1.0, 2.0, 3.0], abs=0.02)


async def _zip(events: AsyncIterator[bytes], count: int) -> AsyncIterator[tuple[bytes, int]]:
    for number in range(count):
        yield await anext(events), number


def test_the_stream_of_a_mounted_app_ends_when_its_server_says_so() -> None:
    async def run() -> httpx.Response:
        stopping = asyncio.Event()
        app = ops_app(stopping=stopping)
        answer = asyncio.ensure_future(Client(app).send("GET", "/stream"))
        while app.state.ops.numbers.get("dispatchers") is None:
            await asyncio.sleep(0)
        for _ in range(50):  # the event is on its way
            await asyncio.sleep(0)
        stopping.set()
        return await asyncio.wait_for(answer, 10)

    found = asyncio.run(run())

    assert found.status_code == 200
    assert found.headers["content-type"].startswith("text/event-stream")
    assert b"event: dispatchers\n" in found.content


def test_the_head_of_a_stream_ends_at_once() -> None:
    found = Client(ops_app()).request("HEAD", "/stream")

    assert (found.status_code, found.content) == (200, b"")
    assert found.headers["content-type"].startswith("text/event-stream")
