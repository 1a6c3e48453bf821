"""Checks that a program registers: when they run, how long they are waited for, and what they may do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ...kit import TIMEOUT_S, Gate, until
from ...kit.services import fail
from .asked import health_of


class Checked:
    """The health of nothing but checks, of which the first is `db`."""

    def __init__(self, check: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
        self.now_s = 0.0
        self.health = health_of(clock_s=lambda: self.now_s)
        self.health.register_check("db", check, timeout_s)

    def failed(self, *, waits: bool) -> list[str]:
        return [each.reason.removeprefix("check:") for each in self.health.ready(waits_for_checks=waits).reasons]


def exit_at_once() -> None:
    raise SystemExit(3)


class Unanswerable:
    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


@pytest.mark.parametrize("check", [lambda: False, lambda: None, fail, exit_at_once, Unanswerable])
def test_a_check_that_does_not_say_true_has_failed(check: Callable[[], Any]) -> None:
    checks = Checked(check)

    assert checks.failed(waits=True) == ["db"]


def test_a_check_runs_at_most_once_a_second_and_its_last_answer_is_used() -> None:
    answers = iter([True, False])
    calls: list[str] = []
    checks = Checked(lambda: (calls.append(threading.current_thread().name), next(answers))[1])

    assert [checks.failed(waits=True) for _ in range(3)] == [[], [], []]
    checks.now_s = 0.99
    assert checks.failed(waits=True) == []
    checks.now_s = 1.0
    assert checks.failed(waits=True) == ["db"]
    assert calls == ["check-db", "check-db"]  # a thread of its own


def test_a_check_that_does_not_return_in_time_has_failed_and_is_not_called_again(gate: Gate) -> None:
    calls: list[int] = []

    def hang() -> bool:
        calls.append(1)
        gate.handle(None)
        return True

    checks = Checked(hang, timeout_s=1.0)
    checks.now_s = -0.999  # so the first answer is waited for 1 ms
    assert checks.failed(waits=False) == ["db"]
    assert gate.entered.wait(TIMEOUT_S)
    checks.now_s = 0.0
    assert checks.failed(waits=True) == ["db"]
    for checks.now_s in (0.001, 1.0, 2.0, 3600.0):
        assert checks.failed(waits=True) == ["db"]
    assert calls == [1]

    gate.opened.set()
    until(lambda: checks.failed(waits=True) == [], "a run after the one that hung")


def test_an_answer_that_comes_too_late_does_not_count(gate: Gate) -> None:
    checks = Checked(lambda: (gate.handle(None), True)[1], timeout_s=1.0)
    assert checks.failed(waits=False) == ["db"]
    assert gate.entered.wait(TIMEOUT_S)

    checks.now_s = 1.1
    gate.opened.set()
    until(lambda: "check-db" not in {thread.name for thread in threading.enumerate()}, "the end of the run")
    checks.now_s = 0.5  # within the second, so the late answer is the last one

    assert checks.failed(waits=True) == ["db"]


def test_without_waiting_the_last_answer_is_used_while_a_check_runs(gate: Gate) -> None:
    gate.opened.set()
    checks = Checked(lambda: (gate.handle(None), True)[1])
    assert checks.failed(waits=True) == []
    gate.opened.clear()
    gate.entered.clear()
    checks.now_s = 1.0

    assert checks.failed(waits=False) == []
    assert gate.entered.wait(TIMEOUT_S)
    assert checks.failed(waits=False) == []


def test_checks_run_side_by_side_and_those_that_fail_are_named_in_their_order() -> None:
    together = threading.Barrier(2)
    checks = Checked(lambda: together.wait(TIMEOUT_S) < 0)
    checks.health.register_check("a", lambda: together.wait(TIMEOUT_S) < 0, TIMEOUT_S)

    assert checks.failed(waits=True) == ["db", "a"]


def test_a_check_of_the_same_name_replaces_the_earlier_one_and_can_be_removed() -> None:
    asked = health_of()
    asked.register_check("db", lambda: False)
    asked.register_check("db", lambda: True, TIMEOUT_S)
    assert asked.ready().is_ok
    asked.register_check("db", lambda: False)
    assert [reason.reason for reason in asked.ready().reasons] == ["check:db"]

    assert asked.unregister_check("db")
    assert not asked.unregister_check("db")
    assert asked.ready().is_ok


async def coroutine() -> bool:
    return True


def generator() -> Iterator[bool]:
    yield True


class AsyncCall:
    async def __call__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "AsyncCall()"


PLAIN = "check db must be a plain function that returns True or False; "


@pytest.mark.parametrize(
    ("name", "check", "timeout_s", "error", "message"),
    [
        ("", bool, 1.0, ValueError, "a check must have a name"),
        (3, bool, 1.0, TypeError, "the name of a check must be a str, not 3"),
        ("db", True, 1.0, TypeError, "check db must be a callable that returns True or False; True is not callable"),
        ("db", coroutine, 1.0, TypeError, f"{PLAIN}<function coroutine"),
        ("db", AsyncCall(), 1.0, TypeError, f"{PLAIN}AsyncCall()"),
        ("db", generator, 1.0, TypeError, f"{PLAIN}<function generator"),
        ("db", bool, 0, ValueError, "check db: timeout_s must be more than 0 s and finite, not 0"),
        ("db", bool, float("inf"), ValueError, "check db: timeout_s must be more than 0 s and finite, not inf"),
        ("db", bool, float("nan"), ValueError, "check db: timeout_s must be more than 0 s and finite, not nan"),
    ],
)
def test_what_is_no_check_is_refused(
    name: Any, check: Any, timeout_s: float, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        health_of().register_check(name, check, timeout_s)

    assert str(caught.value).startswith(message)


def test_the_log_says_when_a_check_begins_to_fail_and_when_it_succeeds_again(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([True, False, False, True])

    def answer() -> bool:
        return next(answers) or fail()

    checks = Checked(answer)
    with caplog.at_level(logging.INFO):
        for second in range(4):
            checks.now_s = second
            checks.failed(waits=True)
        until(lambda: len(caplog.messages) == 2)

    assert caplog.messages == ["check db: raised LookupError: lost", "check db: recovered"]


def test_a_check_answers_while_a_thread_holds_the_logging_lock(gate: Gate) -> None:
    class Holding(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # with the handler's lock held
            gate.handle(record)

    logger, handler = logging.getLogger("dispatcher.supervision.checks"), Holding()
    logger.addHandler(handler)
    try:
        checks = Checked(lambda: False)
        assert checks.failed(waits=True) == ["db"]
        assert gate.entered.wait(TIMEOUT_S)
        checks.now_s = 1.0
        assert checks.failed(waits=True) == ["db"]
    finally:
        gate.opened.set()
        logger.removeHandler(handler)


def test_in_a_forked_child_a_check_that_hung_in_the_parent_runs_anew(gate: Gate) -> None:
    results = iter([lambda: gate.handle(None), lambda: True])
    checks = Checked(lambda: next(results)() is not None)
    checks.failed(waits=False)
    assert gate.entered.wait(TIMEOUT_S)

    checks.health.after_fork()
    checks.now_s = 1.0

    assert checks.failed(waits=True) == []
