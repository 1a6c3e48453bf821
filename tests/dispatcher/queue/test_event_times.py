"""Which events are timed in the queue and in their handlers, and how long the handler thread was idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig
from dispatcher.queue.entry import STAMPED
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
        dispatcher.event_handler.handle(Numbered(number))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)


def test_with_all_the_sums_are_those_of_the_types(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(measure_times="all"), handler=gate)
    hold(dispatcher, gate)
    for number in range(200):
        dispatcher.event_handler.handle(Numbered(number, type=Work.MORE if number % 3 else Work.DO))
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
        dispatcher.event_handler.handle(event)
    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)

    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (1, 3)


def test_sampled_times_count_every_event_of_a_flood_in_its_handler_and_some_in_the_queue(
    make: Make, gate: Gate
) -> None:
    dispatcher = make(DispatcherConfig(measure_times="sampled"), handler=gate)

    flood(dispatcher, gate, 20_000)

    assert count(dispatcher.stats().handling_time) == dispatcher.stats().handled == 20_000
    assert 0 < count(dispatcher.stats().queue_time) < 20_000


def test_sampled_times_of_few_events_are_of_each() -> None:
    with DrainDispatcher(DispatcherConfig(measure_times="sampled"), time_service=ManualClock()) as dispatcher:
        dispatcher.register(Work, lambda _: None)
        for number in range(20):
            dispatcher.wait_for_event_thread_to_wait(TIMEOUT_S)
            dispatcher.event_handler.handle(Numbered(number))

    assert count(dispatcher.stats().handling_time) == 20
    assert count(dispatcher.stats().queue_time) == 20


@pytest.mark.parametrize("measure_times", ["all", "sampled"])
def test_events_that_fail_are_timed_as_well(make: Make, gate: Gate, measure_times: str) -> None:
    def handle(event: Numbered) -> None:
        gate.handle(event)
        if event.number % 50 == 1:
            raise RuntimeError("broken")

    dispatcher = make(DispatcherConfig(measure_times=measure_times), handler=handle)

    flood(dispatcher, gate, 2_000)

    assert (dispatcher.stats().handled, dispatcher.stats().failed) == (1_960, 40)
    assert count(dispatcher.stats().handling_time) == 2_000


@pytest.mark.parametrize("measure_times", ["all", "sampled"])
def test_times_of_batches_that_mail_cuts_short_count_each_event_once(
    make: Make, gate: Gate, measure_times: str
) -> None:
    def handle(event: Numbered) -> None:
        gate.handle(event)
        if event.number % 100 == 7:
            dispatcher.mailbox_executor.execute(lambda: None)

    dispatcher = make(DispatcherConfig(measure_times=measure_times), handler=handle)

    flood(dispatcher, gate, 10_000)

    assert count(dispatcher.stats().handling_time) == dispatcher.stats().handled == 10_000


@pytest.mark.parametrize("measure_times", ["all", "sampled"])
def test_times_with_drop_oldest_count_each_handled_event_once(make: Make, measure_times: str) -> None:
    """Producers take events away from a batch that the handler thread has begun."""
    config = DispatcherConfig(queue_capacity=20, queue_full_policy="drop_oldest", measure_times=measure_times)
    dispatcher = make(config, handler=lambda _: None)

    for number in range(5_000):
        dispatcher.event_handler.handle(Numbered(number))
    assert dispatcher.await_drained(TIMEOUT_S)

    until(lambda: count(dispatcher.stats().handling_time) == dispatcher.stats().handled)
    assert dispatcher.stats().handled + dispatcher.stats().discarded == 5_000


@pytest.mark.parametrize("measure_times", ["all", "sampled"])
def test_a_slow_event_in_a_flood_shows_in_the_upper_buckets(make: Make, gate: Gate, measure_times: str) -> None:
    """Its batch's mean would hide it."""
    slow = threading.Event()

    def handle(event: Numbered) -> None:
        gate.entered.set()
        assert gate.opened.wait(TIMEOUT_S)
        if event.number == 15_000:
            spin(0.05)
            slow.set()

    dispatcher = make(DispatcherConfig(measure_times=measure_times), handler=handle)

    flood(dispatcher, gate, 20_000)

    assert slow.is_set()
    assert at_least(dispatcher.stats().handling_time, 0.03) >= 1
    assert count(dispatcher.stats().handling_time) == 20_000


def test_the_time_of_an_event_in_the_queue_is_how_long_it_waited(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(measure_times="all"), handler=gate)
    hold(dispatcher, gate)
    dispatcher.event_handler.handle(Numbered(1))
    spin(0.01)
    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.stats().queue_time.total_ns >= 10_000_000
    assert at_least(dispatcher.stats().queue_time, 0.008) >= 1  # 2 if the first one had to wait for its thread


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
        dispatcher.event_handler.handle(Numbered(number, type=Work.MORE))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    events, seconds = dispatcher.stats().handling_by_type["Work", "MORE"]

    assert events == 200
    assert round(seconds * 1e9) >= runs[-1] - runs[2]


def test_with_all_an_event_that_was_posted_after_the_end_of_the_last_one_has_not_waited(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(measure_times="all"), handler=gate)
    hold(dispatcher, gate)
    in_an_hour_ns = time.perf_counter_ns() + 3_600_000_000_000
    dispatcher.core.queue.entries.append((Numbered(1, type=Work.MORE), in_an_hour_ns, STAMPED))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    stats = dispatcher.stats()

    assert stats.queue_time_by_type["Work", "MORE"] == (1, 0.0)
    assert stats.queue_time is not None
    assert (stats.queue_time.counts[0], count(stats.queue_time)) == (1, 2)


def test_idle_time_grows_while_idle_and_stands_still_while_a_handler_runs() -> None:
    gate = Gate()
    with DrainDispatcher() as dispatcher:
        dispatcher.register(Work, gate)
        dispatcher.wait_for_event_thread_to_wait()
        first = dispatcher.stats().idle_s
        spin(0.005)
        idle = dispatcher.stats().idle_s - first

        hold(dispatcher, gate)
        first = dispatcher.stats().idle_s
        spin(0.005)
        busy = dispatcher.stats().idle_s - first
        gate.opened.set()

    assert idle >= 0.005
    assert busy == 0


def test_mail_does_not_count_as_idle_time() -> None:
    entered, opened = threading.Event(), threading.Event()

    def mail() -> None:
        entered.set()
        assert opened.wait(TIMEOUT_S)

    with DrainDispatcher() as dispatcher:
        dispatcher.wait_for_event_thread_to_wait()
        dispatcher.mailbox_executor.execute(mail)
        assert entered.wait(TIMEOUT_S)
        first = dispatcher.stats().idle_s
        spin(0.005)
        busy = dispatcher.stats().idle_s - first
        opened.set()

    assert busy == 0
