"""The operator without retries: order, capacity, watermarks, timeouts, failures, the end of input, snapshots.

The behaviours follow Flink's AsyncWaitOperatorTest. A harness runs the operator on the test's thread.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from dispatcher.mailbox import MailboxExecutor
from pipeline.streaming import AsyncOperatorError, AsyncTimeoutError, StreamRecord, Watermark
from pipeline.streaming.elements import StreamElement

from .harness import MODES, HandFunction, Harness, Switch, fallback, until


def record(value: Any, at: int | None = None) -> StreamRecord[Any]:
    return StreamRecord(value, at)


# --- order ---


@pytest.mark.parametrize(("mode", "first_two"), [("ordered", "ab"), ("unordered", "ba")])
def test_no_result_passes_a_watermark(mode: str, first_two: str) -> None:
    with Harness(output_mode=mode) as harness:
        harness.process("a", at=1)
        harness.process("b", at=2)
        harness.watermark(2)
        harness.process("c", at=3)

        for value in "cba":
            harness.answer(value, value.upper())

        first, second = (record(value.upper(), "ab".index(value) + 1) for value in first_two)
        assert harness.output == [first, second, Watermark(2), record("C", 3)]


def test_one_mail_emits_all_answers_that_came_before_it() -> None:
    with Harness(output_mode="ordered") as harness:
        harness.process("a", "b", "c")
        for value in "abc":
            harness.complete(value, value.upper())

        assert harness.output == []
        harness.run_mail()

        assert harness.values() == ["A", "B", "C"]


@pytest.mark.parametrize("with_availability", [False, True])
def test_many_completed_elements_are_emitted_with_other_mail_in_between(with_availability: bool) -> None:
    options: dict[str, Any] = {"output_availability": Switch()} if with_availability else {}
    with Harness(capacity=1000, **options) as harness:
        harness.process(*range(1000))
        for value in range(1, 1000):
            harness.call(value).complete(value)
        harness.settle()
        harness.run_mail()
        harness.complete(0, 0)
        harness.executor.execute(lambda: emitted_before.append(len(harness.output)), "other mail")

        emitted_before: list[int] = []
        harness.run_mail()

        assert harness.values() == list(range(1000))
        assert 0 < emitted_before[0] < 1000


def test_an_output_that_runs_mail_does_not_change_the_order() -> None:
    """As an operator downstream does that waits for room in its own queue."""
    emitted: list[Any] = []

    def output(element: StreamElement[Any]) -> None:
        emitted.append(element)
        harness.run_mail()

    harness: Harness = Harness(output=output)
    with harness:
        harness.process("a", "b")
        harness.complete("a", 1, 2)
        harness.executor.execute(lambda: None, "what the output runs")
        harness.executor.execute(lambda: harness.complete("b", 3), "and then an answer")
        harness.run_mail()

    assert emitted == [record(1), record(2), record(3)]


# --- capacity ---


@MODES
def test_a_full_queue_runs_mail_until_there_is_room(mode: str) -> None:
    def idle() -> None:
        waited.append(list(harness.values()))
        harness.complete("a", "A")

    waited: list[list[Any]] = []
    harness: Harness = Harness(output_mode=mode, capacity=2, idle=idle)
    with harness:
        harness.process("a", "b")
        assert waited == []

        harness.process("c")

        assert waited == [[]]
        assert harness.values() == ["A"]
        assert harness.called() == ["a", "b", "c"]


def test_a_timeout_of_zero_is_none() -> None:
    with Harness(timeout_ms=0) as harness:
        harness.process("a")
        harness.advance(1_000_000)
        assert harness.clock.pending_timers == 0

        harness.answer("a", "A")
        assert harness.values() == ["A"]


@MODES
def test_availability_follows_the_room_in_the_queue(mode: str) -> None:
    with Harness(output_mode=mode, capacity=2) as harness:
        assert harness.operator.is_available()
        harness.process("a")
        assert harness.operator.is_available()
        harness.process("b")

        assert not harness.operator.is_available()
        future = harness.operator.available_future()
        assert future is not None
        assert not future.done()
        harness.answer("a", "A")

        assert future.done()
        assert harness.operator.is_available()


def test_an_answer_that_cannot_be_emitted_makes_no_room() -> None:
    with Harness(output_mode="ordered", capacity=2) as harness:
        harness.process("a", "b")
        future = harness.operator.available_future()
        assert future is not None

        harness.answer("b", "B")
        assert not future.done()

        harness.answer("a", "A")
        assert future.done()


def test_the_operator_yields_to_mail_of_its_own_priority_only() -> None:
    """Mail of an operator upstream has to wait: it would send elements here, in the middle of this one."""

    def idle() -> None:
        upstream_at_wait.append(bool(upstream))
        harness.complete("a", "A")

    upstream: list[str] = []
    upstream_at_wait: list[bool] = []
    harness: Harness = Harness(capacity=1, priority=1, idle=idle)
    with harness:
        harness.process("a")
        MailboxExecutor(harness.mailbox, 0).execute(lambda: upstream.append("ran"))
        harness.process("b")

    assert upstream_at_wait == [False]
    assert upstream == []


# --- output that is not available ---


@MODES
def test_nothing_is_emitted_while_the_output_is_unavailable(mode: str) -> None:
    switch = Switch()
    with Harness(output_mode=mode, output_availability=switch) as harness:
        harness.process("a", "b")
        switch.turn_off()

        harness.answer("a", "A")
        harness.answer("b", "B")
        assert harness.output == []

        switch.turn_on()
        harness.run_mail()
        assert harness.values() == ["A", "B"]


def test_an_output_that_becomes_unavailable_stops_the_emission_in_between() -> None:
    switch = Switch()
    emitted: list[Any] = []

    def output(element: StreamElement[Any]) -> None:
        emitted.append(element)
        if len(emitted) == 1:
            switch.turn_off()

    with Harness(output=output, output_availability=switch) as harness:
        harness.process("a", "b", "c")
        harness.complete("a", "A")
        harness.complete("b", "B")
        harness.answer("c", "C")
        assert emitted == [record("A")]

        switch.turn_on()
        harness.run_mail()
        assert emitted == [record("A"), record("B"), record("C")]


def test_an_output_that_fails_while_it_is_waited_for_fails_the_task() -> None:
    """The task heard of it only where it waited itself; the operator took an error for room."""
    room: Future[None] = Future()
    with Harness(output_availability=lambda: room) as harness:
        harness.process("a")
        harness.answer("a", "A")

        room.set_exception(OSError("the output is gone"))

        with pytest.raises(OSError, match="is gone"):
            harness.run_mail()
        assert harness.values() == []


def test_an_output_that_becomes_available_after_close_is_ignored() -> None:
    switch = Switch()
    with Harness(output_availability=switch) as harness:
        harness.process("a")
        switch.turn_off()
        harness.answer("a", "A")
        harness.mailbox.close()

    switch.turn_on()

    assert harness.output == []


# --- timeouts ---


@MODES
def test_a_call_without_an_answer_in_time_fails_the_task(mode: str) -> None:
    with Harness(output_mode=mode, timeout_ms=100) as harness:
        harness.process("a")
        harness.advance(99)

        with pytest.raises(AsyncOperatorError) as failure:
            harness.advance(1)

        assert failure.value.value == "a"
        assert isinstance(failure.value.__cause__, AsyncTimeoutError)
        assert isinstance(failure.value.cause, TimeoutError)
        assert "100 ms" in str(failure.value)


@MODES
def test_the_timeout_hook_may_give_results_instead(mode: str) -> None:
    function = HandFunction(on_timeout=lambda value: [f"no {value}", "sorry"])
    with Harness(function, output_mode=mode, timeout_ms=100) as harness:
        harness.process("a", at=3)

        harness.advance(100)

        assert harness.output == [record("no a", 3), record("sorry", 3)]
        assert function.timeouts == ["a"]


def test_the_timeout_hook_is_called_on_the_mailbox_thread() -> None:
    def on_timeout(value: Any) -> list[Any]:
        threads.append(threading.current_thread())
        return []

    threads: list[threading.Thread] = []
    with Harness(HandFunction(on_timeout), timeout_ms=100) as harness:
        harness.process("a")

        harness.advance(100)

    assert threads == [threading.current_thread()]


def test_a_timeout_hook_that_raises_gives_its_error_as_the_records() -> None:
    def on_timeout(value: Any) -> list[Any]:
        raise KeyError(value)

    with Harness(HandFunction(on_timeout), timeout_ms=100) as harness:
        harness.process("a")

        with pytest.raises(AsyncOperatorError) as failure:
            harness.advance(100)

        assert isinstance(failure.value.__cause__, KeyError)


def test_each_record_has_a_deadline_of_its_own() -> None:
    function = fallback()
    with Harness(function, output_mode="unordered", timeout_ms=100) as harness:
        harness.process("a")
        harness.advance(40)
        harness.process("b")
        harness.advance(40)
        harness.process("c")

        harness.advance(20)
        assert harness.values() == ["no a"]
        harness.advance(39)
        assert harness.values() == ["no a"]
        harness.advance(1)
        assert harness.values() == ["no a", "no b"]
        harness.advance(40)
        assert harness.values() == ["no a", "no b", "no c"]


def test_each_of_many_records_that_are_not_answered_is_late() -> None:
    """Enough of them for what is answered to be swept out from between them."""
    function = fallback()
    with Harness(function, output_mode="unordered", timeout_ms=100, capacity=1000) as harness:
        for value in range(900):
            harness.process(value)
            if value % 100 == 99:
                harness.settle()
                for call in [call for call in function.calls if call.is_open() and call.value % 3]:
                    call.complete(call.value)
                harness.settle()
                harness.run_mail()
        harness.advance(100)

        late = [f"no {value}" for value in range(0, 900, 3)]
        assert harness.values()[600:] == late
        assert sorted(harness.values()[:600]) == [value for value in range(900) if value % 3]


def test_an_answer_before_the_timeout_wins_even_if_its_mail_has_not_run() -> None:
    function = HandFunction(on_timeout=lambda value: ["too late"])
    with Harness(function, timeout_ms=100) as harness:
        harness.process("a")
        harness.complete("a", "A")

        harness.advance(100)

        assert harness.values() == ["A"]
        assert function.timeouts == []


@MODES
def test_an_answer_wins_against_a_timeout_whose_mail_runs_first(mode: str) -> None:
    """Flink decides it when the answer is given, on the thread that gives it."""
    function = HandFunction(on_timeout=lambda value: ["too late"])
    with Harness(function, output_mode=mode, timeout_ms=100) as harness:
        harness.process("a")
        harness.settle()
        harness.clock.advance(100)
        harness.complete("a", "A")

        harness.run_mail()

        assert harness.values() == ["A"]
        assert function.timeouts == []
        assert harness.operator.metrics.timed_out == 0


@MODES
def test_an_answer_after_the_timeout_is_ignored(mode: str) -> None:
    function = HandFunction(on_timeout=lambda value: ["timeout"])
    with Harness(function, output_mode=mode, timeout_ms=100) as harness:
        harness.process("a")
        call = harness.call("a")

        harness.advance(100)
        call.complete("late")
        harness.settle()
        harness.run_mail()

        assert harness.values() == ["timeout"]
        harness.process("b")
        harness.answer("b", "B")
        assert harness.values() == ["timeout", "B"]
        assert (harness.operator.metrics.completed, harness.operator.metrics.in_flight) == (2, 0)


def test_a_call_that_timed_out_is_cancelled() -> None:
    function = HandFunction(on_timeout=lambda value: [])
    with Harness(function, timeout_ms=100) as harness:
        harness.process("a")
        call = harness.call("a")

        harness.advance(100)

        until(call.is_cancelled, "the cancellation")


def test_there_is_one_timer_at_most_and_none_when_nothing_is_under_way() -> None:
    """Flink registers one for each record; here the deadlines come in the order of the records."""
    with Harness(timeout_ms=100, output_mode="unordered") as harness:
        for value in range(5):
            harness.process(value)
            harness.advance(10)
        assert harness.clock.pending_timers == 1

        for value in range(5):
            harness.answer(value, value)
        harness.advance(100)

        assert harness.clock.pending_timers == 0
        harness.advance(1000)
        assert harness.function.timeouts == []


def test_a_timeout_frees_a_blocked_process_element() -> None:
    function = HandFunction(on_timeout=lambda value: ["timeout"])
    harness: Harness = Harness(function, capacity=1, timeout_ms=100, idle=lambda: harness.clock.advance(100))
    with harness:
        harness.process("a")
        harness.settle()

        harness.process("b")

        assert harness.values() == ["timeout"]
        assert harness.called() == ["a", "b"]


# --- failures ---


@MODES
def test_an_error_of_a_call_fails_the_task(mode: str) -> None:
    with Harness(output_mode=mode) as harness:
        harness.process("a")
        error = ValueError("no such row")

        with pytest.raises(AsyncOperatorError, match=r"could not complete the element 'a'.*no such row") as failure:
            harness.answer_error("a", error)

        assert failure.value.__cause__ is error
        assert failure.value.cause is error
        assert failure.value.value == "a"
        assert failure.value.attempts == 1


def test_an_ordered_error_fails_the_task_before_its_turn() -> None:
    with Harness(output_mode="ordered") as harness:
        harness.process("a", "b")

        with pytest.raises(AsyncOperatorError, match="'b'"):
            harness.answer_error("b", ValueError("no"))


def test_an_error_takes_no_other_answer_along() -> None:
    """They come with the same mail."""
    with Harness(output_mode="unordered") as harness:
        harness.process("a", "b", "c")
        harness.complete("a", "A")
        harness.fail("b", ValueError("no"))
        harness.complete("c", "C")

        with pytest.raises(AsyncOperatorError, match="'b'"):
            harness.run_mail()

        harness.run_mail()
        assert harness.values() == ["A", "C"]
        assert harness.operator.snapshot_state() == []


@MODES
def test_an_error_ends_the_wait_for_room(mode: str) -> None:
    harness: Harness = Harness(output_mode=mode, capacity=1, idle=lambda: harness.fail("a", ValueError("no")))
    with harness:
        harness.process("a")

        with pytest.raises(AsyncOperatorError, match="'a'"):
            harness.process("b")


@MODES
def test_an_error_ends_the_wait_for_the_end_of_input(mode: str) -> None:
    harness: Harness = Harness(output_mode=mode, idle=lambda: harness.fail("b", ValueError("no")))
    with harness:
        harness.process("a", "b")

        with pytest.raises(AsyncOperatorError, match="'b'"):
            harness.operator.end_input()


def test_an_error_raised_before_the_first_await_is_an_error_of_the_call() -> None:
    async def refuse(value: int) -> list[int]:
        raise ValueError(f"{value} is too much")

    with Harness(refuse) as harness:
        harness.process(7)

        with pytest.raises(AsyncOperatorError, match="7 is too much"):
            harness.operator.end_input()


def test_none_is_no_result() -> None:
    async def forget(value: int) -> None:
        pass

    with Harness(forget) as harness:
        harness.process(7)

        with pytest.raises(AsyncOperatorError, match="returned None") as failure:
            harness.operator.end_input()

        assert isinstance(failure.value.__cause__, TypeError)


def test_an_error_before_the_timeout_is_the_one_that_counts() -> None:
    with Harness(timeout_ms=100) as harness:
        harness.process("a")
        harness.fail("a", ValueError("first"))

        with pytest.raises(AsyncOperatorError, match="first"):
            harness.advance(100)

        assert harness.function.timeouts == []


def test_an_error_of_the_output_fails_the_task() -> None:
    def output(element: Any) -> None:
        raise OSError("disk full")

    with Harness(output=output) as harness:
        harness.process("a")

        with pytest.raises(OSError, match="disk full"):
            harness.answer("a", "A")


# --- the end of input ---


@MODES
def test_the_end_of_input_waits_for_all_that_is_under_way(mode: str) -> None:
    def idle() -> None:
        value = answers.pop(0)
        harness.complete(value, value.upper())

    answers = ["b", "c", "a"]
    harness: Harness = Harness(output_mode=mode, idle=idle)
    with harness:
        harness.process("a", "b", "c")
        harness.watermark(1)

        harness.operator.end_input()

        assert harness.values() == [*("ABC" if mode == "ordered" else "BCA"), Watermark(1)]
        assert harness.operator.snapshot_state() == []


def test_timeouts_fire_while_the_end_of_input_waits() -> None:
    function = fallback()
    harness: Harness = Harness(function, timeout_ms=100, idle=lambda: harness.clock.advance(100))
    with harness:
        harness.process("a", "b")

        harness.operator.end_input()

        assert harness.values() == ["no a", "no b"]


# --- closing ---


def test_close_gives_up_the_calls_under_way() -> None:
    harness: Harness = Harness()
    with harness:
        harness.process("a", "b")
        calls = [harness.call("a"), harness.call("b")]

    harness.run_mail()

    assert harness.output == []
    assert all(call.is_cancelled() for call in calls)


def test_an_answer_after_close_is_ignored() -> None:
    with Harness() as harness:
        harness.process("a")
        harness.complete("a", "A")

    harness.run_mail()

    assert harness.output == []


@pytest.mark.parametrize("timeout_first", [False, True])
def test_an_error_after_close_is_ignored(timeout_first: bool) -> None:
    """With the timeout first, it has left the record to the answer, whose mail has not run."""
    with Harness(timeout_ms=100) as harness:
        harness.process("a")
        harness.settle()
        if timeout_first:
            harness.clock.advance(100)
        harness.fail("a", ValueError("no"))
        if timeout_first:
            assert harness.executor.try_yield()

    harness.run_mail()

    assert harness.output == []


def test_an_answer_to_a_closed_mailbox_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with Harness() as harness:
        harness.process("a", "b")
        harness.mailbox.close()

        harness.complete("a", "A")
        harness.fail("b", ValueError("nobody hears it"))

    assert harness.output == []
    assert [each for each in caplog.records if each.levelname in ("WARNING", "ERROR", "CRITICAL")] == []


def test_an_answer_to_a_quiesced_mailbox_is_dropped() -> None:
    """After FLINK-16217: the state has it, so it will be replayed."""
    with Harness() as harness:
        harness.process("a")
        harness.mailbox.quiesce()

        harness.complete("a", "A")
        harness.run_mail()

        assert harness.output == []
        assert harness.operator.snapshot_state() == [record("a")]


def test_close_can_be_called_twice() -> None:
    with Harness() as harness:
        harness.process("a")

    harness.operator.close()

    assert harness.function.closed == 1


def test_close_ends_the_timers() -> None:
    with Harness(timeout_ms=100) as harness:
        harness.process("a")

    assert harness.clock.pending_timers == 0
    harness.clock.advance(1000)
    harness.run_mail()

    assert harness.function.timeouts == []


def test_close_without_open_does_nothing() -> None:
    harness: Harness = Harness()

    harness.operator.close()

    assert harness.function.opened == harness.function.closed == 0


# --- snapshots ---


def test_a_snapshot_has_the_inputs_that_are_under_way_in_their_order() -> None:
    with Harness() as harness:
        harness.process("a", at=1)
        harness.process("b", at=2)
        harness.watermark(2)
        harness.process("c", at=3)

        assert harness.operator.snapshot_state() == [record("a", 1), record("b", 2), Watermark(2), record("c", 3)]


@MODES
def test_a_snapshot_has_records_whose_answer_has_not_been_fetched(mode: str) -> None:
    with Harness(output_mode=mode) as harness:
        harness.process("a", "b")
        harness.complete("a", "A")

        state = harness.operator.snapshot_state()

        assert state == [record("a"), record("b")]


def test_a_snapshot_does_not_change_with_the_operator() -> None:
    with Harness() as harness:
        harness.process("a")
        state = harness.operator.snapshot_state()

        harness.process("b")
        harness.answer("a", "A")

        assert state == [record("a")]


@MODES
def test_restored_elements_are_processed_before_new_input(mode: str) -> None:
    state: list[StreamElement[Any]] = [record("a", 1), record("b", 2), Watermark(2), record("c", 3)]
    with Harness(output_mode=mode, state=state) as harness:
        harness.process("d", at=4)
        assert harness.called() == ["a", "b", "c", "d"]

        for value in "abcd":
            harness.answer(value, value.upper())

        assert harness.output == [record("A", 1), record("B", 2), Watermark(2), record("C", 3), record("D", 4)]


@MODES
def test_a_state_bigger_than_the_capacity_is_restored_with_mail_in_between(mode: str) -> None:
    def idle() -> None:
        harness.settle()
        snapshot = harness.operator.snapshot_state()
        assert [each for each in snapshot if each in state] == [each for each in state if each not in harness.output]
        call = next(call for call in harness.function.calls if call.is_open())
        harness.complete(call.value, call.value)

    state = [record(value) for value in range(7)]
    harness: Harness = Harness(output_mode=mode, capacity=2, state=state, idle=idle)
    with harness:
        assert len(harness.output) >= 5
        harness.process(7)
        harness.operator.end_input()

        assert harness.values() == list(range(8))


def test_restored_elements_have_deadlines_of_their_own() -> None:
    function = fallback()
    with Harness(function, timeout_ms=100, state=[record("a")]) as harness:
        harness.advance(100)

        assert harness.values() == ["no a"]


def test_a_state_after_open_is_refused() -> None:
    with Harness() as harness, pytest.raises(Exception, match="initialize_state"):
        harness.operator.initialize_state([record("a")])


# --- with real threads ---


def test_an_operator_that_is_not_open_takes_nothing_in() -> None:
    harness: Harness = Harness()
    with pytest.raises(RuntimeError, match="call open"):
        harness.process("a")
    with harness:
        pass
    for use in (lambda: harness.process("a"), lambda: harness.watermark(1), harness.operator.end_input):
        with pytest.raises(RuntimeError, match="has been closed"):
            use()

    assert harness.operator.snapshot_state() == []
