"""The operator with retries: which outcomes are retried and when, one timeout over all attempts, the end of input."""

from __future__ import annotations

import math
import operator
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.streaming import AsyncOperatorError, AsyncTimeoutError, RetryAfter, RetryStrategy, StreamRecord, Watermark
from pipeline.streaming.calls.hosts.choice import make_host

from .harness import MODES, ON_ERROR, TIMEOUT_S, HandFunction, Harness, fallback, until

ON_EMPTY = RetryStrategy.fixed_delay(2, 10, retry_on_result=operator.not_)
ON_BOTH = RetryStrategy.fixed_delay(2, 10, retry_on_result=operator.not_, retry_on_exception=ValueError)


# --- what is retried, and when ---


@MODES
def test_an_error_is_retried_after_the_delay(mode: str) -> None:
    with Harness(output_mode=mode, retry=ON_ERROR) as harness:
        harness.process("a", at=1)
        harness.answer_error("a", ValueError("busy"))

        harness.advance(9)
        assert harness.called() == ["a"]
        harness.advance(1)
        assert harness.called() == ["a", "a"]

        harness.answer("a", "A")
        assert harness.output == [StreamRecord("A", 1)]


@MODES
def test_a_result_is_retried_after_the_delay(mode: str) -> None:
    with Harness(output_mode=mode, retry=ON_EMPTY) as harness:
        harness.process("a")
        harness.answer("a")
        assert harness.output == []

        harness.advance(10)
        harness.answer("a", "A")

        assert harness.values() == ["A"]


def test_with_both_predicates_both_outcomes_are_retried() -> None:
    with Harness(retry=ON_BOTH) as harness:
        harness.process("a")
        harness.answer("a")
        harness.advance(10)
        harness.answer_error("a", ValueError("busy"))
        harness.advance(10)
        harness.answer("a", "A")

        assert harness.values() == ["A"]
        assert harness.called() == ["a", "a", "a"]


def test_an_error_that_the_predicate_does_not_want_fails_at_once() -> None:
    with Harness(retry=ON_ERROR) as harness:
        harness.process("a")

        with pytest.raises(AsyncOperatorError) as failure:
            harness.answer_error("a", KeyError("gone"))

        assert failure.value.attempts == 1


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
def test_max_attempts_are_those_that_may_be_followed_by_another(max_attempts: int) -> None:
    retry = RetryStrategy.fixed_delay(max_attempts, 10, retry_on_exception=ValueError)
    with Harness(retry=retry) as harness:
        harness.process("a")
        for _ in range(max_attempts):
            harness.answer_error("a", ValueError("busy"))
            harness.advance(10)

        with pytest.raises(AsyncOperatorError, match="busy") as failure:
            harness.answer_error("a", ValueError("busy"))

        assert failure.value.attempts == max_attempts + 1
        assert len(harness.called()) == max_attempts + 1


def test_the_last_result_is_emitted_although_the_predicate_wants_another() -> None:
    with Harness(retry=RetryStrategy.fixed_delay(1, 10, retry_on_result=lambda results: True)) as harness:
        harness.process("a")
        harness.answer("a", 1)
        harness.advance(10)

        harness.answer("a", 2)

        assert harness.values() == [2]


def test_each_record_has_its_own_attempts() -> None:
    retry = RetryStrategy.exponential_backoff(2, 10, 100, 2.0, retry_on_exception=ValueError)
    with Harness(output_mode="unordered", retry=retry) as harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))
        harness.advance(10)
        harness.answer_error("a", ValueError("busy"))

        harness.process("b")
        harness.answer_error("b", ValueError("busy"))
        harness.advance(10)

        assert harness.called() == ["a", "a", "b", "b"]
        harness.advance(10)
        assert harness.called() == ["a", "a", "b", "b", "a"]


def test_a_predicate_that_raises_fails_the_task() -> None:
    def predicate(error: BaseException) -> bool:
        raise RuntimeError("bad predicate")

    with Harness(retry=RetryStrategy.fixed_delay(1, 10, retry_on_exception=predicate)) as harness:
        harness.process("a")

        with pytest.raises(Exception, match="bad predicate"):
            harness.answer_error("a", ValueError("busy"))


# --- order ---


def test_an_unordered_record_passes_one_that_is_retried_but_no_watermark() -> None:
    with Harness(output_mode="unordered", retry=ON_ERROR) as harness:
        harness.process("a", "b")
        harness.watermark(1)
        harness.process("c")
        harness.answer_error("a", ValueError("busy"))
        harness.answer("c", "C")
        harness.answer("b", "B")
        assert harness.values() == ["B"]

        harness.advance(10)
        harness.answer("a", "A")

        assert harness.values() == ["B", "A", Watermark(1), "C"]


def test_a_record_that_waits_for_its_retry_keeps_its_place_in_the_queue() -> None:
    def idle() -> None:
        if harness.clock.current_processing_time() < 10:
            harness.clock.advance(10)
        else:
            harness.complete("a", "A")

    harness: Harness = Harness(capacity=1, retry=ON_ERROR, idle=idle)
    with harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))
        assert not harness.operator.is_available()

        harness.process("b")

        assert harness.values() == ["A"]


# --- one timeout over all attempts ---


@MODES
def test_the_timeout_covers_all_attempts(mode: str) -> None:
    retry = RetryStrategy.fixed_delay(100, 30, retry_on_exception=ValueError)
    with Harness(output_mode=mode, retry=retry, timeout_ms=100) as harness:
        harness.process("a")
        for _ in range(3):
            harness.answer_error("a", ValueError("busy"))
            harness.advance(30)

        with pytest.raises(AsyncOperatorError) as failure:
            harness.advance(10)

        assert isinstance(failure.value.__cause__, AsyncTimeoutError)
        assert failure.value.attempts == 4


@MODES
def test_a_timeout_while_an_attempt_runs_gives_the_hooks_results(mode: str) -> None:
    with Harness(fallback(), output_mode=mode, retry=ON_BOTH, timeout_ms=100) as harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))
        harness.advance(10)
        call = harness.call("a")

        harness.advance(90)
        call.complete("late")
        harness.settle()
        harness.run_mail()

        assert harness.values() == ["no a"]
        assert harness.called() == ["a", "a"]


@MODES
def test_a_timeout_while_a_retry_waits_gives_the_hooks_results_and_no_other_attempt(mode: str) -> None:
    retry = RetryStrategy.fixed_delay(2, 500, retry_on_exception=ValueError)
    with Harness(fallback(), output_mode=mode, retry=retry, timeout_ms=100) as harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))

        harness.advance(100)
        assert harness.values() == ["no a"]
        harness.advance(1000)

        assert harness.values() == ["no a"]
        assert harness.called() == ["a"]
        assert harness.clock.pending_timers == 0


def test_a_timeouts_results_are_not_retried_themselves() -> None:
    """Neither are none at all, which the predicate wants retried."""
    with Harness(HandFunction(on_timeout=lambda value: []), retry=ON_EMPTY, timeout_ms=100) as harness:
        harness.process("a")

        harness.advance(100)
        harness.advance(100)

        assert harness.called() == ["a"]
        assert harness.operator.snapshot_state() == []


@MODES
@pytest.mark.parametrize(
    "outcome", [ValueError("busy"), RetryAfter(0.01), [], None], ids=["error", "retry after", "no result", "None"]
)
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("ms", [100, 150])
def test_a_timeout_beats_an_outcome_that_would_be_retried(mode: str, outcome: Any, is_late: bool, ms: int) -> None:
    """The attempt has ended, its mail has not run, and the time is over: the retry could not help any more.

    `is_late`: the outcome comes after the timeout. Returning None is an error only once the operator looks at it.
    """
    retry = RetryStrategy.fixed_delay(2, 10, retry_on_result=operator.not_, retry_on_exception=(ValueError, TypeError))
    with Harness(fallback(), output_mode=mode, retry=retry, timeout_ms=100) as harness:
        harness.process("a")
        call = harness.call("a")
        if is_late:
            harness.clock.advance(ms)
        if isinstance(outcome, BaseException):
            call.fail(outcome)
        else:
            call.give(outcome)
        harness.settle()
        if not is_late:
            harness.clock.advance(ms)
        harness.run_mail()

        assert harness.values() == ["no a"]
        harness.advance(1000)
        assert harness.values() == ["no a"]
        assert harness.called() == ["a"]
        assert (harness.operator.metrics.timed_out, harness.operator.metrics.in_flight) == (1, 0)


def test_a_retry_that_would_start_after_the_timeout_never_starts() -> None:
    retry = RetryStrategy.fixed_delay(2, 100, retry_on_exception=ValueError)
    with Harness(fallback(), retry=retry, timeout_ms=150) as harness:
        harness.process("a")
        harness.advance(100)
        harness.answer_error("a", ValueError("busy"))

        harness.advance(50)
        assert harness.values() == ["no a"]
        harness.advance(500)

        assert harness.called() == ["a"]


# --- the end of input ---


def test_the_end_of_input_fires_waiting_retries_at_once() -> None:
    def idle() -> None:
        harness.complete("a", "A")

    harness: Harness = Harness(retry=RetryStrategy.fixed_delay(2, 500, retry_on_exception=ValueError), idle=idle)
    with harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))

        harness.operator.end_input()

        assert harness.values() == ["A"]
        assert harness.clock.current_processing_time() == 0
        assert harness.called() == ["a", "a"]
        harness.advance(900)
        assert harness.called() == ["a", "a"]


def test_after_the_end_of_input_nothing_is_retried() -> None:
    def idle() -> None:
        harness.fail("a", ValueError("still busy"))

    harness: Harness = Harness(retry=ON_ERROR, idle=idle)
    with harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))

        with pytest.raises(AsyncOperatorError, match="still busy") as failure:
            harness.operator.end_input()

        assert failure.value.attempts == 2


def test_a_result_that_would_be_retried_is_final_after_the_end_of_input() -> None:
    harness: Harness = Harness(retry=ON_EMPTY, idle=lambda: harness.complete("a"))
    with harness:
        harness.process("a")

        harness.operator.end_input()

        assert harness.output == []
        assert harness.called() == ["a"]


def test_an_outcome_whose_mail_runs_after_the_end_of_input_is_final() -> None:
    with Harness(retry=ON_EMPTY) as harness:
        harness.process("a")
        harness.complete("a")

        harness.operator.end_input()

        assert harness.called() == ["a"]
        assert harness.clock.current_processing_time() == 0


def test_the_end_of_input_fires_the_waiting_retries_of_all_records() -> None:
    def idle() -> None:
        harness.settle()
        call = next(call for call in harness.function.calls if call.is_open())
        harness.complete(call.value, call.value.upper())

    harness: Harness = Harness(retry=RetryStrategy.fixed_delay(2, 500, retry_on_exception=ValueError), idle=idle)
    with harness:
        harness.process("a", "b", "c")
        for value in "abc":
            harness.answer_error(value, ValueError("busy"))

        harness.operator.end_input()

        assert harness.values() == ["A", "B", "C"]


# --- snapshots and closing ---


@MODES
def test_a_snapshot_has_the_records_that_wait_for_a_retry(mode: str) -> None:
    with Harness(output_mode=mode, retry=ON_ERROR) as harness:
        harness.process("a", "b")
        harness.answer_error("a", ValueError("busy"))

        state = harness.operator.snapshot_state()

        assert state == [StreamRecord("a"), StreamRecord("b")]


def test_restored_records_start_afresh() -> None:
    with Harness(retry=ON_ERROR) as before:
        before.process("a")
        before.answer_error("a", ValueError("busy"))
        before.advance(10)
        before.answer_error("a", ValueError("busy"))
        state = before.operator.snapshot_state()

    with Harness(retry=ON_ERROR, state=state) as harness:
        for _ in range(2):
            harness.answer_error("a", ValueError("busy"))
            harness.advance(10)
        with pytest.raises(AsyncOperatorError) as failure:
            harness.answer_error("a", ValueError("busy"))

    assert failure.value.attempts == 3


def test_a_retry_that_waits_ends_with_close_on_a_host_that_goes_on() -> None:
    function = HandFunction()
    host = make_host(function)
    host.start()
    with Harness(host, retry=ON_ERROR, timeout_ms=60_000) as harness:
        harness.process("a", "b")
        until(lambda: len(function.calls) == 2, "two calls")
        for call, error in zip(list(function.calls), (ValueError("busy"), RetryAfter(0.02)), strict=True):
            call.fail(error)
        function.settle()
        harness.run_mail()

    harness.clock.advance(1000)
    harness.run_mail()
    function.settle()

    assert [call.value for call in function.calls] == ["a", "b"]
    assert host.stop(TIMEOUT_S)


def test_a_timeout_that_gives_results_counts_no_failure() -> None:
    with Harness(fallback(), retry=ON_ERROR, timeout_ms=100) as harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))
        harness.advance(100)

        metrics = harness.operator.metrics

    assert (metrics.calls, metrics.timed_out, metrics.failed) == (2, 1, 0)
    assert metrics.retried == 1


# --- RetryAfter ---


def test_retry_after_pauses_and_makes_the_call_again() -> None:
    with Harness(timeout_ms=60_000) as harness:
        harness.process("a")
        harness.answer_error("a", RetryAfter(2.0))

        harness.advance(1999)
        assert harness.called() == ["a"]
        harness.advance(1)
        assert harness.called() == ["a", "a"]

        harness.answer("a", "A")
        assert harness.values() == ["A"]


def test_retry_after_pauses_all_calls_of_the_operator() -> None:
    with Harness(output_mode="unordered", timeout_ms=60_000) as harness:
        harness.process("a", "b")
        harness.answer_error("a", RetryAfter(2.0))
        harness.process("c")
        assert harness.called() == ["a", "b"]

        harness.answer("b", "B")
        harness.advance(2000)
        assert sorted(harness.called()) == ["a", "a", "b"]
        harness.advance(50)  # the first calls after a pause are 50 ms apart

        assert sorted(harness.called()) == ["a", "a", "b", "c"]


def test_retry_after_is_no_attempt_of_the_strategy() -> None:
    with Harness(retry=ON_ERROR, timeout_ms=60_000) as harness:
        harness.process("a")
        for _ in range(5):
            harness.answer_error("a", RetryAfter(1.0))
            harness.advance(1000)
        for _ in range(2):
            harness.answer_error("a", ValueError("busy"))
            harness.advance(1000)  # the retry waits 10 ms, and for the rate, which the refusals have cut

        harness.answer("a", "A")

        assert harness.values() == ["A"]
        assert harness.operator.metrics.retried == 7


def test_retry_after_ends_with_the_timeout() -> None:
    with Harness(fallback(), timeout_ms=1500) as harness:
        harness.process("a")
        harness.answer_error("a", RetryAfter(2.0))

        harness.advance(1500)
        assert harness.values() == ["no a"]
        harness.advance(2000)

        assert harness.called() == ["a"]


def test_retry_after_without_end_is_ended_by_the_timeout() -> None:
    with Harness(fallback(), timeout_ms=100) as harness:
        harness.process("a")

        for _ in range(10):
            for call in [call for call in harness.function.calls if call.is_open()]:
                call.fail(RetryAfter(0.01))
            harness.advance(10)

        assert harness.values() == ["no a"]
        assert len(harness.called()) > 1


def test_the_end_of_input_waits_for_a_pause() -> None:
    def idle() -> None:
        if harness.clock.current_processing_time() < 2000:
            harness.clock.advance(2000)
        else:
            harness.complete("a", "A")

    harness: Harness = Harness(timeout_ms=60_000, idle=idle)
    with harness:
        harness.process("a")
        harness.answer_error("a", RetryAfter(2.0))

        harness.operator.end_input()

        assert harness.values() == ["A"]


def test_a_service_that_says_now_again_and_again_is_asked_ever_less() -> None:
    """It got 32 to 35 calls for each row."""
    with Harness(timeout_ms=60_000) as harness:
        harness.process("a")
        for refusal in range(9):
            assert harness.called() == ["a"] * (refusal + 1)
            harness.answer_error("a", RetryAfter(0))
            pause_ms = min(50 * 2**refusal, 5000)
            harness.advance(pause_ms - 1)
            assert harness.called() == ["a"] * (refusal + 1)
            harness.advance(1)
        harness.answer("a", "A")

        assert harness.values() == ["A"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        (" 1.5 ", 1.5),
        (None, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
        ("1e300", 86_400),
        (10**400, 86_400),
        *(
            (text, 0)
            for text in ("", " ", "soon", "-1", "nan", "inf", "-inf", "9" * 400, "Wed, 99 Foo 2015", "\0", ",")
        ),
        *((number, 0) for number in (-1, -0.5, math.nan, math.inf, -math.inf)),
    ],
)
def test_retry_after_takes_what_the_header_has(header: Any, seconds: float) -> None:
    """A negative or an empty header failed the row for good."""
    asked = RetryAfter(header)

    assert asked.delay_s == seconds
    assert pickle.loads(pickle.dumps(asked)).delay_s == asked.delay_s


@pytest.fixture
def five_hours_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("form", ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"])
def test_retry_after_takes_a_date_to_come(form: str, five_hours_behind: None) -> None:
    """In the third format, that of asctime, a date counted as local time."""
    header = time.strftime(form, time.gmtime(time.time() + 100))

    assert 40 < RetryAfter(header).delay_s <= 100


def test_a_predicate_that_changes_its_mind_loses_no_record() -> None:
    """It wanted another attempt, was asked once more since there was no time for that, and then did not want one."""
    answers = iter([True, False, False])
    retry = RetryStrategy.fixed_delay(3, 10, retry_on_exception=lambda _: next(answers))
    with Harness(retry=retry, timeout_ms=100, on_error="capture") as harness:
        harness.process("a")
        harness.fail("a", ValueError("busy"))  # its mail has not run yet

        harness.clock.advance(100)
        harness.run_mail()

        assert [error.input for error in harness.values()] == ["a"]
