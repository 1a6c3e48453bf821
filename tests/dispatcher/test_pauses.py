"""The handler thread pauses while a stream of logged events arrives, instead of being woken for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, JournalWriter
from dispatcher.dispatching import lone

from ..kit import TIMEOUT_S, until
from ..kit.journals import Job, Posted

Post = Callable[[], None]


class Sleeps:
    """Stands for `sleep`: counts the pauses, and posts what comes during one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.during: Post = lambda: None
        monkeypatch.setattr(lone, "sleep", self)

    def __call__(self, _: float) -> None:
        self.count += 1
        self.during()


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    return Sleeps(monkeypatch)


class Queue:
    """The queue of a dispatcher, as if its handler thread had waited for `waited_ns`."""

    def __init__(self, waited_ns: int, capacity: int | None = None) -> None:
        self.dispatcher = AsyncDispatcher(DispatcherConfig(queue_capacity=capacity))
        self.entries = self.dispatcher.core.queue.entries
        self.idle = self.dispatcher._dispatching.idle
        self.idle.note(1, 1 + waited_ns)
        self.pauses = lone.Pauses(self.dispatcher.core.queue, self.idle)

    def stream(self) -> None:
        self.entries.extend(range(lone._WORTHWHILE_EVENTS))


def test_after_a_short_wait_the_thread_pauses_as_long_as_events_gather(sleeps: Sleeps) -> None:
    queue = Queue(waited_ns=lone._SHORT_NS - 1)
    sleeps.during = queue.stream

    taken = []
    for _ in range(3):
        queue.entries.clear()
        taken.append(queue.pauses.take())

    assert taken == [True, True, True]
    assert sleeps.count == 3


PAUSES: dict[str, tuple[int, int | None, bool]] = {
    "after a short wait": (lone._SHORT_NS - 1, None, True),
    "after a long wait": (lone._SHORT_NS, None, False),
    "after no wait": (0, None, False),
    "before a queue of one": (1, 1, False),
    "before a queue that producers would soon fill": (1, lone._LEAST_CAPACITY - 1, False),
    "before a larger one": (1, lone._LEAST_CAPACITY, True),
}


@pytest.mark.parametrize(("waited_ns", "capacity", "pauses"), PAUSES.values(), ids=PAUSES)
def test_when_it_pauses(sleeps: Sleeps, waited_ns: int, capacity: int | None, pauses: bool) -> None:
    assert (Queue(waited_ns, capacity).pauses.take(), sleeps.count) == (pauses, int(pauses))


def test_pauses_in_vain_become_rare(sleeps: Sleeps) -> None:
    """A producer that waits for each event to be handled would pay for each pause."""
    queue = Queue(waited_ns=1)

    for _ in range(10_000):
        queue.pauses.take()
        queue.idle.note(1, 2)

    assert lone._MOST_MISSES < sleeps.count < 60


def test_one_that_pays_ends_the_series_of_misses(sleeps: Sleeps) -> None:
    queue = Queue(waited_ns=1)
    while sleeps.count < 5:
        queue.pauses.take()
    sleeps.during = queue.stream
    while sleeps.count < 6:
        queue.pauses.take()

    assert queue.pauses.take()


def test_a_queue_that_is_stopping_has_no_pauses(sleeps: Sleeps) -> None:
    queue = Queue(waited_ns=1)
    queue.dispatcher.stop()

    assert not queue.pauses.take()
    assert sleeps.count == 0


def test_a_pause_counts_as_idle_time(sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(waited_ns=1_000)
    times = iter((5_000, 7_000))
    monkeypatch.setattr(lone, "perf_counter_ns", lambda: next(times))

    queue.pauses.take()

    assert queue.idle.total_ns() == 3_000


@pytest.mark.parametrize(("write_ahead", "pauses"), [(True, True), (False, False)])
def test_only_a_dispatcher_that_logs_events_ahead_pauses(
    tmp_path: Path, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch, write_ahead: bool, pauses: bool
) -> None:
    """A post during a pause does not wake the handler thread, which handles its event after the pause."""
    monkeypatch.setattr(lone, "_SHORT_NS", 10**18)
    handled: list[int] = []
    journal = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=write_ahead))
    dispatcher = AsyncDispatcher(DispatcherConfig(), name="paused", journal=journal)
    dispatcher.register(Job, lambda event: handled.append(event.number), events=Posted)
    numbers = iter(range(1, 5))

    def post_more() -> None:
        for number in numbers:
            dispatcher.post(Posted(Job.STARTED, number))

    sleeps.during = post_more

    with dispatcher:
        dispatcher.post(Posted(Job.STARTED, 0))
        until(lambda: len(handled) == (5 if pauses else 1), "the events")
        assert dispatcher.await_drained(TIMEOUT_S)

    assert (sleeps.count > 0) == pauses
    assert handled == list(range(5 if pauses else 1))
