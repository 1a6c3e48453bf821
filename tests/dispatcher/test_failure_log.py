"""What the log says of failed events, in lines and in fields, and how few lines a flood of them is."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, Event, Retry
from dispatcher.testing import ManualClock

from ..kit import TIMEOUT_S, Gate, Numbered, OfEntity, Other, Unreadable, Work, in_threads, until
from ..kit.dispatchers import Make, hold
from ..kit.scenarios import play

SECOND_NS = 1_000_000_000


class Clock:
    """Nanoseconds that advance when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 5 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of the failures of all dispatchers that are made from now on."""
    clock = Clock()
    monkeypatch.setattr(type(AsyncDispatcher()._errors.log).__init__, "__defaults__", (clock,))
    return clock


@pytest.fixture
def failures(clock: Clock) -> Any:
    return AsyncDispatcher(name="central")._errors.log


def fail(failures: Any, times: int = 1, error: BaseException | None = None, event_type: str = "DO") -> None:
    for _ in range(times):
        failures.failed(Numbered(), error or ValueError("broken"), "Work", event_type)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool, int]]:
    """Message, whether there is a traceback, and the field `count`."""
    return [(record.message, record.exc_info is not None, record.__dict__["count"]) for record in caplog.records]


class Stage:
    """Steps: fail [TIMES [TYPE [ERROR]]], retry, due, end, +MS. `told` is the field `count` of each line so far, with a
    `!` if it has a traceback."""

    def __init__(self, failures: Any, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
        self.failures, self.clock, self.caplog = failures, clock, caplog

    def play(self, verb: str, times: str = "1", event_type: str = "DO", error: str = "ValueError") -> None:
        if verb.startswith("+"):
            self.clock.now_ns += round(float(verb) * 1e6)
        elif verb == "fail":
            fail(
                self.failures, int(times), {"ValueError": ValueError, "KeyError": KeyError}[error]("broken"), event_type
            )
        elif verb == "retry":
            self.failures.retried(Numbered(), ValueError("broken"), "Work", "DO", 1, 5)
        else:
            {"due": self.failures.tell_due, "end": self.failures.tell_all}[verb]()

    def look(self, what: str) -> list[str]:
        return [f"{count}{'!' * has_traceback}" for _, has_traceback, count in lines(self.caplog)]


SCENARIOS = {
    "the first failure is logged at once with its traceback": "fail -> told 1!",
    "equal failures within a second are told by the next one": (
        "fail 1000 | +999.999999 | fail -> told 1! | +0.000001 | fail -> told 1! 1001!"
    ),
    "a failure after a quiet second is logged like the first": "fail | +1000 | fail -> told 1! 1!",
    "failures of other types and errors are logged at once": "fail | fail 1 DO KeyError | fail 1 MORE -> told 1! 1! 1!",
    "what no further failure tells is told once the second has passed": (
        "fail 6 | +999.999999 | due -> told 1! | +0.000001 | due -> told 1! 5 | due -> told 1! 5"
    ),
    "the end tells all that is left": "fail 3 | fail 2 MORE | end -> told 1! 1! 2 1 | end -> told 1! 1! 2 1",
    "equal attempts are told by the next one, and apart from failures": (
        "retry | retry | retry | fail | +1000 | retry | retry | end -> told 1 1! 3 1"
    ),
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(failures: Any, clock: Clock, caplog: pytest.LogCaptureFixture, script: str) -> None:
    play(Stage(failures, clock, caplog), script)


def test_each_line_says_what_failed_and_how_often(
    failures: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    play(Stage(failures, clock, caplog), "fail 3 | +1000 | fail 2 | end | retry | retry | +1000 | retry | retry | end")

    event, attempt = (
        "<Numbered Work.DO>",
        "central: attempt 1 of 5 of <Numbered Work.DO> failed, and is followed by another",
    )
    assert [message for message, _, _ in lines(caplog)] == [
        f"central: handling {event} failed",
        f"central: handling {event} failed, and 2 more events like it since the last line",
        "central: handling 1 more event of type Work.DO failed with ValueError",
        f"{attempt}: ValueError: broken",
        f"{attempt}, as 1 more attempt since the last line: ValueError: broken",
        "central: 1 more attempt at events of type Work.DO failed with ValueError",
    ]


def test_many_kinds_of_failures_are_not_kept(failures: Any, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        fail(failures, 2, event_type=f"T{number}")

    assert len(failures._throttle._logged) <= 100
    failures.tell_all()
    assert sum(count for _, _, count in lines(caplog)) == 2000


def test_counts_add_up_when_threads_fail_and_tell_at_the_same_time(
    failures: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_often() -> None:
        for _ in range(300):
            fail(failures)
            clock.now_ns += SECOND_NS // 7
            failures.tell_due()

    in_threads(*[fail_often] * 4)
    failures.tell_all()

    assert sum(count for _, _, count in lines(caplog)) == 1200


# -- of a dispatcher --------------------------------------------------------------------------------------------------


def failing(event: Any) -> None:
    raise ValueError("broken")


def test_the_watch_tells_the_rest_of_a_flood_when_its_second_has_passed(
    make: Make, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    timers = ManualClock()
    dispatcher = make(name="mine", time_service=timers)
    dispatcher.register(Work, failing)
    for _ in range(10):
        dispatcher.post(Numbered())
    assert dispatcher.await_drained(TIMEOUT_S)

    clock.now_ns += SECOND_NS
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


@pytest.mark.usefixtures("clock")
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
    assert len(caplog.records) == 4
    assert failures[0].__dict__["attempt"] == 3


def test_a_failed_event_has_fields_even_if_it_cannot_be_read(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = make(name="mine")
    dispatcher.register(Work, failing)

    for event in (OfEntity("job_1"), Event(Other.DO), Unreadable()):
        dispatcher.post(event)
    assert dispatcher.await_drained(TIMEOUT_S)

    names = ("dispatcher", "event_class", "event_type", "entity", "error_class")
    found = [tuple(record.__dict__.get(name) for name in names) for record in caplog.records]
    assert found[:2] == [
        ("mine", "Work", "DO", "job_1", "ValueError"),
        ("mine", "Other", "DO", None, "UnregisteredEventTypeError"),
    ]
    assert [each[:2] for each in found[2:]] == [("mine", "NoneType")]


def test_a_slow_handler_has_fields(make: Make, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    timers = ManualClock()
    dispatcher = make(DispatcherConfig(handler_warn_after_s=0.001), name="mine", time_service=timers)
    dispatcher.register(Work, gate)
    hold(dispatcher, gate, OfEntity("job_1"))

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
