"""A task reads, feeds a chain of operators while there is room, and comes to an end in order, whatever ends it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from dispatcher.errors import DispatcherError
from dispatcher.mailbox import ManualClock
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.inputs import InputStatus, IterableInput, QueueInput
from pipeline.streaming.stream_task import StreamTask, TaskCancelledError, TaskState
from pipeline.streaming.task_chain import OperatorContext
from pipeline.streaming.task_operators import async_wait_operator

from .task_fakes import (
    TIMEOUT_S,
    GatedOutput,
    HoldingOperator,
    LoggedOperator,
    Running,
    ScriptedInput,
    mailbox_turn,
    running,
    values,
    wait_for,
)


def logged(log: list[Any], *names: str) -> list[Any]:
    return [lambda ctx, name=name: LoggedOperator(ctx, log, name) for name in names]


# ---------------------------------------------------------------------------------------------------------- life


def test_all_input_goes_through_the_chain_to_the_output() -> None:
    output: list[StreamElement[Any]] = []
    task = StreamTask(IterableInput([1, Watermark(5), StreamRecord(2, 7)]), logged([], "a", "b"), output.append)

    task.run()

    assert output == [StreamRecord(1), Watermark(5), StreamRecord(2, 7)]
    assert task.records_out == 2
    assert task.state is TaskState.FINISHED


def test_a_task_without_operators_copies_its_input() -> None:
    output: list[StreamElement[Any]] = []

    StreamTask(IterableInput(range(3)), [], output.append).run()

    assert values(output) == [0, 1, 2]


def test_operators_open_from_the_last_and_end_and_close_from_the_first() -> None:
    log: list[Any] = []

    StreamTask(IterableInput([]), logged(log, "a", "b"), lambda _: None).run()

    assert log == ["b open", "a open", "a end_input", "b end_input", "a close", "b close"]


def test_what_an_operator_emits_at_its_end_reaches_those_behind_it_before_theirs() -> None:
    log: list[Any] = []
    chain = [HoldingOperator, *logged(log, "b")]

    StreamTask(IterableInput([1]), chain, lambda element: log.append(values([element])[0])).run()

    assert log.index(1) < log.index("b end_input")


def test_timers_that_an_operator_sets_at_its_end_never_fire() -> None:
    clock = ManualClock()
    fired: list[int] = []

    class Timed(LoggedOperator):
        def end_input(self) -> None:
            clock.advance(10)
            self.context.processing_time_service.register_timer(10, fired.append)
            self.context.mailbox_executor.execute(lambda: clock.advance(10))

        def open(self) -> None:
            self.context.processing_time_service.register_timer(5, fired.append)

    StreamTask(IterableInput([]), Timed, lambda _: None, processing_time_service=clock).run()

    assert fired == [5]


def test_mail_that_is_there_at_the_end_runs_before_anything_is_closed() -> None:
    log: list[Any] = []

    class Mailing(LoggedOperator):
        def end_input(self) -> None:
            self.context.mailbox_executor.execute(lambda: self.note("mail"))

    StreamTask(IterableInput([]), lambda ctx: Mailing(ctx, log), lambda _: None).run()

    assert log == ["op open", "op mail", "op close"]


def test_a_task_runs_once() -> None:
    task = StreamTask(IterableInput([]), [], lambda _: None)
    task.run()

    with pytest.raises(DispatcherError, match="is FINISHED; a task runs once"):
        task.run()


def test_a_periodic_checkpoint_needs_a_storage() -> None:
    with pytest.raises(ValueError, match="checkpoint_interval_ms is 5"):
        StreamTask(IterableInput([]), [], lambda _: None, checkpoint_interval_ms=5)


# ---------------------------------------------------------------------------------------------------------- input


def test_an_input_without_anything_suspends_the_task_until_its_future_completes() -> None:
    queue, output = QueueInput[int](), GatedOutput()
    with running(StreamTask(queue, [], output)) as run:
        mailbox_turn(run.task)
        queue.put(1)
        queue.put(2)
        queue.end()
        run.result()

    assert values(output.elements) == [1, 2]
    assert run.task.idle_timer.total_ns > 0


def test_an_input_is_not_read_while_it_has_nothing() -> None:
    calls: list[int] = []
    nothing = ScriptedInput(lambda: calls.append(1) or InputStatus.NOTHING_AVAILABLE, 7)
    nothing.future = Future()
    output: list[StreamElement[Any]] = []
    with running(StreamTask(nothing, [], output.append)) as run:
        for _ in range(5):
            mailbox_turn(run.task)
        assert calls == [1]
        nothing.future.set_result(None)
        run.result()

    assert values(output) == [7]


def test_an_error_of_the_inputs_future_fails_the_task() -> None:
    broken = ScriptedInput(lambda: InputStatus.NOTHING_AVAILABLE)
    broken.future = Future()
    broken.future.set_exception(ConnectionError("reset"))

    with pytest.raises(ConnectionError, match="reset"):
        StreamTask(broken, [], lambda _: None).run()


def test_mail_runs_between_any_two_records() -> None:
    log: list[Any] = []

    class Mailing(LoggedOperator):
        def process_element(self, record: StreamRecord[Any]) -> None:
            log.append(record.value)
            self.context.mailbox_executor.execute(lambda: log.append("mail"))

    StreamTask(IterableInput([1, 2, 3]), Mailing, lambda _: None).run()

    assert log == [1, "mail", 2, "mail", 3, "mail"]


# ---------------------------------------------------------------------------------------------------------- room


def test_a_head_without_room_is_not_fed_and_mail_still_runs() -> None:
    made: list[HoldingOperator] = []

    def make(ctx: OperatorContext) -> HoldingOperator:
        made.append(HoldingOperator(ctx, capacity=2))
        return made[0]

    queue: QueueInput[int] = QueueInput()
    output: list[StreamElement[Any]] = []
    for number in range(5):
        queue.put(number)
    queue.end()
    with running(StreamTask(queue, make, output.append)) as run:
        for released in range(3):
            assert mailbox_turn(run.task, lambda: len(made[0].held)) <= 2
            mailbox_turn(run.task, lambda: made[0].release())
            assert len(values(output)) == released + 1
        mailbox_turn(run.task, lambda: made[0].release(2))
        run.result()

    assert values(output) == [0, 1, 2, 3, 4]


def test_an_operator_without_a_say_has_the_room_of_the_one_behind_it() -> None:
    class Releasing(HoldingOperator):
        def available_future(self) -> Future[None] | None:
            future = super().available_future()
            self.context.mailbox_executor.execute(self.release)
            return future

    output: list[StreamElement[Any]] = []
    chain = [LoggedOperator, lambda ctx: Releasing(ctx, capacity=1)]

    StreamTask(IterableInput(range(5)), chain, output.append).run()

    assert values(output) == [0, 1, 2, 3, 4]


def test_nothing_is_read_while_the_output_has_no_room() -> None:
    output, queue = GatedOutput(), QueueInput[int]()
    output.shut()
    queue.put(1)
    queue.end()
    with running(StreamTask(queue, HoldingOperator, output)) as run:
        wait_for(output.asked, "the question for room")
        mailbox_turn(run.task)
        assert queue._queue
        mailbox_turn(run.task, output.open_again)
        run.result()

    assert values(output.elements) == [1]
    assert output.is_closed


def test_an_operator_is_told_of_the_outputs_room() -> None:
    contexts: list[OperatorContext] = []

    def make(ctx: OperatorContext) -> LoggedOperator:
        contexts.append(ctx)
        return LoggedOperator(ctx)

    output = GatedOutput()
    StreamTask(IterableInput([]), [make, lambda ctx: HoldingOperator(ctx, 1), make], output).run()

    last, first = contexts
    assert (first.position, last.position) == (0, 2)
    assert [ctx.mailbox_executor.priority for ctx in (first, last)] == [0, 2]
    assert last.output_availability is not None
    assert last.output_availability() is None
    output.shut()
    assert last.output_availability() is output.gate
    assert first.output_availability is not None
    assert first.output_availability() is None


def test_without_an_output_that_may_fill_up_operators_are_told_none() -> None:
    contexts: list[OperatorContext] = []

    def make(ctx: OperatorContext) -> LoggedOperator:
        contexts.append(ctx)
        return LoggedOperator(ctx)

    StreamTask(IterableInput([]), make, lambda _: None).run()

    assert contexts[0].output_availability is None


def test_an_operator_that_yields_runs_mail_of_those_behind_it_only() -> None:
    log: list[Any] = []
    contexts: dict[int, OperatorContext] = {}

    class Yielding(LoggedOperator):
        def __init__(self, context: OperatorContext) -> None:
            super().__init__(context)
            contexts[context.position] = context

        def process_element(self, record: StreamRecord[Any]) -> None:
            if self.context.position == 1:
                for position in (0, 1, 2):
                    contexts[position].mailbox_executor.execute(lambda p=position: log.append(p))
                while self.context.mailbox_executor.try_yield():
                    pass
                log.append("yielded")
            self.context.output(record)

    StreamTask(IterableInput([1]), [Yielding, Yielding, Yielding], lambda _: log.append("out")).run()

    assert log == [1, 2, "yielded", "out", 0]


# ---------------------------------------------------------------------------------------------------------- timers


def test_timers_fire_on_the_mailbox_thread_as_mail() -> None:
    clock = ManualClock()
    fired: list[Any] = []

    class Timed(LoggedOperator):
        def open(self) -> None:
            self.context.processing_time_service.register_timer(
                5, lambda due: fired.append((due, threading.current_thread()))
            )

    queue: QueueInput[int] = QueueInput()
    with running(StreamTask(queue, Timed, lambda _: None, processing_time_service=clock)) as run:
        mailbox_turn(run.task)
        clock.advance(5)
        mailbox_turn(run.task)
        queue.end()
        run.result()

    assert fired == [(5, run.thread)]
    assert not clock.is_terminated()


def test_an_error_of_a_timer_fails_the_task() -> None:
    class Timed(LoggedOperator):
        def open(self) -> None:
            now_ms = self.context.processing_time_service.current_processing_time()
            self.context.processing_time_service.register_timer(now_ms, self.fail)

        def fail(self, _: int) -> None:
            raise ValueError("in a timer")

    with pytest.raises(ValueError, match="in a timer"):
        StreamTask(QueueInput[int](), Timed, lambda _: None).run()


# ------------------------------------------------------------------------------------------------ failure and cancel


@pytest.mark.parametrize("where", ["open", "process_element", "end_input", "close"])
def test_what_an_operator_raises_comes_out_of_run_and_everything_is_closed(where: str) -> None:
    log: list[Any] = []

    class Failing(LoggedOperator):
        def __init__(self, context: OperatorContext) -> None:
            super().__init__(context, log, "failing")

            def fail(*_: Any) -> None:
                log.append("failed")
                raise ValueError(where)

            setattr(self, where, fail)

    source, output = ScriptedInput(1), GatedOutput()
    task = StreamTask(source, [*logged(log, "a"), Failing, *logged(log, "c")], output)

    with pytest.raises(ValueError, match=where):
        task.run()

    closes = [entry for entry in log if entry.endswith("close") or entry == "failed"]
    assert closes[-1] == "c close"
    assert "a close" in closes
    assert ("failing close" in closes) is (where != "close")
    assert source.is_closed
    assert output.is_closed
    assert task.state is TaskState.FAILED


def test_a_factory_that_raises_closes_the_operators_that_were_made() -> None:
    log: list[Any] = []

    def fail(_: OperatorContext) -> LoggedOperator:
        raise ValueError("cannot be made")

    source = ScriptedInput()
    with pytest.raises(ValueError, match="cannot be made"):
        StreamTask(source, [fail, *logged(log, "b")], lambda _: None).run()

    assert log == ["b close"]
    assert source.is_closed


def test_the_first_error_is_raised_and_those_of_closing_are_its_notes() -> None:
    class Failing(LoggedOperator):
        def close(self) -> None:
            raise ValueError("close")

    def fail(_: Any) -> None:
        raise KeyError("output")

    with pytest.raises(KeyError, match="output") as failed:
        StreamTask(IterableInput([1]), Failing, fail).run()

    assert failed.value.__notes__ == ["and at the end ValueError('close')"]


def test_an_error_of_another_thread_fails_the_task() -> None:
    with running(StreamTask(QueueInput[int](), [], lambda _: None)) as run:
        run.task.report_error(ConnectionError("lost"))

        with pytest.raises(ConnectionError, match="lost"):
            run.result()


def test_an_error_reported_before_the_start_fails_the_run() -> None:
    task = StreamTask(QueueInput[int](), [], lambda _: None)
    task.report_error(ConnectionError("lost"))

    with pytest.raises(ConnectionError, match="lost"):
        task.run()


def test_an_error_reported_after_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    task = StreamTask(IterableInput([]), [], lambda _: None)
    task.run()

    task.report_error(ConnectionError("too late"))

    assert "too late" in caplog.text


def test_a_cancelled_task_closes_everything_and_does_not_end_its_operators() -> None:
    log: list[Any] = []
    with running(StreamTask(QueueInput[int](), logged(log, "a"), lambda _: None)) as run:
        mailbox_turn(run.task)
        run.task.cancel()

        with pytest.raises(TaskCancelledError):
            run.result()

    assert log == ["a open", "a close"]
    assert run.task.state is TaskState.CANCELED


def test_a_cancel_ends_the_yield_of_an_operator() -> None:
    waiting = threading.Event()

    class Waiting(LoggedOperator):
        def end_input(self) -> None:
            waiting.set()
            while True:
                self.context.mailbox_executor.yield_()

    with running(StreamTask(IterableInput([]), Waiting, lambda _: None)) as run:
        wait_for(waiting, "the wait")
        run.task.cancel()

        with pytest.raises(TaskCancelledError):
            run.result()


def test_a_cancel_that_user_code_swallows_still_ends_the_task() -> None:
    waiting = threading.Event()

    class Swallowing(LoggedOperator):
        def process_element(self, record: StreamRecord[Any]) -> None:
            waiting.set()
            try:
                self.context.mailbox_executor.yield_()
            except Exception:
                self.note("swallowed")

    with running(StreamTask(QueueInput[int](), Swallowing, lambda _: None)) as run:
        run.task._input.put(1)  # type: ignore[attr-defined]
        wait_for(waiting, "the wait")
        run.task.cancel()

        with pytest.raises(TaskCancelledError):
            run.result()


def test_a_task_cancelled_before_its_start_does_nothing_but_close() -> None:
    log: list[Any] = []
    source = ScriptedInput(1)
    task = StreamTask(source, logged(log, "a"), log.append)
    task.cancel()

    with pytest.raises(TaskCancelledError):
        task.run()

    assert log == []
    assert source.position == 0
    assert source.is_closed
    assert task.state is TaskState.CANCELED


def test_cancelling_what_has_ended_changes_nothing() -> None:
    task = StreamTask(IterableInput([]), [], lambda _: None)
    task.run()

    task.cancel()

    assert task.state is TaskState.FINISHED
    assert not task.is_cancelled


def test_a_task_may_be_cancelled_by_what_it_runs() -> None:
    output: list[StreamElement[Any]] = []

    def emit(element: StreamElement[Any]) -> None:
        output.append(element)
        task.cancel()

    task = StreamTask(IterableInput(range(100)), [], emit)

    with pytest.raises(TaskCancelledError):
        task.run()

    assert len(output) == 1


# ------------------------------------------------------------------------------------------- with the real operator


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_asynchronous_calls_end_before_the_task_does(mode: str) -> None:
    async def double(value: int) -> list[int]:
        return [2 * value]

    output: list[StreamElement[Any]] = []
    operator = async_wait_operator(double, timeout_ms=60_000, capacity=7, output_mode=mode)

    StreamTask(IterableInput(range(200)), [operator, operator], output.append).run()

    doubled = [4 * value for value in range(200)]
    assert (values(output) if mode == "ordered" else sorted(values(output))) == doubled


def test_calls_go_on_up_to_the_capacity_and_the_task_waits_in_its_loop() -> None:
    calls: list[int] = []
    full, finish = threading.Event(), threading.Event()

    async def held(value: int) -> list[int]:
        calls.append(value)
        if len(calls) == 3:
            full.set()
        while not finish.is_set():
            await asyncio.sleep(0.001)
        return [value]

    output: list[StreamElement[Any]] = []
    operator = async_wait_operator(held, timeout_ms=60_000, capacity=3)
    run = Running(StreamTask(IterableInput(range(10)), operator, output.append))
    run.thread.start()
    wait_for(full, "the capacity")
    mailbox_turn(run.task)  # mail of the lowest priority: no operator yields
    assert calls == [0, 1, 2]
    finish.set()
    run.result()

    assert values(output) == list(range(10))


def test_a_cancelled_task_gives_up_the_calls_under_way() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def endless(value: int) -> list[int]:
        started.set()
        try:
            await asyncio.sleep(TIMEOUT_S * 100)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return [value]

    operator = async_wait_operator(endless, timeout_ms=10_000_000)
    with running(StreamTask(IterableInput([1]), operator, lambda _: None)) as run:
        wait_for(started, "the call")
        run.task.cancel()
        run.join()

    wait_for(cancelled, "the end of the call")
