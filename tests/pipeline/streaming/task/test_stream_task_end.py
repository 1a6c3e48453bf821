"""However a task ends, everything is closed; a failure comes out of run, a cancel ends it wherever it waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from pipeline.streaming import (
    IterableInput,
    QueueInput,
    StreamRecord,
    StreamTask,
    TaskCancelledError,
    async_wait_operator,
)

from ....kit import TIMEOUT_S
from .task_fakes import (
    Element,
    GatedOutput,
    LoggedOperator,
    OperatorContext,
    Running,
    ScriptedInput,
    doing,
    logged,
    mailbox_turn,
    output_of,
    running,
    values,
    wait_for,
)

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
    assert task.state.name == "FAILED"


def test_a_factory_that_raises_closes_the_operators_that_were_made() -> None:
    log: list[Any] = []

    def fail(_: OperatorContext) -> LoggedOperator:
        raise ValueError("cannot be made")

    source = ScriptedInput()
    with pytest.raises(ValueError, match="cannot be made"):
        StreamTask(source, [fail, *logged(log, "b")], lambda _: None).run()

    assert log == ["b close"]
    assert source.is_closed


def test_the_first_error_is_raised_and_errors_of_closing_become_its_notes() -> None:
    def fail_to_close(_: LoggedOperator) -> None:
        raise ValueError("close")

    def fail(_: Any) -> None:
        raise KeyError("output")

    with pytest.raises(KeyError, match="output") as failed:
        StreamTask(IterableInput([1]), doing(close=fail_to_close), fail).run()

    assert failed.value.__notes__ == ["and at the end ValueError('close')"]


@pytest.mark.parametrize("is_running", [False, True])
def test_an_error_that_another_thread_reports_fails_the_task_before_its_start_too(is_running: bool) -> None:
    task = StreamTask(QueueInput[int](), [], lambda _: None)
    if not is_running:
        task.report_error(ConnectionError("lost"))
    with running(task) as run:
        if is_running:
            task.report_error(ConnectionError("lost"))

        with pytest.raises(ConnectionError, match="lost"):
            run.result()


def test_an_error_reported_after_the_end_is_logged_and_a_cancel_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = StreamTask(IterableInput([]), [], lambda _: None)
    task.run()

    task.report_error(ConnectionError("too late"))
    task.cancel()

    assert (task.state.name, task.is_cancelled) == ("FINISHED", False)
    assert "too late" in caplog.text


def test_a_cancelled_task_closes_everything_and_does_not_end_its_operators() -> None:
    log: list[Any] = []
    with running(StreamTask(QueueInput[int](), logged(log, "a"), lambda _: None)) as run:
        mailbox_turn(run.task)
        run.cancel()

    assert log == ["a open", "a close"]
    assert run.task.state.name == "CANCELED"


@pytest.mark.parametrize("swallows", [False, True])
def test_a_cancel_ends_the_yield_of_an_operator_and_the_task_even_if_user_code_swallows_it(swallows: bool) -> None:
    waiting, queue = threading.Event(), QueueInput[int]()

    def wait(operator: LoggedOperator, record: StreamRecord[Any]) -> None:
        waiting.set()
        with contextlib.suppress(Exception if swallows else ()):
            while True:
                operator.context.mailbox_executor.yield_()

    with running(StreamTask(queue, doing(process_element=wait), lambda _: None)) as run:
        queue.put(1)
        wait_for(waiting, "the wait")
        run.cancel()


def test_an_output_may_cancel_its_task() -> None:
    output: list[Element] = []

    def emit(element: Element) -> None:
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

    operator = async_wait_operator(double, timeout_ms=60_000, capacity=7, output_mode=mode)

    emitted = values(output_of(IterableInput(range(200)), [operator, operator]))

    assert (emitted if mode == "ordered" else sorted(emitted)) == [4 * value for value in range(200)]


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

    output: list[Element] = []
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
