"""When a record's timeout and deadline begin, what they include, and what the error says about the time."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from dispatcher.aio import RateLimit
from pipeline.streaming import AsyncTimeoutError, RetryAfter, RetryStrategy
from pipeline.streaming.calls.hosts.choice import make_host
from pipeline.streaming.errors import CallTimes

from .harness import MODES, TIMEOUT_S, HandBatchFunction, Harness, fallback, until

ON_ERROR = RetryStrategy.fixed_delay(3, 500, retry_on_exception=ValueError)


def one_clock(monkeypatch: pytest.MonkeyPatch, harness: Harness) -> None:
    """The times of calls are of the harness's clock, too."""

    def now_ns() -> int:
        return 1 + harness.clock.current_processing_time() * 1_000_000

    for module in ("engine", "call_path", "lateness", "hosts.loop_host", "hosts.pool_host"):
        monkeypatch.setattr(f"pipeline.streaming.calls.{module}.perf_counter_ns", now_ns)


# --- the timeout begins with the first call ---


@MODES
def test_of_300_rows_at_20_a_second_none_is_late_within_2_seconds(mode: str) -> None:
    """192 of them were: their timeouts began when they were taken in, and ran while they waited for the rate."""
    with Harness(rate_limit=RateLimit(20), timeout_ms=2000, capacity=300, output_mode=mode) as harness:
        harness.process(*range(300))
        while harness.clock.current_processing_time() < 15_000:
            harness.advance(40)
            for call in [call for call in harness.function.calls if call.is_open()]:
                call.complete(call.value)
            harness.advance(10)

        assert harness.values() == list(range(300))
        assert len(harness.function.calls) == 300
        assert harness.operator.metrics.timed_out == 0


def test_a_call_that_waits_for_a_slot_is_not_late() -> None:
    with Harness(fallback(), concurrency=1, timeout_ms=100) as harness:
        harness.process("a", "b", "c")
        harness.advance(100)
        harness.advance(90)
        harness.answer("b", "B")

        assert harness.values() == ["no a", "B"]
        harness.advance(100)
        assert harness.values() == ["no a", "B", "no c"]


def test_a_call_that_waits_for_a_pause_is_not_late() -> None:
    with Harness(fallback(), timeout_ms=5000) as harness:
        harness.process("a")
        harness.answer_error("a", RetryAfter(4.0))
        harness.process("b")
        harness.advance(4000)
        harness.answer("a", "A")
        harness.advance(50)  # the first calls after a pause are 50 ms apart

        harness.advance(4999)
        assert harness.values() == ["A"]
        harness.advance(1)
        assert harness.values() == ["A", "no b"]


@pytest.mark.parametrize("is_blocking", [True, False], ids=["pool", "loop"])
def test_a_call_that_the_host_returned_unsent_in_a_pause_has_its_whole_timeout(
    monkeypatch: pytest.MonkeyPatch, is_blocking: bool
) -> None:
    begun: list[str] = []

    def refuse_first(value: str) -> list[str]:
        begun.append(value)
        assert go_on[len(begun) - 1].wait(TIMEOUT_S)
        if len(begun) == 1:
            raise RetryAfter(3.0)
        return [value]

    async def refuse_first_on_a_loop(value: str) -> list[str]:
        return refuse_first(value)

    go_on = [threading.Event() for _ in range(3)]
    function: Any = refuse_first if is_blocking else refuse_first_on_a_loop
    harness: Harness = Harness(
        function, pool_size=1, capacity=1, read_ahead=1, timeout_ms=2000, on_error="capture", output_mode="unordered"
    )
    one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b")
        until(lambda: begun)
        harness.clock.advance(1000)
        go_on[0].set()
        harness.run_until(lambda: harness.operator.metrics.retried)

        harness.advance(1000)  # "a" is late in the pause that it asked for
        assert [error.input for error in harness.values()] == ["a"]
        harness.advance(2000)
        until(lambda: len(begun) == 2)
        harness.advance(1900)
        go_on[1].set()
        harness.run_until(lambda: len(harness.values()) == 2)

        assert begun == ["a", "b"]
        assert harness.values()[1] == "b"


def test_a_call_that_waits_for_a_thread_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is held by a call that is late and does not return."""
    begun: list[str] = []

    def wait(value: str) -> list[str]:
        begun.append(value)
        assert go_on[value].wait(TIMEOUT_S)
        return [value]

    go_on = {value: threading.Event() for value in "ab"}
    harness: Harness = Harness(wait, pool_size=1, timeout_ms=100, on_error="capture")
    one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b")
        until(lambda: begun == ["a"])
        harness.advance(100)
        assert [error.input for error in harness.values()] == ["a"]

        harness.advance(150)
        go_on["a"].set()
        until(lambda: begun == ["a", "b"])
        harness.advance(90)
        assert len(harness.values()) == 1
        go_on["b"].set()
        harness.run_until(lambda: len(harness.values()) == 2)

        assert harness.values()[1] == "b"


def test_a_call_for_which_no_thread_comes_free_is_late_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(value: str) -> list[str]:
        has_begun.set()
        assert go_on.wait(TIMEOUT_S)
        return [value]

    has_begun, go_on = threading.Event(), threading.Event()
    harness: Harness = Harness(hang, pool_size=1, timeout_ms=100, on_error="capture")
    one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b")
        assert has_begun.wait(TIMEOUT_S)
        harness.advance(100)
        harness.advance(100)
        harness.advance(99)
        assert len(harness.values()) == 1

        harness.advance(1)

        assert [error.input for error in harness.values()] == ["a", "b"]
        assert "could not begin, because calls before it do not end" in harness.values()[1].message
        go_on.set()


def test_a_call_whose_timeout_was_put_off_is_given_up_when_the_operator_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host that goes on, its thread would be taken for it."""
    host = make_host(lambda value: go_on.wait(TIMEOUT_S) and begun.append(value), pool_size=1)
    begun: list[Any] = []
    go_on = threading.Event()
    host.start()
    submit, submitted = host.submit, []
    monkeypatch.setattr(host, "submit", lambda calls: submitted.extend(calls) or submit(calls))
    with Harness(host, capacity=1, read_ahead=1, timeout_ms=100, on_error="capture") as harness:
        harness.process("a", "b")
        harness.advance(150)

    assert [call.is_cancelled for call in submitted] == [True, True]
    go_on.set()
    assert host.stop(TIMEOUT_S)


def test_a_call_that_waits_for_a_late_one_is_not_late_because_the_operator_was_held_up() -> None:
    """The late one could not be ended meanwhile, so its slot was taken."""
    with Harness(fallback(), capacity=1, read_ahead=1, timeout_ms=100) as harness:
        harness.process("a", "b")
        harness.settle()
        for _ in range(10):
            harness.clock.advance(100)  # no mail runs

        harness.run_mail()

        assert harness.values() == ["no a"]
        harness.answer("b", "B")
        assert harness.values() == ["no a", "B"]


def test_a_value_of_a_batch_that_gathers_is_not_late() -> None:
    function = fallback(HandBatchFunction)
    with Harness(function, max_batch_size=2, linger_ms=500, timeout_ms=100) as harness:
        harness.process(1)
        harness.advance(400)
        harness.process(2)
        harness.settle()

        harness.advance(99)
        assert harness.values() == []
        harness.advance(1)
        assert harness.values() == ["no 1", "no 2"]


def test_a_record_that_shares_a_call_has_a_timeout_from_when_that_is_sent() -> None:
    with Harness(fallback(), concurrency=1, dedupe_by=lambda value: value[0], timeout_ms=100) as harness:
        harness.process("a", "b1", "b2")
        harness.advance(90)
        harness.answer("a", "A")
        harness.advance(60)
        harness.process("b3")

        harness.advance(40)
        assert harness.values() == ["A", "no b1", "no b2"]
        assert harness.called() == ["a", "b1", "b3"]
        harness.answer("b3", "B")
        assert harness.values() == ["A", "no b1", "no b2", "B"]


def test_the_timeout_covers_all_attempts_and_the_waits_between_them() -> None:
    with Harness(fallback(), rate_limit=RateLimit(1, burst=1), retry=ON_ERROR, timeout_ms=1200) as harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))
        harness.advance(1000)
        assert harness.called() == ["a", "a"]
        harness.answer_error("a", ValueError("busy"))

        harness.advance(200)

        assert harness.values() == ["no a"]


def test_calls_made_again_go_before_those_not_sent_yet() -> None:
    """Their timeouts run; behind a long line of others they would be late there."""
    retry = RetryStrategy.fixed_delay(3, 10, retry_on_exception=ValueError)
    with Harness(rate_limit=RateLimit(10, burst=1), retry=retry, capacity=100, timeout_ms=500) as harness:
        harness.process(*range(100))
        harness.answer_error(0, ValueError("busy"))
        harness.advance(10)

        harness.advance(90)

        assert harness.called() == [0, 0]


# --- the deadline ---


def test_the_deadline_runs_while_a_call_waits_for_the_rate() -> None:
    with Harness(fallback(), rate_limit=RateLimit(1, burst=1), deadline_ms=500) as harness:
        harness.process("a", "b")
        harness.answer("a", "A")

        harness.advance(500)
        assert harness.values() == ["A", "no b"]
        harness.advance(5000)

        assert harness.called() == ["a"]


def test_the_deadline_ends_a_call_that_is_under_way() -> None:
    with Harness(fallback(), timeout_ms=1000, deadline_ms=300) as harness:
        harness.process("a")
        call = harness.call("a")

        harness.advance(300)

        assert harness.values() == ["no a"]
        until(call.is_cancelled)


def test_the_timeout_counts_where_it_ends_before_the_deadline() -> None:
    with Harness(timeout_ms=100, deadline_ms=300, on_error="capture") as harness:
        harness.process("a")
        harness.advance(100)

        assert harness.values()[0].error.deadline_ms is None
        harness.advance(300)
        assert len(harness.values()) == 1


@pytest.mark.parametrize("bound", [{"timeout_ms": 0, "deadline_ms": 50}, {"timeout_ms": 500, "deadline_ms": 50}])
def test_a_record_that_waits_for_a_retry_is_ended_by_its_deadline(bound: dict[str, int]) -> None:
    with Harness(fallback(), retry=ON_ERROR if bound["timeout_ms"] else None, **bound) as harness:
        harness.process("a")
        if bound["timeout_ms"]:
            harness.answer_error("a", ValueError("busy"))

        harness.advance(50)

        assert harness.values() == ["no a"]
        assert harness.operator.metrics.in_flight == 0


def test_an_outcome_that_would_be_retried_after_the_deadline_ends_the_record() -> None:
    with Harness(retry=ON_ERROR, deadline_ms=50, on_error="capture") as harness:
        harness.process("a")
        harness.fail("a", ValueError("busy"))  # its mail has not run yet

        harness.clock.advance(50)
        harness.run_mail()

        assert harness.values()[0].error.deadline_ms == 50
        assert harness.called() == ["a"]


def test_answers_that_have_arrived_win_against_the_deadline() -> None:
    with Harness(fallback(), deadline_ms=50) as harness:
        harness.process("a")
        harness.complete("a", "A")

        harness.clock.advance(50)
        harness.run_mail()

        assert harness.values() == ["A"]


def test_many_records_past_their_deadlines_leave_the_line() -> None:
    with Harness(fallback(), concurrency=1, capacity=1000, deadline_ms=100) as harness:
        harness.process(*range(1000))

        harness.advance(100)
        harness.process("last")

        assert len(harness.values()) == 1000
        assert harness.called() == [0, "last"]


# --- where the time went ---


def test_the_error_says_where_the_time_went(monkeypatch: pytest.MonkeyPatch) -> None:
    harness: Harness = Harness(concurrency=1, retry=ON_ERROR, timeout_ms=2000, on_error="capture")
    one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b")
        harness.advance(1000)
        harness.answer("a", "A")
        harness.settle()
        harness.advance(300)
        harness.answer_error("b", ValueError("busy"))
        harness.advance(500)

        harness.advance(1200)

        error = harness.values()[1].error
        assert error.times == CallTimes(waiting_ms=1000, under_way_ms=1500, between_ms=500)
        assert str(error).startswith(
            "no answer within 2000 ms (attempt 2; 1000 ms waiting for the limit, 1500 ms in flight, "
            "500 ms between attempts). Raise the timeout"
        )


def test_the_error_of_a_record_that_waits_for_its_retry_or_its_turn_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    harness: Harness = Harness(
        rate_limit=RateLimit(1, burst=1), retry=ON_ERROR, deadline_ms=1100, timeout_ms=9000, on_error="capture"
    )
    one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b")
        harness.advance(100)
        harness.answer_error("a", ValueError("busy"))
        harness.advance(500)
        harness.advance(400)
        assert harness.called() == ["a", "a"]
        harness.answer_error("a", ValueError("busy"))

        harness.advance(100)

        first, second = (captured.error for captured in harness.values())
        assert first.times == CallTimes(waiting_ms=400, under_way_ms=100, between_ms=600)
        assert second.times == CallTimes(waiting_ms=1100)
        assert str(second).startswith(
            "no answer by the deadline, 1100 ms after the record was taken in (attempt 1; 1100 ms waiting for the limit"
        )
        assert "Raise the deadline" in str(second)


def test_the_error_of_a_record_that_shares_a_call_counts_that_call(monkeypatch: pytest.MonkeyPatch) -> None:
    harness: Harness = Harness(concurrency=1, dedupe_by=str.upper, timeout_ms=100, on_error="capture")
    one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b", "B")
        harness.advance(70)
        harness.answer("a", 1)

        harness.advance(100)

        assert [captured.error.times for captured in harness.values()[1:]] == [CallTimes(70, 100)] * 2


def test_a_timeout_error_pickles() -> None:
    error = AsyncTimeoutError(100, 2, CallTimes(1, 2, 3), 500)

    copy = pickle.loads(pickle.dumps(error))

    assert str(copy) == str(error)
    assert (copy.timeout_ms, copy.attempts, copy.times, copy.deadline_ms) == (100, 2, CallTimes(1, 2, 3), 500)
    assert CallTimes(1, 2, 3).total_ms == 6


# --- the time that calls wait for the limits ---


def test_each_call_of_a_limited_operator_has_the_time_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    harness: Harness = Harness(rate_limit=RateLimit(10, burst=1), retry=ON_ERROR, timeout_ms=9000)
    one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b", "c")
        harness.answer_error("a", ValueError("busy"))
        harness.advance(100)
        harness.answer("b", "B")
        harness.advance(100)
        harness.answer("c", "C")
        harness.advance(300)
        harness.answer("a", "A")

        metrics = harness.operator.metrics
        assert metrics.limit_wait.count == metrics.calls == 4
        assert metrics.limit_wait.sum_s == pytest.approx(0.3)


def test_an_operator_without_limits_counts_no_wait_for_them() -> None:
    with Harness() as harness:
        harness.process("a")
        harness.answer("a", "A")

        assert harness.operator.metrics.limit_wait.count == 0
