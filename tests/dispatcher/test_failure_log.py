"""What the log says of failed events, in lines and in fields, and how few lines a flood of them is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, Event, Retry
from dispatcher.dispatching.error_policy import EVERY_NS, FailureLog
from dispatcher.testing import ManualClock

from ..kit import TIMEOUT_S, Gate, Numbered, OfEntity, Other, Unreadable, Work, in_threads, until

Make = Callable[..., AsyncDispatcher]


class Clock:
    """Nanoseconds that advance when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 5 * EVERY_NS

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failures(clock: Clock) -> FailureLog:
    return FailureLog("central", clock)


def fail(failures: FailureLog, times: int = 1, error: BaseException | None = None, event_type: str = "DO") -> None:
    for _ in range(times):
        failures.failed(Numbered(), error or ValueError("broken"), "Work", event_type)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool, int]]:
    """Message, whether there is a traceback, and the field `count`."""
    return [(record.message, record.exc_info is not None, record.__dict__["count"]) for record in caplog.records]


FIRST = ("central: handling <Numbered Work.DO> failed", True, 1)


def test_the_first_failure_is_logged_at_once_with_its_traceback(
    failures: FailureLog, caplog: pytest.LogCaptureFixture
) -> None:
    fail(failures)

    assert lines(caplog) == [FIRST]


def test_equal_failures_within_a_second_are_told_by_the_next_one(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(failures, 1000)
    clock.now_ns += EVERY_NS - 1
    fail(failures)
    clock.now_ns += 1
    fail(failures)

    told = "central: handling <Numbered Work.DO> failed, and 1000 more events like it since the last line"
    assert lines(caplog) == [FIRST, (told, True, 1001)]


def test_a_failure_after_a_quiet_second_is_logged_like_the_first(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(failures)
    clock.now_ns += EVERY_NS
    fail(failures)

    assert lines(caplog) == [FIRST, FIRST]


def test_failures_of_other_types_and_errors_are_logged_at_once(
    failures: FailureLog, caplog: pytest.LogCaptureFixture
) -> None:
    fail(failures)
    fail(failures, error=KeyError("other error"))
    fail(failures, event_type="MORE")

    assert [count for _, _, count in lines(caplog)] == [1, 1, 1]


def test_what_no_further_failure_tells_is_told_once_the_second_has_passed(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(failures, 6)
    clock.now_ns += EVERY_NS - 1
    failures.tell_due()
    assert lines(caplog) == [FIRST]

    clock.now_ns += 1
    failures.tell_due()
    failures.tell_due()

    assert lines(caplog)[1:] == [("central: handling 5 more events of type Work.DO failed with ValueError", False, 5)]


def test_the_end_tells_all_that_is_left(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    fail(failures, 3)
    fail(failures, 2, event_type="MORE")

    failures.tell_all()
    failures.tell_all()

    assert [count for _, _, count in lines(caplog)] == [1, 1, 2, 1]


def test_many_kinds_of_failures_are_not_kept(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        fail(failures, 2, event_type=f"T{number}")

    assert len(failures._throttle._logged) <= 100
    failures.tell_all()
    assert sum(count for _, _, count in lines(caplog)) == 2000


def test_counts_add_up_when_threads_fail_and_tell_at_the_same_time(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_often() -> None:
        for _ in range(300):
            fail(failures)
            clock.now_ns += EVERY_NS // 7
            failures.tell_due()

    in_threads(*[fail_often] * 4)
    failures.tell_all()

    assert sum(count for _, _, count in lines(caplog)) == 1200


# -- of a dispatcher --------------------------------------------------------------------------------------------------


def failing(event: Any) -> None:
    raise ValueError("broken")


def test_a_flood_of_failures_is_a_few_lines_whose_counts_add_up(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = make(name="mine", time_service=ManualClock())
    dispatcher.register(Work, failing)
    for _ in range(2000):
        dispatcher.post(Numbered())

    dispatcher.stop()

    records = [record for record in caplog.records if "handling" in record.message]
    assert len(records) < 200
    assert sum(record.__dict__["count"] for record in records) == 2000
    assert dispatcher.stats().failed == 2000
    assert dispatcher.view.failures()[0].number == 2000


def test_the_watch_tells_the_rest_of_a_flood_when_its_second_has_passed(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers, clock = ManualClock(), Clock()
    monkeypatch.setattr("dispatcher.dispatching.error_policy.FailureLog", lambda name: FailureLog(name, clock))
    dispatcher = make(name="mine", time_service=timers)
    dispatcher.register(Work, failing)
    for _ in range(10):
        dispatcher.post(Numbered())
    assert dispatcher.await_drained(TIMEOUT_S)

    clock.now_ns += EVERY_NS
    timers.advance(1000)

    assert [record.__dict__["count"] for record in caplog.records] == [1, 9]


def test_an_exit_of_the_process_tells_the_rest_first(caplog: pytest.LogCaptureFixture) -> None:
    told_at_exit: list[int] = []
    exiting = threading.Event()

    def exit_process(status: int) -> None:
        told_at_exit.extend(record.__dict__.get("count", 0) for record in caplog.records)
        exiting.set()

    with AsyncDispatcher(exit_action=exit_process, time_service=ManualClock()) as dispatcher:
        dispatcher.register(Other, failing)
        dispatcher.register(Work, failing, on_error="exit")
        for event in [Event(Other.DO)] * 4 + [Numbered()]:
            dispatcher.post(event)
        assert exiting.wait(TIMEOUT_S)

    assert sum(told_at_exit) == 5


def test_a_flood_of_attempts_is_a_few_lines_whose_counts_add_up(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A service that is down logged a line for each attempt at each event."""
    dispatcher = make(name="mine")
    dispatcher.register(Work, failing, on_error=Retry(attempts=3, delay_s=0))
    with caplog.at_level(logging.WARNING):
        for _ in range(500):
            dispatcher.post(OfEntity("job_1"))
        assert dispatcher.await_drained(TIMEOUT_S)
        dispatcher.stop()

    first = caplog.records[0]
    assert first.message.startswith("mine: attempt 1 of 3 of ")
    assert first.message.endswith(" failed, and is followed by another: ValueError: broken")
    names = ("dispatcher", "event_class", "event_type", "entity", "attempt", "count")
    assert [first.__dict__[name] for name in names] == ["mine", "Work", "DO", "job_1", 1, 1]
    attempts = [record for record in caplog.records if record.levelno == logging.WARNING]
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [sum(record.__dict__["count"] for record in each) for each in (attempts, failures)] == [1000, 500]
    assert len(caplog.records) < 50
    assert failures[0].__dict__["attempt"] == 3


def test_equal_attempts_are_told_by_the_next_one_and_apart_from_failures(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def retry() -> None:
        failures.retried(Numbered(), ValueError("broken"), "Work", "DO", 1, 5)

    for _ in range(3):
        retry()
    fail(failures)
    clock.now_ns += EVERY_NS
    retry()
    retry()
    failures.tell_all()

    line = "central: attempt 1 of 5 of <Numbered Work.DO> failed, and is followed by another"
    assert lines(caplog) == [
        (f"{line}: ValueError: broken", False, 1),
        FIRST,
        (f"{line}, as 2 more attempts since the last line: ValueError: broken", False, 3),
        ("central: 1 more attempt at events of type Work.DO failed with ValueError", False, 1),
    ]


def test_a_failed_event_has_fields(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = make(name="mine")
    dispatcher.register(Work, failing)

    dispatcher.post(OfEntity("job_1"))
    dispatcher.post(Event(Other.DO))
    assert dispatcher.await_drained(TIMEOUT_S)

    names = ("dispatcher", "event_class", "event_type", "entity", "error_class")
    found = [tuple(record.__dict__.get(name) for name in names) for record in caplog.records]
    assert found == [
        ("mine", "Work", "DO", "job_1", "ValueError"),
        ("mine", "Other", "DO", None, "UnregisteredEventTypeError"),
    ]


def test_an_event_that_cannot_be_read_has_fields_too(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = make(name="mine")

    dispatcher.post(Unreadable())
    assert dispatcher.await_drained(TIMEOUT_S)

    [record] = caplog.records
    assert (record.__dict__["dispatcher"], record.__dict__["event_class"]) == ("mine", "NoneType")


def test_a_slow_handler_has_fields(make: Make, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    timers = ManualClock()
    dispatcher = make(DispatcherConfig(handler_warn_after_s=0.001), name="mine", time_service=timers)
    dispatcher.register(Work, gate)
    dispatcher.post(OfEntity("job_1"))
    assert gate.entered.wait(TIMEOUT_S)

    until(lambda: timers.advance(1000) or caplog.records, "the warning")
    gate.opened.set()
    until(lambda: len(caplog.records) == 2, "the line of its end")

    fields = [record.__dict__ for record in caplog.records]
    assert {(each["dispatcher"], each["event_class"], each["event_type"], each["entity"]) for each in fields} == {
        ("mine", "Work", "DO", "job_1")
    }
    assert [0 < each["seconds"] < TIMEOUT_S for each in fields] == [True, True]  # while it runs, and at its end


def test_events_that_a_stop_discards_have_fields(make: Make, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = make(name="mine")
    dispatcher.register(Work, gate)
    dispatcher.set_drain_events_on_stop(False)
    for _ in range(3):
        dispatcher.post(Numbered())
    assert gate.entered.wait(TIMEOUT_S)

    caplog.set_level(logging.WARNING)

    def open_later() -> None:
        until(lambda: not dispatcher.queue_size(), "the discard")
        gate.opened.set()

    in_threads(dispatcher.stop, open_later)

    [record] = [record for record in caplog.records if "discarded" in record.message]
    assert (record.__dict__["dispatcher"], record.__dict__["count"]) == ("mine", 2)
