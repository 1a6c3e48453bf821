"""Which events are timed in the queue and in their handlers, and how long the handler thread was idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig
from dispatcher.testing import DrainDispatcher, ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered, Work, until
from ...kit.dispatchers import hold

Make = Callable[..., AsyncDispatcher]


def count(histogram: Any) -> int:
    return sum(histogram.counts)


def at_least(histogram: Any, seconds: float) -> int:
    """How many observations are in buckets that lie above `seconds`."""
    return sum(histogram.counts[int(seconds * 1e9).bit_length() :])


def spin(seconds: float) -> None:
    until_ns = time.perf_counter_ns() + int(seconds * 1e9)
    while time.perf_counter_ns() < until_ns:
        pass


def flood(dispatcher: AsyncDispatcher, gate: Gate, events: int) -> None:
    """Post behind a handler that is held, then let it go."""
    hold(dispatcher, gate)
    for number in range(1, events):
        dispatcher.post(Numbered(number))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)


def test_with_all_the_sums_are_those_of_the_types(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(measure_times="all"), handler=gate)
    hold(dispatcher, gate)
    for number in range(200):
        dispatcher.post(Numbered(number, type=Work.MORE if number % 3 else Work.DO))
    spin(0.001)
    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)

    stats = dispatcher.stats()
    for whole, by_type in (
        (stats.queue_time, stats.queue_time_by_type),
        (stats.handling_time, stats.handling_by_type),
    ):
        assert whole is not None
        assert whole.total_ns / 1e9 == pytest.approx(sum(seconds for _, seconds in by_type.values()))
        assert sum(events for events, _ in by_type.values()) == count(whole) == 201
    assert stats.queue_time is not None
    assert stats.queue_time.total_ns >= 200 * 1_000_000


@pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])
def test_a_tuple_is_posted_as_an_event_without_a_type(make: Make, gate: Gate, measure_times: str) -> None:
    """An event that is a tuple is not taken for a stamped entry, which is one, too."""
    dispatcher = make(DispatcherConfig(measure_times=measure_times), handler=gate)
    hold(dispatcher, gate)
    for event in ((), (1,), (Numbered(1), 1, object())):
        dispatcher.post(event)
    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)

    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (1, 3)


def test_sampled_times_of_few_events_are_of_each() -> None:
    with DrainDispatcher(DispatcherConfig(measure_times="sampled"), time_service=ManualClock()) as dispatcher:
        dispatcher.register(Work, lambda _: None)
        for number in range(20):
            dispatcher.wait_for_event_thread_to_wait(TIMEOUT_S)
            dispatcher.post(Numbered(number))

    assert count(dispatcher.stats().handling_time) == 20
    assert count(dispatcher.stats().queue_time) == 20


@pytest.mark.parametrize("measure_times", ["all", "sampled"])
def test_each_event_of_a_flood_is_timed_once_whether_it_fails_takes_long_or_mail_cuts_its_batch_short(
    make: Make, gate: Gate, measure_times: str
) -> None:
    """The mean of its batch would hide the slow one."""

    def handle(event: Numbered) -> None:
        gate.entered.set()
        assert gate.opened.wait(TIMEOUT_S)
        if event.number % 100 == 7:
            dispatcher.mailbox_executor.execute(lambda: None)
        if event.number == 15_000:
            spin(0.05)
        if event.number % 50 == 1:
            raise RuntimeError("broken")

    dispatcher = make(DispatcherConfig(measure_times=measure_times), handler=handle)

    flood(dispatcher, gate, 20_000)

    stats = dispatcher.stats()
    assert (stats.handled, stats.failed, count(stats.handling_time)) == (19_600, 400, 20_000)
    assert at_least(stats.handling_time, 0.03) >= 1
    assert count(stats.queue_time) == 20_000 if measure_times == "all" else 0 < count(stats.queue_time) < 20_000


@pytest.mark.parametrize("measure_times", ["all", "sampled"])
def test_times_with_drop_oldest_count_each_handled_event_once(make: Make, measure_times: str) -> None:
    """Producers take events away from a batch that the handler thread has begun."""
    config = DispatcherConfig(queue_capacity=20, queue_full_policy="drop_oldest", measure_times=measure_times)
    dispatcher = make(config, handler=lambda _: None)

    for number in range(5_000):
        dispatcher.post(Numbered(number))
    assert dispatcher.await_drained(TIMEOUT_S)

    until(lambda: count(dispatcher.stats().handling_time) == dispatcher.stats().handled)
    assert dispatcher.stats().handled + dispatcher.stats().discarded == 5_000


def test_with_all_the_times_of_a_batch_in_the_handlers_leave_no_gap(make: Make, gate: Gate) -> None:
    """One reading of the clock ends an event and begins the next one."""
    runs: list[int] = []

    def handle(event: Numbered) -> None:
        runs.append(time.perf_counter_ns())
        gate.handle(event)
        runs.append(time.perf_counter_ns())

    # No timer of its own sends mail, which would cut the batch short.
    dispatcher = make(DispatcherConfig(measure_times="all"), handler=handle, time_service=ManualClock())
    hold(dispatcher, gate)
    for number in range(1, 201):
        dispatcher.post(Numbered(number, type=Work.MORE))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    events, seconds = dispatcher.stats().handling_by_type["Work", "MORE"]

    assert events == 200
    assert round(seconds * 1e9) >= runs[-1] - runs[2]


def test_with_all_an_event_that_was_posted_after_the_end_of_the_last_one_has_not_waited(
    make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_ns = 0
    monkeypatch.setattr("dispatcher.queue.inbox.perf_counter_ns", lambda: time.perf_counter_ns() + ahead_ns)
    dispatcher = make(DispatcherConfig(measure_times="all"), handler=gate)
    hold(dispatcher, gate)
    ahead_ns = 3_600_000_000_000
    dispatcher.post(Numbered(1, type=Work.MORE))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    stats = dispatcher.stats()

    assert stats.queue_time_by_type["Work", "MORE"] == (1, 0.0)
    assert stats.queue_time is not None
    assert (stats.queue_time.counts[0], count(stats.queue_time)) == (1, 2)


@pytest.mark.parametrize("what", ["an event", "a mail"])
def test_idle_time_grows_while_idle_and_stands_still_while_something_runs(gate: Gate, what: str) -> None:
    with DrainDispatcher(time_service=ManualClock()) as dispatcher:  # no mail of its own comes amid a look
        dispatcher.register(Work, gate)
        dispatcher.wait_for_event_thread_to_wait()
        first = dispatcher.stats().idle_s
        spin(0.005)
        idle = dispatcher.stats().idle_s - first

        if what == "a mail":
            dispatcher.mailbox_executor.execute(lambda: gate.handle(None))
        else:
            dispatcher.post(Numbered())
        assert gate.entered.wait(TIMEOUT_S)
        first = dispatcher.stats().idle_s
        spin(0.005)
        busy = dispatcher.stats().idle_s - first
        gate.opened.set()

    assert idle >= 0.005
    assert busy == 0
