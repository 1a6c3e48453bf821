"""Rate limits, concurrency, shared and remembered calls, batches, and the counts of all that."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from dispatcher.aio import RateLimit
from pipeline.streaming import AsyncFunction, CapturedError, RetryAfter, StreamRecord
from pipeline.streaming.calls.hosts.choice import make_host
from pipeline.streaming.calls.rate_limit import ResumingRateLimiter

from .harness import MODES, ON_ERROR, TIMEOUT_S, HandBatchFunction, HandFunction, Harness, fallback, until

# --- rate limit ---


def test_calls_start_at_the_rate() -> None:
    with Harness(rate_limit=RateLimit(10, burst=1)) as harness:
        harness.process("a", "b", "c")
        assert harness.called() == ["a"]

        harness.advance(99)
        assert harness.called() == ["a"]
        harness.advance(1)
        assert harness.called() == ["a", "b"]
        harness.advance(100)
        assert harness.called() == ["a", "b", "c"]


def test_calls_in_line_start_in_groups_of_half_a_burst() -> None:
    with Harness(rate_limit=RateLimit(1000, burst=7), capacity=100) as harness:
        harness.process(*range(20))
        harness.advance(1)
        assert harness.called() == list(range(8))

        harness.advance(3)
        assert harness.called() == list(range(8))
        harness.advance(1)
        assert harness.called() == list(range(12))
        harness.advance(4)
        assert harness.called() == list(range(16))


def test_only_call_in_line_starts_when_its_turn_comes() -> None:
    with Harness(rate_limit=RateLimit(1000, burst=7), capacity=100) as harness:
        harness.process(*range(8))

        harness.advance(1)

        assert harness.called() == list(range(8))


def test_a_call_counts_for_its_cost() -> None:
    with Harness(rate_limit=RateLimit(10, burst=1, cost=len)) as harness:
        harness.process("aaa", "b", "c")
        assert harness.called() == ["aaa"]

        harness.advance(200)
        assert harness.called() == ["aaa"]
        harness.advance(100)
        assert harness.called() == ["aaa", "b"]


def test_a_call_that_costs_more_than_the_late_one_before_it_waits_for_its_cost() -> None:
    """The late one's reservation is not enough for it."""
    with Harness(fallback(), rate_limit=RateLimit(10, burst=5, cost=len), timeout_ms=200) as harness:
        harness.process("aaaaa", "b")
        harness.answer("aaaaa", "A")
        harness.process("ccccc")
        assert harness.called() == ["aaaaa"]

        harness.advance(100)
        assert harness.called() == ["aaaaa", "b"]
        harness.answer("b", "B")
        harness.advance(99)
        assert harness.called() == ["aaaaa", "b"]


def test_retries_go_through_the_rate_limit() -> None:
    with Harness(rate_limit=RateLimit(10, burst=1), retry=ON_ERROR) as harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))

        harness.advance(99)
        assert harness.called() == ["a"]
        harness.advance(1)
        assert harness.called() == ["a", "a"]


def test_a_limiter_may_be_shared() -> None:
    limiter = ResumingRateLimiter(RateLimit(10, burst=1))
    with Harness(rate_limit=limiter) as first, Harness(rate_limit=limiter) as second:
        first.process("a")
        second.process("b")
        assert (first.called(), second.called()) == (["a"], [])

        second.advance(100)
        assert second.called() == ["b"]


def test_retry_after_pauses_all_operators_of_a_shared_limiter() -> None:
    limiter = ResumingRateLimiter(RateLimit(1000, burst=10))
    with Harness(rate_limit=limiter, timeout_ms=9000) as first, Harness(rate_limit=limiter, timeout_ms=9000) as second:
        first.process("a")
        first.answer_error("a", RetryAfter(2.0))
        second.process("b")
        assert second.called() == []

        second.advance(2000)
        assert second.called() == ["b"]


def test_a_pause_also_holds_calls_that_wait_for_a_slot() -> None:
    """The call that asked for the pause made room for the next one, which did not wait."""
    with Harness(concurrency=1, timeout_ms=9000) as harness:
        harness.process("a", "b", "c")
        harness.answer_error("a", RetryAfter(2.0))

        harness.advance(1999)
        assert harness.called() == ["a"]
        harness.advance(1)
        assert harness.called() == ["a", "a"]
        harness.answer("a", "A")
        harness.advance(50)  # the first calls after a pause are 50 ms apart
        assert harness.called() == ["a", "a", "b"]


def test_a_pause_holds_for_batches_that_wait_for_room_too() -> None:
    batches: list[list[str]] = []

    class Busy(AsyncFunction[str, str]):
        async def async_invoke_batch(self, values: list[str]) -> list[list[str]]:
            batches.append(values)
            if len(batches) == 1:
                raise RetryAfter(2.0)
            return [[value] for value in values]

    harness: Harness = Harness(Busy(), max_batch_size=1, concurrency=1, timeout_ms=9000)
    with harness:
        harness.process("a", "b", "c")
        harness.run_until(lambda: harness.operator.metrics.retried == 1)
        harness.clock.advance(1999)
        harness.run_mail()
        assert batches == [["a"]]

        harness.clock.advance(1)
        harness.run_until(lambda: len(harness.values()) == 3)

        assert batches == [["a"], ["b"], ["c"], ["a"]]


@pytest.mark.parametrize("is_blocking", [True, False], ids=["pool", "loop"])
def test_a_pause_holds_calls_that_the_host_has_not_begun(is_blocking: bool) -> None:
    """A pool's threads, and a loop that is read ahead for, went on with the calls that had been submitted."""
    called: list[str] = []

    def refuse_first(value: str) -> list[str]:
        called.append(value)
        assert go_on.wait(TIMEOUT_S)
        if len(called) == 1:
            raise RetryAfter(2.0)
        return [value]

    async def refuse_first_on_a_loop(value: str) -> list[str]:
        return refuse_first(value)

    go_on = threading.Event()
    function: Any = refuse_first if is_blocking else refuse_first_on_a_loop
    harness: Harness = Harness(function, pool_size=1, capacity=1, read_ahead=3, timeout_ms=9000)
    with harness:
        harness.process("a", "b", "c", "d")
        go_on.set()
        harness.run_until(lambda: harness.operator.metrics.retried == 1)
        harness.clock.advance(1999)
        harness.run_mail()
        before = list(called)

        harness.clock.advance(1)
        for emitted in range(1, 5):
            harness.run_until(lambda emitted=emitted: len(harness.values()) == emitted)
            harness.clock.advance(50)  # between the first calls after a pause

        assert before == ["a"]
        assert sorted(called) == ["a", "a", "b", "c", "d"]
        assert harness.values() == ["a", "b", "c", "d"]


def test_an_operator_that_closes_submits_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was given up made room for the next."""
    host = make_host(HandFunction())
    host.start()
    submit, submitted = host.submit, []
    monkeypatch.setattr(host, "submit", lambda calls: submitted.extend([call.value for call in calls]) or submit(calls))
    with Harness(host, concurrency=1) as harness:
        harness.process("a", "b", "c")

    host.stop()
    assert submitted == ["a"]


def test_calls_that_wait_for_room_have_had_no_turn_at_the_rate() -> None:
    """While one call took long, the others had their turns one after the other, and then all started at once."""
    with Harness(concurrency=1, rate_limit=RateLimit(10, burst=1), timeout_ms=9000) as harness:
        harness.process("a", "b", "c")
        harness.advance(1000)

        harness.answer("a")
        harness.answer("b")

        assert harness.called() == ["a", "b"]
        harness.advance(100)
        assert harness.called() == ["a", "b", "c"]


def test_after_a_pause_calls_start_at_the_rate_again() -> None:
    """Those whose turn came during the pause do not all start at its end."""
    with Harness(rate_limit=RateLimit(10, burst=1), timeout_ms=60_000) as harness:
        harness.process(*range(6))
        harness.answer_error(0, RetryAfter(2.0))

        harness.advance(1999)
        assert len(harness.called()) == 1
        started = []
        for _ in range(7):
            harness.advance(100)
            started.append(len(harness.called()) - 1)

        assert started == [1, 2, 3, 4, 5, 6, 6]


# --- concurrency ---


def test_no_more_calls_run_than_the_concurrency_allows() -> None:
    with Harness(concurrency=2, output_mode="unordered") as harness:
        harness.process("a", "b", "c", "d")
        assert harness.called() == ["a", "b"]

        harness.answer("b", "B")
        assert harness.called() == ["a", "b", "c"]
        harness.answer("a", "A")
        assert harness.called() == ["a", "b", "c", "d"]


def test_a_late_call_makes_room() -> None:
    with Harness(fallback(), concurrency=1, timeout_ms=100) as harness:
        harness.process("a")
        harness.advance(50)
        harness.process("b")
        assert harness.called() == ["a"]

        harness.advance(50)

        assert harness.called() == ["a", "b"]
        harness.answer("b", "B")
        assert harness.values() == ["no a", "B"]


def test_a_call_that_was_late_before_its_turn_is_never_made() -> None:
    with Harness(fallback(), concurrency=1, deadline_ms=100) as harness:
        harness.process("a", "b")
        harness.advance(100)
        harness.process("c")

        assert harness.called() == ["a", "c"]
        harness.answer("c", "C")
        assert harness.values() == ["no a", "no b", "C"]


def test_the_late_answer_of_a_late_call_makes_no_second_room() -> None:
    with Harness(fallback(), concurrency=1, timeout_ms=100) as harness:
        harness.process("a")
        call = harness.call("a")
        harness.advance(100)
        call.complete("late")
        harness.settle()
        harness.run_mail()

        harness.process("b", "c")

        assert harness.called() == ["a", "b"]


def test_retries_count_towards_the_concurrency() -> None:
    with Harness(concurrency=1, retry=ON_ERROR) as harness:
        harness.process("a", "b")
        harness.answer_error("a", ValueError("busy"))
        assert harness.called() == ["a", "b"]

        harness.advance(10)
        assert harness.called() == ["a", "b"]
        harness.answer("b", "B")

        assert harness.called() == ["a", "b", "a"]
        harness.answer("a", "A")
        assert harness.values() == ["A", "B"]


def test_a_retry_that_is_late_before_its_turn_makes_no_room() -> None:
    with Harness(fallback(), concurrency=1, retry=ON_ERROR, timeout_ms=100) as harness:
        harness.process("a")
        harness.answer_error("a", ValueError("busy"))
        harness.advance(5)
        harness.process("b")
        harness.advance(5)
        harness.process("c")

        harness.advance(90)

        assert harness.values() == ["no a"]
        assert harness.called() == ["a", "b"]
        harness.answer("b", "B")
        assert harness.called() == ["a", "b", "c"]


# --- shared and remembered calls ---


def first_letter(value: str) -> str:
    return value[0]


@MODES
def test_calls_for_the_same_key_are_shared(mode: str) -> None:
    with Harness(output_mode=mode, dedupe_by=first_letter) as harness:
        harness.process("a1", at=1)
        harness.process("a2", at=2)
        harness.process("b1", at=3)
        assert harness.called() == ["a1", "b1"]

        harness.answer("a1", "A")
        harness.answer("b1", "B")

        assert harness.output == [StreamRecord("A", 1), StreamRecord("A", 2), StreamRecord("B", 3)]
        assert harness.operator.metrics.shared == 1


def test_a_shared_error_is_the_error_of_all() -> None:
    with Harness(dedupe_by=first_letter, on_error="capture") as harness:
        harness.process("a1", "a2")

        harness.answer_error("a1", ValueError("no"))

        assert [captured.input for captured in harness.values()] == ["a1", "a2"]
        assert harness.operator.metrics.captured == 2


def test_a_shared_error_that_is_retried_serves_all() -> None:
    with Harness(dedupe_by=first_letter, retry=ON_ERROR) as harness:
        harness.process("a1", "a2")
        harness.answer_error("a1", ValueError("busy"))
        harness.process("a3")
        harness.advance(10)

        harness.answer("a1", "A")

        assert harness.values() == ["A", "A", "A"]
        assert harness.called() == ["a1", "a1"]


def test_when_the_leader_is_late_the_next_one_calls() -> None:
    with Harness(fallback(), dedupe_by=first_letter, timeout_ms=100) as harness:
        harness.process("a1")
        harness.advance(60)
        harness.process("a2")

        harness.advance(40)
        assert harness.values() == ["no a1"]
        assert harness.called() == ["a1", "a2"]

        harness.answer("a2", "A")
        assert harness.values() == ["no a1", "A"]


def test_a_follower_that_is_late_with_its_leader_makes_no_call() -> None:
    with Harness(fallback(), dedupe_by=first_letter, timeout_ms=100, output_mode="unordered") as harness:
        harness.process("a1", "a2")

        harness.advance(100)

        assert harness.values() == ["no a1", "no a2"]
        assert harness.operator.metrics.calls == 1
        harness.process("a3")
        harness.answer("a3", "A")
        assert harness.values() == ["no a1", "no a2", "A"]


def test_the_late_answer_of_a_former_leader_does_not_end_the_call_of_the_new_one() -> None:
    with Harness(fallback(), dedupe_by=first_letter, timeout_ms=100) as harness:
        harness.process("a1")
        former = harness.call("a1")
        harness.advance(60)
        harness.process("a2")
        harness.advance(40)

        former.complete("late")
        harness.settle()
        harness.run_mail()
        assert harness.values() == ["no a1"]

        harness.answer("a2", "A")
        assert harness.values() == ["no a1", "A"]


def test_remembered_answers_are_not_called_again() -> None:
    with Harness(dedupe_by=first_letter, remember=10) as harness:
        harness.process("a1")
        harness.answer("a1", "A")

        harness.process("a2", at=5)
        harness.run_mail()

        assert harness.values() == ["A", "A"]
        assert harness.called() == ["a1"]
        assert harness.operator.metrics.remembered == 1


def test_a_remembered_answer_waits_for_its_turn() -> None:
    with Harness(output_mode="ordered", dedupe_by=first_letter, remember=10) as harness:
        harness.process("a1")
        harness.answer("a1", "A")
        harness.process("b1", "a2")
        harness.run_mail()
        assert harness.values() == ["A"]

        harness.answer("b1", "B")
        assert harness.values() == ["A", "B", "A"]


def test_answers_are_remembered_for_a_time() -> None:
    with Harness(dedupe_by=first_letter, remember=10, remember_ms=1000) as harness:
        harness.process("a1")
        harness.answer("a1", "A")
        harness.advance(1000)

        harness.process("a2")

        assert harness.called() == ["a1", "a2"]


def test_errors_are_not_remembered() -> None:
    with Harness(dedupe_by=first_letter, remember=10, on_error="drop") as harness:
        harness.process("a1")
        harness.answer_error("a1", ValueError("no"))
        harness.process("a2")

        assert harness.called() == ["a1", "a2"]


def test_a_timeouts_results_are_not_remembered() -> None:
    with Harness(fallback(), dedupe_by=first_letter, remember=10, timeout_ms=100) as harness:
        harness.process("a1")
        harness.advance(100)
        harness.process("a2")

        assert harness.called() == ["a1", "a2"]


def test_a_key_that_is_not_hashable_fails_the_task() -> None:
    with Harness(dedupe_by=lambda value: [value]) as harness, pytest.raises(TypeError, match="hashable"):
        harness.process("a")


def test_what_is_shared_is_combined_with_each_record() -> None:
    def combine(value: str, results: Sequence[Any]) -> list[Any]:
        return [(value, result) for result in results]

    with Harness(dedupe_by=first_letter, remember=10, combine=combine) as harness:
        harness.process("a1", "a2")
        harness.answer("a1", "A")
        harness.process("a3")

        assert harness.values() == [("a1", "A"), ("a2", "A"), ("a3", "A")]


# --- batches ---


def batches(harness: Harness) -> list[list[Any]]:
    harness.run_mail()
    harness.settle()
    return [call.value for call in harness.function.calls]


def answer_batch(harness: Harness, number: int, answer: Any) -> None:
    until(lambda: len(harness.function.calls) > number, f"batch {number}")
    call = harness.function.calls[number]
    if isinstance(answer, BaseException):
        call.fail(answer)
    else:
        call.give(answer)
    harness.settle()
    harness.run_mail()


@MODES
def test_a_full_batch_is_sent_at_once(mode: str) -> None:
    with Harness(HandBatchFunction(), output_mode=mode, max_batch_size=2, linger_ms=50) as harness:
        harness.process(1, 2, 3)
        assert batches(harness) == [[1, 2]]

        answer_batch(harness, 0, [["one"], ["two", "zwei"]])

        assert harness.values() == ["one", "two", "zwei"]


def test_a_batch_that_is_not_full_is_sent_after_the_linger() -> None:
    with Harness(HandBatchFunction(), max_batch_size=10, linger_ms=50) as harness:
        harness.process(1)
        harness.advance(30)
        harness.process(2)
        harness.advance(19)
        assert batches(harness) == []

        harness.advance(1)
        assert batches(harness) == [[1, 2]]


def test_without_a_linger_a_batch_has_the_records_taken_in_before_the_next_mail() -> None:
    with Harness(HandBatchFunction(), max_batch_size=10) as harness:
        harness.process(1, 2, 3)

        assert batches(harness) == [[1, 2, 3]]


def test_batches_without_a_linger_follow_each_other() -> None:
    with Harness(HandBatchFunction(), max_batch_size=10) as harness:
        for number in range(3):
            harness.process(number)
            harness.run_mail()

        assert batches(harness) == [[0], [1], [2]]


def test_a_batch_without_waiting_records_is_cancelled_and_frees_its_slot() -> None:
    function = fallback(HandBatchFunction)
    with Harness(function, max_batch_size=2, concurrency=1, timeout_ms=100) as harness:
        harness.process(1, 2)
        assert batches(harness) == [[1, 2]]
        harness.advance(50)
        harness.process(3, 4)
        assert batches(harness) == [[1, 2]]

        harness.advance(50)

        assert harness.values() == ["no 1", "no 2"]
        assert batches(harness) == [[1, 2], [3, 4]]
        assert function.calls[0].is_cancelled()


def test_an_exception_in_place_of_a_list_fails_that_value_only() -> None:
    with Harness(HandBatchFunction(), max_batch_size=3, on_error="capture") as harness:
        harness.process(1, 2, 3)

        answer_batch(harness, 0, [["one"], KeyError("two"), []])

        one, captured = harness.values()
        assert one == "one"
        assert isinstance(captured, CapturedError)
        assert captured.input == 2


@pytest.mark.parametrize("answer", [[["one"]], [["one"], ["two"], ["three"]], "ab", None, {"a": 1}])
def test_a_batch_without_one_entry_for_each_value_fails_all_its_values(answer: Any) -> None:
    with Harness(HandBatchFunction(), max_batch_size=2, on_error="capture") as harness:
        harness.process(1, 2)

        answer_batch(harness, 0, answer)

        assert [captured.input for captured in harness.values()] == [1, 2]
        assert "async_invoke_batch returned" in harness.values()[0].message


def test_a_value_that_failed_in_a_batch_is_retried_in_another() -> None:
    with Harness(HandBatchFunction(), max_batch_size=2, linger_ms=20, retry=ON_ERROR) as harness:
        harness.process(1, 2)
        answer_batch(harness, 0, [["one"], ValueError("busy")])
        assert harness.values() == ["one"]

        harness.advance(10)
        harness.advance(20)
        assert batches(harness) == [[1, 2], [2]]
        answer_batch(harness, 1, [["two"]])

        assert harness.values() == ["one", "two"]


def test_a_value_that_is_late_leaves_a_batch_that_gathers() -> None:
    with Harness(fallback(HandBatchFunction), max_batch_size=10, linger_ms=100, deadline_ms=60) as harness:
        harness.process(1)
        harness.advance(50)
        harness.process(2)
        harness.advance(10)
        assert harness.values() == ["no 1"]

        harness.advance(40)
        assert batches(harness) == [[2]]


def test_values_of_a_batch_that_is_late_are_late_each() -> None:
    function = fallback(HandBatchFunction)
    with Harness(function, max_batch_size=2, linger_ms=50, deadline_ms=100) as harness:
        harness.process(1)
        harness.advance(40)
        harness.process(2)
        harness.settle()

        harness.advance(60)
        assert harness.values() == ["no 1"]
        answer_batch(harness, 0, [["one"], ["two"]])

        assert harness.values() == ["no 1", "two"]
        metrics = harness.operator.metrics
        assert (metrics.completed, metrics.timed_out, metrics.in_flight) == (2, 1, 0)


def test_an_answer_to_a_batch_wins_against_a_timeout_whose_mail_runs_first() -> None:
    function = fallback(HandBatchFunction)
    with Harness(function, max_batch_size=2, timeout_ms=100) as harness:
        harness.process(1, 2)
        assert batches(harness) == [[1, 2]]
        harness.clock.advance(100)

        answer_batch(harness, 0, [["one"], ["two"]])

        assert harness.values() == ["one", "two"]
        assert function.timeouts == []


@pytest.mark.parametrize("ms", [100, 150])
@pytest.mark.parametrize("timeout_first", [False, True])
def test_a_timeout_beats_an_entry_of_a_batch_that_would_be_retried(ms: int, timeout_first: bool) -> None:
    function = fallback(HandBatchFunction)
    with Harness(function, max_batch_size=2, timeout_ms=100, retry=ON_ERROR) as harness:
        harness.process(1, 2)
        assert batches(harness) == [[1, 2]]
        if timeout_first:
            harness.clock.advance(ms)
        function.calls[0].give([["one"], ValueError("busy")])
        harness.settle()
        if not timeout_first:
            harness.clock.advance(ms)
        harness.run_mail()

        assert harness.values() == ["one", "no 2"]
        harness.advance(1000)
        assert batches(harness) == [[1, 2]]
        assert harness.operator.metrics.in_flight == 0


def test_the_end_of_input_sends_a_lingering_batch() -> None:
    def idle() -> None:
        harness.settle()
        harness.function.calls[0].give([["one"]])
        harness.settle()

    harness: Harness = Harness(HandBatchFunction(), max_batch_size=10, linger_ms=500, idle=idle)
    with harness:
        harness.process(1)
        harness.operator.end_input()

        assert harness.values() == ["one"]
        assert harness.clock.current_processing_time() == 0


def test_a_full_queue_does_not_wait_for_a_batch_that_cannot_fill() -> None:
    """The queue has room for fewer than the batch: nothing else can come, so it is sent."""

    def idle() -> None:
        harness.settle()
        call = next(call for call in harness.function.calls if call.is_open())
        call.give([[value] for value in call.value])
        harness.settle()

    harness: Harness = Harness(HandBatchFunction(), capacity=2, max_batch_size=10, linger_ms=500, idle=idle)
    with harness:
        harness.process(1, 2, 3)

        assert harness.values() == [1, 2]
        assert harness.clock.current_processing_time() == 0


def test_concurrency_counts_batches() -> None:
    with Harness(HandBatchFunction(), max_batch_size=2, concurrency=1) as harness:
        harness.process(1, 2, 3, 4)
        assert batches(harness) == [[1, 2]]

        answer_batch(harness, 0, [[1], [2]])

        assert batches(harness) == [[1, 2], [3, 4]]


def test_a_batch_of_shared_calls_has_each_key_once() -> None:
    with Harness(HandBatchFunction(), max_batch_size=10, dedupe_by=first_letter) as harness:
        harness.process("a1", "a2", "b1")
        assert batches(harness) == [["a1", "b1"]]

        answer_batch(harness, 0, [["A"], ["B"]])

        assert harness.values() == ["A", "A", "B"]


def test_batch_options_for_a_function_without_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="async_invoke_batch"):
        Harness(HandFunction(), max_batch_size=10)


# --- counts ---


def test_the_counts_of_a_run_balance() -> None:
    with Harness(fallback(), output_mode="unordered", on_error="drop", retry=ON_ERROR, timeout_ms=100) as harness:
        harness.process("late", "good", "bad", "flaky")
        harness.answer("good", 1, 2)
        harness.answer_error("bad", KeyError("bad"))
        harness.answer_error("flaky", ValueError("busy"))
        harness.advance(10)
        assert harness.operator.metrics.in_flight == 2
        harness.answer("flaky", 3)
        harness.advance(90)

        metrics = harness.operator.metrics
        assert metrics.calls == 5
        assert metrics.retried == 1
        assert (metrics.timed_out, metrics.dropped) == (1, 1)
        assert (metrics.completed, metrics.failed) == (3, 1)
        assert metrics.in_flight == 0


def test_each_call_has_its_time() -> None:
    with Harness() as harness:
        harness.process("a", "b")
        harness.answer("a", 1)
        harness.answer("b", 1)

        metrics = harness.operator.metrics
        assert metrics.call_time.count == 2
        assert metrics.queue_wait.count == 2


@pytest.mark.parametrize(
    ("options", "in_flight"),
    [({}, 3), ({"concurrency": 1}, 1), ({"rate_limit": RateLimit(1, burst=1)}, 1), ({"retry": ON_ERROR}, 2)],
    ids=["plain", "concurrency", "rate limit", "retry"],
)
def test_only_calls_that_were_sent_are_in_flight_and_none_after_close(options: dict[str, Any], in_flight: int) -> None:
    with Harness(dedupe_by=first_letter, **options) as harness:
        harness.process("a1", "a2", "b1", "b2", "c")
        harness.settle()
        if "retry" in options:
            harness.answer_error("a1", ValueError("busy"))
        assert harness.operator.metrics.in_flight == in_flight

    assert harness.operator.metrics.in_flight == 0


@pytest.mark.parametrize("limit", [{"concurrency": 1}, {"rate_limit": RateLimit(1, burst=1)}], ids=str)
def test_calls_that_end_before_they_are_sent_are_not_counted(limit: dict[str, Any]) -> None:
    with Harness(fallback(), deadline_ms=100, **limit) as harness:
        harness.process("a", "b", "c")
        harness.answer("a", "A")
        harness.advance(100)

        metrics = harness.operator.metrics
        assert harness.called() == (["a", "b"] if "concurrency" in limit else ["a"])
        assert metrics.calls == len(harness.called())
        assert (metrics.in_flight, metrics.timed_out) == (0, 2)


def test_a_shared_call_in_flight_is_counted_once() -> None:
    with Harness(fallback(), dedupe_by=first_letter, timeout_ms=100) as harness:
        harness.process("a1", "a2", "a3")
        assert harness.operator.metrics.in_flight == 1

        harness.advance(100)

        metrics = harness.operator.metrics
        assert (metrics.in_flight, metrics.timed_out, metrics.completed, metrics.shared) == (0, 3, 3, 2)


# --- reading ahead ---


def test_what_is_read_ahead_is_not_called_before_a_call_has_ended() -> None:
    with Harness(capacity=2, read_ahead=2) as harness:
        harness.process("a", "b", "c", "d")
        assert harness.called() == ["a", "b"]
        assert not harness.operator.is_available()

        harness.answer("b", "B")

        assert harness.called() == ["a", "b", "c"]
        assert harness.values() == []
        harness.answer("a", "A")
        assert harness.called() == ["a", "b", "c", "d"]
        assert harness.values() == ["A", "B"]


def test_the_timeout_of_a_record_read_ahead_runs_from_the_start_of_its_call() -> None:
    with Harness(fallback(), capacity=1, read_ahead=1, timeout_ms=100) as harness:
        harness.process("a", "b")
        assert harness.called() == ["a"]

        harness.advance(190)  # real milliseconds until the first call was made count, too

        assert harness.values() == ["no a"]
        assert harness.called() == ["a", "b"]
        harness.answer("b", "B")
        assert harness.values() == ["no a", "B"]


def test_what_is_read_ahead_of_a_call_that_hangs_is_late_at_last() -> None:
    """A blocking call that is late keeps its thread; without an end, what waits for that would wait for ever."""
    has_begun, go_on = threading.Event(), threading.Event()

    def hang(value: str) -> list[str]:
        has_begun.set()
        go_on.wait(TIMEOUT_S)
        return [value]

    with Harness(hang, capacity=1, read_ahead=1, pool_size=1, timeout_ms=100, on_error="capture") as harness:
        harness.process("a", "b")
        assert has_begun.wait(TIMEOUT_S)
        harness.advance(99)
        assert harness.values() == []
        for ended in (1, 2):
            # To the timeout comes what the pool's thread took, by the machine's own clock, to begin the first call.
            for _ in range(1000):
                if len(harness.values()) < ended:
                    harness.advance(1)

        assert [error.input for error in harness.values()] == ["a", "b"]
        go_on.set()
