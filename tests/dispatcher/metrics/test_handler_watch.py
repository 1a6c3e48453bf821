"""The watchdog of handlers that run too long, and how long the current handler has run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from dispatcher import AsyncDispatcher, DispatcherConfig, Event, register_metrics
from dispatcher.dispatching.monitor import HandlerWatch, Run, SlowRuns
from dispatcher.testing import ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered, until
from ...kit.dispatchers import hold
from .test_type_times import TIMED_MODULES, Clock

Make = Callable[..., AsyncDispatcher]

WARN_AFTER_S = 0.001
CHECK_MS = 10
"""Between two looks of the watch."""


class Rare(Enum):
    SLOW = 1


def samples(registry: CollectorRegistry, name: str) -> list[Sample]:
    return [sample for family in registry.collect() for sample in family.samples if sample.name == name]


def of_slow(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["event_class"], sample.labels["event_type"]): sample.value
        for sample in samples(registry, "dispatcher_slow_total")
    }


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


def enter_long(dispatcher: AsyncDispatcher, turns: Turns, seconds: float = WARN_AFTER_S) -> None:
    assert turns.entered.acquire(timeout=TIMEOUT_S)
    until(lambda: dispatcher.stats().handler_running_s > seconds)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def watched(make: Make, clock: ManualClock, registry: CollectorRegistry, turns: Turns) -> Make:
    """Makes dispatchers whose handler takes turns, and which the metrics show."""

    def watched(**config: Any) -> AsyncDispatcher:
        settings = DispatcherConfig(**{"handler_warn_after_s": WARN_AFTER_S, **config})
        dispatcher = make(settings, name="central", handler=turns.handle_slowly, time_service=clock)
        register_metrics(dispatcher, registry)
        return dispatcher

    return watched


each_way = pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])


@each_way
def test_a_long_handler_is_logged_once_with_its_event_and_stack_and_at_its_end_which_counts_its_type(
    watched: Make,
    clock: ManualClock,
    turns: Turns,
    registry: CollectorRegistry,
    caplog: pytest.LogCaptureFixture,
    measure_times: str,
) -> None:
    dispatcher = watched(measure_times=measure_times)
    with caplog.at_level(logging.WARNING):
        clock.advance(1000)  # an idle one is not warned of
        dispatcher.post(Numbered())
        enter_long(dispatcher, turns)
        clock.advance(CHECK_MS)
        clock.advance(10 * CHECK_MS)
        turns.go_on.release()
        assert dispatcher.await_drained(TIMEOUT_S)
        until(lambda: "has ended" in caplog.text)

    [warning, ended] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("central: a handler has run for ")
    assert "at work on <Numbered Work.DO>" in warning
    assert "in handle_slowly" in warning
    assert ended.startswith("central: a handler has ended: <Numbered Work.DO> took ")
    assert of_slow(registry)["Work", "DO"] == 1


@each_way
def test_the_next_long_event_of_the_same_batch_is_logged_again(
    watched: Make, clock: ManualClock, turns: Turns, caplog: pytest.LogCaptureFixture, measure_times: str
) -> None:
    dispatcher = watched(measure_times=measure_times)
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


@each_way
def test_a_quick_handler_late_in_a_long_batch_is_not_warned_of(
    make: Make,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    measure_times: str,
) -> None:
    """Many handlers that took a moment each looked like one that took long."""
    entered, go_on, time_of = threading.Event(), threading.Event(), Clock()
    for module in (*TIMED_MODULES, "dispatcher.dispatching.monitor"):
        monkeypatch.setattr(f"{module}.perf_counter_ns", time_of)
    monkeypatch.setattr(HandlerWatch.__init__, "__defaults__", (time_of,))

    def handle(event: Numbered) -> None:
        if event.number == 20:
            entered.set()
            assert go_on.wait(TIMEOUT_S)
        else:
            time_of.now_ns += 30_000_000

    config = DispatcherConfig(handler_warn_after_s=0.5, measure_times=measure_times)
    dispatcher = make(config, handler=handle, time_service=clock)
    post = dispatcher.event_handler.handle
    dispatcher.mailbox_executor.submit(lambda: [post(Numbered(number)) for number in range(21)]).result(TIMEOUT_S)
    assert entered.wait(TIMEOUT_S)

    with caplog.at_level(logging.WARNING):
        clock.advance(1000)
    go_on.set()

    assert warnings(caplog) == []


def test_without_a_limit_no_handler_is_warned_of(
    watched: Make, clock: ManualClock, turns: Turns, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = watched(handler_warn_after_s=None)
    dispatcher.post(Numbered())
    enter_long(dispatcher, turns)

    with caplog.at_level(logging.WARNING):
        clock.advance(100_000)
    turns.go_on.release()

    assert warnings(caplog) == []


def test_a_stopped_dispatcher_is_not_checked_any_more(make: Make, clock: ManualClock) -> None:
    dispatcher = make(time_service=clock)
    assert clock.pending_timers

    dispatcher.stop()

    assert clock.pending_timers == 0


@each_way
def test_the_time_of_the_current_handler_is_shown_while_it_runs_and_is_0_afterwards(
    make: Make, gate: Gate, registry: CollectorRegistry, measure_times: str
) -> None:
    dispatcher = make(DispatcherConfig(measure_times=measure_times), name="central", handler=gate)
    register_metrics(dispatcher, registry)

    def shown() -> float | None:
        return registry.get_sample_value("dispatcher_handler_running_seconds", {"dispatcher": "central"})

    hold(dispatcher, gate)

    while_held = (dispatcher.stats().handler_running_s, shown())
    later = dispatcher.stats().handler_running_s
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    assert 0 < while_held[0] < later
    assert while_held[1]
    until(lambda: (dispatcher.stats().handler_running_s, shown()) == (0.0, 0.0))


def test_a_run_that_ends_while_it_is_logged_is_logged_once_more_with_its_duration(
    watched: Make, clock: ManualClock, turns: Turns
) -> None:
    dispatcher = watched()
    lines: list[str] = []

    class Ending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            if "has run for" in lines[-1]:
                turns.go_on.release()
                assert dispatcher.await_drained(TIMEOUT_S)

    log, ending = logging.getLogger("dispatcher.async_dispatcher"), Ending(logging.WARNING)
    dispatcher.post(Numbered())
    enter_long(dispatcher, turns)
    log.addHandler(ending)
    try:
        clock.advance(CHECK_MS)
    finally:
        log.removeHandler(ending)

    assert [line.partition(" <Numbered")[0] for line in lines[1:]] == ["central: a handler has ended:"]


def test_the_end_of_a_slow_run_that_was_not_logged_is_not_logged_either(
    watched: Make, turns: Turns, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = watched()
    dispatcher.post(Numbered())
    enter_long(dispatcher, turns)

    turns.go_on.release()
    assert dispatcher.await_drained(TIMEOUT_S)

    assert of_slow(registry)["Work", "DO"] == 1
    assert caplog.text == ""


def test_a_mail_that_hangs_is_shown_logged_and_counted(
    watched: Make, clock: ManualClock, turns: Turns, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """All client calls and timers of the resource manager are mails; one that hung was invisible."""
    dispatcher = watched()

    def long_mail() -> None:
        turns.handle_slowly(None)

    done = dispatcher.mailbox_executor.submit(long_mail)
    enter_long(dispatcher, turns)
    shown = {tuple(sample.labels.values()): sample.value for sample in samples(registry, "dispatcher_running_seconds")}
    running = dispatcher.view.running()
    with caplog.at_level(logging.WARNING):
        clock.advance(CHECK_MS)
        clock.advance(CHECK_MS)
        turns.go_on.release()
        done.result(TIMEOUT_S)
        until(lambda: "has ended" in caplog.text)

    lines = [record.getMessage() for record in caplog.records]
    assert running is not None
    assert (running.kind, running.event_class, running.event_type, running.entity) == ("mail", "(mail)", "", None)
    assert running.description == f"call of {long_mail!r}"
    assert shown.keys() == {("central", "mail", "(mail)", "")}
    assert shown["central", "mail", "(mail)", ""] >= WARN_AFTER_S
    assert len(lines) == 2
    assert lines[0].startswith("central: a mail has run for ")
    assert f": call of {long_mail!r}. It is here:\n" in lines[0]
    assert "in long_mail" in lines[0]
    assert lines[1].startswith(f"central: a mail has ended: call of {long_mail!r} took ")
    until(lambda: dispatcher.view.running() is None)  # the line is written within the mail
    assert samples(registry, "dispatcher_running_seconds") == []
    assert of_slow(registry)["(mail)", ""] >= 1  # a snapshot of the statistics is a mail, and slow on a busy machine


def test_a_slow_event_at_the_end_of_a_quick_batch_is_counted_by_its_type(
    make: Make, clock: ManualClock, gate: Gate, turns: Turns, registry: CollectorRegistry
) -> None:
    """The batch is timed as a whole: what the watch cuts short ends with the event that took so long."""
    # Long enough that a busy machine makes none of the other events slow.
    config = DispatcherConfig(handler_warn_after_s=0.25)
    dispatcher = make(config, handler=gate, time_service=clock)
    register_metrics(dispatcher, registry)
    dispatcher.register(Rare, turns.handle_slowly)
    post = dispatcher.event_handler.handle
    post(Numbered())
    assert gate.entered.wait(TIMEOUT_S)
    for number in range(1_000):  # a flood, after which batches are quick
        post(Numbered(number))
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)
    before = of_slow(registry)["Work", "DO"]

    dispatcher.mailbox_executor.submit(lambda: [post(Numbered()), post(Event(Rare.SLOW)), post(Numbered())]).result(
        TIMEOUT_S
    )
    enter_long(dispatcher, turns, 0.25)
    clock.advance(1000)
    turns.go_on.release()
    assert dispatcher.await_drained(TIMEOUT_S)
    until(lambda: of_slow(registry).get(("Rare", "SLOW")) == 1)

    assert of_slow(registry)["Work", "DO"] == before


@pytest.mark.parametrize(("warn_after_s", "every_ms"), [(None, 1000), (10.0, 1000), (1.0, 250), (0.001, 10)])
def test_it_looks_often_enough_for_the_limit(
    make: Make, clock: ManualClock, warn_after_s: float | None, every_ms: int
) -> None:
    make(DispatcherConfig(handler_warn_after_s=warn_after_s), time_service=clock)

    assert clock.next_timer_ms() == every_ms


def test_producers_that_wait_for_room_behind_a_hung_handler_are_logged_once(
    make: Make, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = make(DispatcherConfig(queue_capacity=1, handler_warn_after_s=0.01), handler=gate)
    for number in range(2):
        hold(dispatcher, gate, Numbered(number))
    producers = [
        threading.Thread(target=dispatcher.event_handler.handle, args=(Numbered(2),), name=name)
        for name in ("producer a", "producer b")
    ]
    for producer in producers:
        producer.start()
    until(lambda: "for room in the full queue" in caplog.text, "the warning")
    gate.opened.set()
    for producer in producers:
        producer.join(TIMEOUT_S)

    [message] = [record.message for record in caplog.records if "for room in the full queue" in record.message]
    assert "thread producer " in message
    assert "a handler is at work on" in message
    assert "self.opened.wait" in message


def watch_over_producers(
    after_s: float, run: Run | None, coroutines: str | None, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> HandlerWatch:
    slow = SlowRuns("jobs", after_s)
    return HandlerWatch("jobs", slow, lambda: run, lambda: "", lambda: coroutines, lambda: None, 0, clock_ns)


def test_a_producer_behind_events_that_leave_the_queue_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    now_ns = time.perf_counter_ns()
    quick = Run("event", Numbered(), now_ns)
    watch = watch_over_producers(60.0, quick, None)

    assert not watch.long_wait("thread a")
    assert caplog.text == ""


def test_long_waits_are_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    clock_ns = 0
    watch = watch_over_producers(1.0, None, "coroutines", lambda: clock_ns)

    assert watch.long_wait("task a")
    assert watch.long_wait("task b")
    clock_ns = 31_000_000_000
    assert watch.long_wait("task c")

    logged = [record.message.split(" has waited")[0] for record in caplog.records]
    assert logged == ["jobs: task a", "jobs: task c"]
