"""The watchdog of handlers that run too long, and how long the current handler has run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, DispatcherConfig, register_metrics
from dispatcher.dispatching.monitor import HandlerWatch, check_every_ms
from dispatcher.dispatching.progress import Progress
from dispatcher.testing import ManualClock

from ..conftest import TIMEOUT_S, Gate, Numbered
from ..waiting import until

Make = Callable[..., AsyncDispatcher]

WARN_AFTER_S = 0.001
CHECK_MS = check_every_ms(DispatcherConfig(handler_warn_after_s=WARN_AFTER_S))


class Turns:
    """A handler that stays in each event until the test lets it go on."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def handle_slowly(self, event: Any) -> None:
        self.entered.release()
        assert self.go_on.acquire(timeout=TIMEOUT_S)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "a handler has run for" in record.getMessage()]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def turns() -> Turns:
    return Turns()


def enter_long(dispatcher: AsyncDispatcher, turns: Turns) -> None:
    assert turns.entered.acquire(timeout=TIMEOUT_S)
    until(lambda: dispatcher.stats().handler_running_s > WARN_AFTER_S)


@pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])
def test_a_long_handler_is_logged_once_with_its_event_and_stack(
    make: Make, clock: ManualClock, turns: Turns, caplog: pytest.LogCaptureFixture, measure_times: str
) -> None:
    config = DispatcherConfig(handler_warn_after_s=WARN_AFTER_S, measure_times=measure_times)
    dispatcher = make(config, name="central", handler=turns.handle_slowly, time_service=clock)
    dispatcher.event_handler.handle(Numbered())
    enter_long(dispatcher, turns)

    with caplog.at_level(logging.WARNING):
        clock.advance(CHECK_MS)
        clock.advance(10 * CHECK_MS)
    turns.go_on.release()

    (warning,) = warnings(caplog)
    assert warning.startswith("central: a handler has run for ")
    assert "at work on <Numbered Work.DO>" in warning
    assert "in handle_slowly" in warning
    assert dispatcher.await_drained(TIMEOUT_S)


@pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])
def test_the_next_long_event_of_the_same_batch_is_logged_again(
    make: Make, clock: ManualClock, turns: Turns, caplog: pytest.LogCaptureFixture, measure_times: str
) -> None:
    config = DispatcherConfig(handler_warn_after_s=WARN_AFTER_S, measure_times=measure_times)
    dispatcher = make(config, handler=turns.handle_slowly, time_service=clock)
    post = dispatcher.event_handler.handle
    dispatcher.mailbox_executor.submit(lambda: [post(Numbered()) for _ in range(3)]).result(TIMEOUT_S)

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            enter_long(dispatcher, turns)
            clock.advance(CHECK_MS)
            clock.advance(CHECK_MS)
            turns.go_on.release()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert len(warnings(caplog)) == 3


@pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])
def test_a_quick_handler_late_in_a_long_batch_is_not_warned_of(
    make: Make, clock: ManualClock, caplog: pytest.LogCaptureFixture, measure_times: str
) -> None:
    """Many handlers that took a moment each looked like one that took long."""
    entered, go_on = threading.Event(), threading.Event()

    def handle(event: Numbered) -> None:
        if event.number == 20:
            entered.set()
            assert go_on.wait(TIMEOUT_S)
        else:
            until_ns = time.perf_counter_ns() + 30_000_000
            while time.perf_counter_ns() < until_ns:
                pass

    config = DispatcherConfig(handler_warn_after_s=0.5, measure_times=measure_times)
    dispatcher = make(config, handler=handle, time_service=clock)
    post = dispatcher.event_handler.handle
    dispatcher.mailbox_executor.submit(lambda: [post(Numbered(number)) for number in range(21)]).result(TIMEOUT_S)
    assert entered.wait(TIMEOUT_S)

    with caplog.at_level(logging.WARNING):
        clock.advance(1000)
    go_on.set()

    assert warnings(caplog) == []


def test_an_idle_dispatcher_is_not_warned_of(make: Make, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    make(DispatcherConfig(handler_warn_after_s=WARN_AFTER_S), time_service=clock)

    with caplog.at_level(logging.WARNING):
        clock.advance(100_000)

    assert warnings(caplog) == []


def test_without_a_limit_no_handler_is_warned_of(
    make: Make, clock: ManualClock, turns: Turns, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = make(DispatcherConfig(handler_warn_after_s=None), handler=turns.handle_slowly, time_service=clock)
    dispatcher.event_handler.handle(Numbered())
    enter_long(dispatcher, turns)

    with caplog.at_level(logging.WARNING):
        clock.advance(100_000)
    turns.go_on.release()

    assert warnings(caplog) == []


def test_a_stopped_dispatcher_is_not_checked_any_more(make: Make, clock: ManualClock) -> None:
    dispatcher = make(time_service=clock)
    assert clock.pending_timers()

    dispatcher.stop()

    assert clock.pending_timers() == 0


@pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])
def test_the_time_of_the_current_handler_is_shown_while_it_runs_and_is_0_afterwards(
    make: Make, gate: Gate, measure_times: str
) -> None:
    registry = CollectorRegistry()
    dispatcher = make(DispatcherConfig(measure_times=measure_times), name="central", handler=gate)
    register_metrics(dispatcher, registry)

    def shown() -> float | None:
        return registry.get_sample_value("dispatcher_handler_running_seconds", {"dispatcher": "central"})

    dispatcher.event_handler.handle(Numbered())
    assert gate.entered.wait(TIMEOUT_S)

    while_held = (dispatcher.stats().handler_running_s, shown())
    later = dispatcher.stats().handler_running_s
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    assert 0 < while_held[0] < later
    assert while_held[1]
    assert (dispatcher.stats().handler_running_s, shown()) == (0.0, 0.0)


def test_the_watch_tells_each_long_run_once() -> None:
    progress, now_ns = Progress(), [0]
    warned_at_ns: list[int] = []
    watch = HandlerWatch("w", 1.0, progress, lambda: "", lambda: warned_at_ns.append(now_ns[0]), lambda: now_ns[0])

    for progress.since_ns, now_ns[0] in [
        (0, 5_000_000_000),  # idle
        (5_000_000_000, 5_999_999_999),  # not long enough
        (5_000_000_000, 6_000_000_000),  # long
        (5_000_000_000, 60_000_000_000),  # the same
        (60_000_000_000, 60_500_000_000),  # the next, not long enough
        (60_000_000_000, 61_000_000_000),  # long
    ]:
        watch.check()

    assert warned_at_ns == [6_000_000_000, 61_000_000_000]


@pytest.mark.parametrize(("warn_after_s", "every_ms"), [(None, 1000), (10.0, 1000), (1.0, 250), (0.001, 10)])
def test_it_looks_often_enough_for_the_limit(warn_after_s: float | None, every_ms: int) -> None:
    assert check_every_ms(DispatcherConfig(handler_warn_after_s=warn_after_s)) == every_ms
