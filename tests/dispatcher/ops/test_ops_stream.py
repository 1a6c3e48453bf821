"""The stream: numbers once a second, failures as they come and no more than ten a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import pytest

from dispatcher.ops import ops_app
from dispatcher.ops.stream import FailureFeed, ops_events
from dispatcher.view import FailureRecord

from ...kit.scenarios import play
from .client import WAIT_S, Client


class View:
    """A dispatcher with failures that a test adds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._failures: list[FailureRecord] = []
        self.looks = 0

    def fail(self, times: int) -> None:
        for _ in range(times):
            number = self._failures[0].number + 1 if self._failures else 1
            record = FailureRecord(number, 1.5, "Job", "FAIL", None, "ValueError", f"failure {number}", ())
            self._failures = [record, *self._failures][:100]

    def failures(self, after: int = 0) -> list[FailureRecord]:
        self.looks += 1
        return [each for each in self._failures if each.number > after]

    def last_failure(self) -> int:
        return self._failures[0].number if self._failures else 0


class FeedStage:
    """The feed of one client, which begins at `begin`, and the failures of dispatchers."""

    def __init__(self) -> None:
        self.views: dict[str, Any] = {}
        self.told: list[dict[str, Any]] = []

    def play(self, verb: str, *words: str) -> None:
        match verb:
            case "fail":
                self.views.setdefault(words[0], View(words[0])).fail(int(words[1]))
            case "begin":
                self.feed = FailureFeed(list(self.views.values()), 0.0)
            case "at":
                self.told = self.feed.look(list(self.views.values()), float(words[0]))

    def look(self, what: str) -> Iterable[object]:
        if what == "texts":
            return [view.looks for view in self.views.values()]
        return [each.get("message", each) for each in self.told]


SCENARIOS = {
    "only new failures are told, oldest first": "fail shop 3 | begin | at 0.1 -> told | fail shop 2 | at 0.2 -> told "
    "failure_4 failure_5 | at 0.3 -> told",
    "texts of failures are made only for those that are told": "fail shop 1 | begin | at 0.1 | fail shop 10 | at 0.2 "
    "| fail shop 200 | at 0.3 -> texts 1",
    "failures of a dispatcher that came later are told": "begin | fail later 1 | at 0.1 -> told failure_1",
    "at most ten a second are told, and then how many were dropped": "fail shop 0 | begin | fail shop 7 | at 0.2 -> "
    "told failure_1 failure_2 failure_3 failure_4 failure_5 failure_6 failure_7 | fail shop 7 | at 0.4 -> told "
    "failure_8 failure_9 failure_10 | fail shop 200 | at 0.9 -> told | at 1.0 -> told {'dropped':_204} | fail shop 1 "
    "| at 1.2 -> told failure_215",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_a_client_is_told(script: str) -> None:
    play(FeedStage(), script)


def test_a_failure_is_told_with_its_dispatcher_time_and_type() -> None:
    stage = FeedStage()
    play(stage, "begin | fail central 1 | at 0.1")

    [told] = stage.told
    assert (told["dispatcher"], told["at"], told["event_type"]) == ("central", 1500, "FAIL")


def test_numbers_come_once_a_second() -> None:
    now_s = 0.0

    async def sleep(delay_s: float) -> None:
        nonlocal now_s
        now_s += max(delay_s, 0.01)

    async def numbers() -> Any:
        return {"items": [now_s], "next": None, "total": 1}

    async def collect(events: AsyncIterator[bytes]) -> list[bytes]:
        return [await anext(events) for _ in range(4)]

    found = asyncio.run(collect(ops_events(list, numbers, clock_s=lambda: now_s, sleep=sleep)))

    assert [line.split(b"\n")[0] for line in found] == [b"event: dispatchers"] * 4
    times = [json.loads(event.split(b"data: ")[1])["items"][0] for event in found]
    assert times == pytest.approx([0.0, 1.0, 2.0, 3.0], abs=0.02)


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
        return await asyncio.wait_for(answer, WAIT_S)

    found = asyncio.run(run())

    assert found.status_code == 200
    assert found.headers["content-type"].startswith("text/event-stream")
    assert b"event: dispatchers\n" in found.content


def test_the_head_of_a_stream_ends_at_once() -> None:
    found = Client(ops_app()).request("HEAD", "/stream")

    assert (found.status_code, found.content) == (200, b"")
    assert found.headers["content-type"].startswith("text/event-stream")
