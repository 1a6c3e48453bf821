"""Log lines of a queue's size, its room and what is in it, after YARN's dispatcher."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig
from dispatcher.dispatching.monitor import QueueSizeLog
from dispatcher.testing import ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered, Other, Work, until
from ...kit.dispatchers import hold

Make = Callable[..., AsyncDispatcher]
SECOND_NS = 1_000_000_000


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, logger="dispatcher.async_dispatcher"):
        yield


def lines(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [record.getMessage() for record in list(caplog.records) if about in record.getMessage()]


class Watched:
    """A QueueSizeLog with a clock that stands still, and a latch for its details, which another thread prints."""

    def __init__(self, **config: Any) -> None:
        self.now_ns = 0
        self.threads: list[str] = []
        self.logged = threading.Semaphore(0)
        self.contents: list[tuple[Enum, int]] = []
        self.log = QueueSizeLog("q", DispatcherConfig(**config), self._contents, lambda: None, lambda: self.now_ns)

    def _contents(self) -> list[tuple[Enum, int]]:
        self.threads.append(threading.current_thread().name)
        self.logged.release()
        return self.contents


@pytest.mark.parametrize(
    ("seen", "logged"),
    [
        pytest.param(
            [(0, size) for size in (999, 1000, 1000, 2000, 2000, 3000)],
            [1000, 2000, 3000],
            id="each further thousand once",
        ),
        pytest.param(
            [(0, 1001), (1, 2002), (SECOND_NS, 3003), (SECOND_NS + 1, 4004)],
            [1001, 3003],
            id="between thousands at most once a second",
        ),
    ],
)
def test_sizes_are_logged(caplog: pytest.LogCaptureFixture, seen: list[tuple[int, int]], logged: list[int]) -> None:
    watched = Watched()

    for watched.now_ns, size in seen:
        watched.log(size, None)

    assert lines(caplog, "Size of event-queue") == [f"q: Size of event-queue is {size}" for size in logged]


def test_low_room_is_warned_of_at_most_once_in_30_seconds(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(queue_capacity=100_000)

    for watched.now_ns, remaining in ((0, 1000), (0, 999), (1, 5), (30 * SECOND_NS - 1, 0), (30 * SECOND_NS, 7)):
        watched.log(10, remaining)

    warned = [record for record in caplog.records if "low remaining capacity" in record.getMessage()]
    assert [record.getMessage().rsplit(" ", 1)[1] for record in warned] == ["999", "7"]
    assert {record.levelno for record in warned} == {logging.WARNING}


@pytest.mark.parametrize(("capacity", "low"), [(1, 0), (50, 4), (5000, 499), (1_000_000, 999)])
def test_the_capacity_decides_how_little_room_is_low(caplog: pytest.LogCaptureFixture, capacity: int, low: int) -> None:
    watched = Watched(queue_capacity=capacity)

    watched.log(1, low + 1)
    before = lines(caplog, "low remaining capacity")
    watched.log(1, low)

    assert before == []
    assert len(lines(caplog, "low remaining capacity")) == 1


def test_details_are_printed_by_type_on_a_thread_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(print_events_info_threshold=3)
    watched.contents = [(Other.DO, 1), (Work.DO, 2)]

    watched.log(3, None)

    assert watched.logged.acquire(timeout=TIMEOUT_S)
    until(lambda: len(lines(caplog, "record counter")) == 2)
    assert watched.threads == ["q-details"]
    assert lines(caplog, "record counter") == [
        "q: Event type: Work.DO, Event record counter: 2",
        "q: Event type: Other.DO, Event record counter: 1",
    ]


def test_details_are_printed_at_most_once_in_30_seconds() -> None:
    watched = Watched(print_events_info_threshold=3)

    for watched.now_ns, size in ((0, 2), (0, 3), (30 * SECOND_NS - 1, 100), (30 * SECOND_NS, 3)):
        watched.log(size, None)

    assert all(watched.logged.acquire(timeout=TIMEOUT_S) for _ in range(2))
    assert not watched.logged.acquire(blocking=False)


def test_details_are_collected_only_while_info_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(print_events_info_threshold=3)
    caplog.set_level(logging.WARNING, logger="dispatcher.async_dispatcher")
    before = set(threading.enumerate())
    watched.log(3, None)
    assert {thread for thread in threading.enumerate() if thread.name == "q-details"} <= before
    assert watched.threads == []

    caplog.set_level(logging.INFO, logger="dispatcher.async_dispatcher")
    watched.log(3, None)

    assert watched.logged.acquire(timeout=TIMEOUT_S)


def test_behind_a_handler_that_hangs_the_size_and_the_details_are_logged(
    make: Make, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    config = DispatcherConfig(print_events_info_threshold=5)
    dispatcher = make(config, name="central", handler=gate, time_service=clock)
    hold(dispatcher, gate)
    for number in range(1000):
        dispatcher.event_handler.handle(Numbered(number, type=(Work.MORE, Work.DO)[number % 4 == 0]))

    clock.advance(1000)

    assert lines(caplog, "Size of event-queue") == ["central: Size of event-queue is 1000"]
    until(lambda: lines(caplog, "Latest dispatch event"))
    assert lines(caplog, "record counter") == [
        "central: Event type: Work.MORE, Event record counter: 750",
        "central: Event type: Work.DO, Event record counter: 250",
    ]
    assert lines(caplog, "Latest dispatch event") == ["central: Latest dispatch event: <Numbered Work.DO>"]


def test_a_post_to_a_full_queue_warns_of_low_room(make: Make, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = make(DispatcherConfig(queue_capacity=1, queue_full_policy="reject"), name="central", handler=gate)
    hold(dispatcher, gate)

    for number in range(5):
        dispatcher.event_handler.handle(Numbered(number))

    assert lines(caplog, "low remaining capacity") == ["central: Very low remaining capacity in the event-queue: 0"]


def test_in_a_flood_the_handler_thread_logs_the_size(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = make(name="central", handler=lambda _: None)
    post = dispatcher.event_handler.handle

    dispatcher.mailbox_executor.submit(lambda: [post(Numbered()) for _ in range(3000)]).result(TIMEOUT_S)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert lines(caplog, "Size of event-queue")[0] == "central: Size of event-queue is 3000"
