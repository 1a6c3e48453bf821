"""A source runs on a thread of its own, and its task ends it once, whatever happens."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from pipeline.streaming import (
    MAX_WATERMARK,
    SourceContext,
    SourceInterruptedError,
    SourceStreamTask,
    StreamRecord,
    TaskCancelledError,
    Watermark,
)

from ....kit import TIMEOUT_S
from .task_fakes import (
    Counter,
    GatedOutput,
    LoggedOperator,
    RunningSource,
    mailbox_turn,
    running,
    values,
    wait_for,
)

# ---------------------------------------------------------------------------------------------------------- the run


def test_a_source_runs_on_its_own_thread_and_operators_on_the_mailbox_thread() -> None:
    threads: set[threading.Thread] = set()

    class Noting(LoggedOperator):
        def process_element(self, record: StreamRecord[Any]) -> None:
            threads.add(threading.current_thread())
            super().process_element(record)

    def collect(ctx: SourceContext[Any]) -> None:
        ctx.collect("a", 1)
        ctx.emit_watermark(Watermark(1))
        ctx.collect("b")

    source, output = RunningSource(collect), GatedOutput()
    with running(SourceStreamTask(source, Noting, output)) as run:
        run.result()

        assert threads == {run.thread}
    assert source.thread not in (None, run.thread)
    assert output.elements == [StreamRecord("a", 1), Watermark(1), StreamRecord("b"), MAX_WATERMARK]
    assert source.is_closed
    assert source.cancels == 0


def test_the_source_starts_when_the_operators_are_open_and_ends_before_they_do() -> None:
    log: list[Any] = []
    source = RunningSource(lambda _: log.append("source"))

    SourceStreamTask(source, lambda ctx: LoggedOperator(ctx, log), lambda _: None).run()

    assert log == ["op open", "source", "op end_input", "op close"]


def test_a_source_that_is_faster_than_its_operators_waits() -> None:
    output = GatedOutput()
    output.shut()
    source = Counter(end=100)
    with running(SourceStreamTask(source, [], output, queue_capacity=5)) as run:
        wait_for(output.asked, "the question for room")
        mailbox_turn(run.task, lambda: None)
        assert source.position <= 5
        mailbox_turn(run.task, output.open_again)
        run.result()

    assert values(output.elements) == list(range(100))


@pytest.mark.parametrize("cause", [None, SourceInterruptedError("of somebody else")])
def test_run_raises_the_sources_error_unchanged(cause: Exception | None) -> None:
    """An interruption in a task that is not cancelled is an error as any other."""

    def fail(_: SourceContext[Any]) -> None:
        raise ConnectionError("reset") from cause

    source = RunningSource(fail)
    task = SourceStreamTask(source, [], lambda _: None)

    with pytest.raises(ConnectionError, match="reset"):
        task.run()

    assert task.state.name == "FAILED"
    assert source.is_closed


# ---------------------------------------------------------------------------------------------------------- cancel


@pytest.mark.parametrize("raises", [False, True])
def test_cancel_calls_the_sources_cancel_once_and_interrupts_it_even_if_that_raises(raises: bool) -> None:
    interrupted: list[BaseException] = []

    def wait(ctx: SourceContext[Any]) -> None:
        try:
            ctx.wait(TIMEOUT_S)
        except SourceInterruptedError as error:
            interrupted.append(error)
            raise

    class Failing(RunningSource):
        def cancel(self) -> None:
            super().cancel()
            if raises:
                raise ValueError("in cancel")

    source = Failing(wait)
    with running(SourceStreamTask(source, [], lambda _: None)) as run:
        wait_for(source.started, "the source")
        with pytest.raises(ValueError, match="in cancel") if raises else contextlib.nullcontext():
            run.task.cancel()
            run.cancel()

    assert source.cancels == 1
    assert len(interrupted) == 1
    assert raises or run.task.state.name == "CANCELED"


def test_cancel_interrupts_a_source_that_waits_for_room() -> None:
    interrupted = threading.Event()
    output = GatedOutput()
    output.shut()

    def collect(ctx: SourceContext[Any]) -> None:
        try:
            while True:
                ctx.collect(1)
        except SourceInterruptedError:
            interrupted.set()
            raise

    with running(SourceStreamTask(RunningSource(collect), [], output, queue_capacity=1)) as run:
        wait_for(output.asked, "the question for room")
        run.cancel()

    wait_for(interrupted, "the interruption")


def test_a_task_cancelled_before_its_start_never_runs_the_source() -> None:
    source = RunningSource()
    task = SourceStreamTask(source, [], lambda _: None)
    task.cancel()

    with pytest.raises(TaskCancelledError):
        task.run()

    assert source.thread is None
    assert source.cancels == 1
    assert source.is_closed


def test_the_source_of_a_failed_task_is_ended_too() -> None:
    def fail(_: Any) -> None:
        raise ValueError("output")

    def collect(ctx: SourceContext[Any]) -> None:
        ctx.collect(1)
        ctx.wait(TIMEOUT_S)

    source = RunningSource(collect)
    with pytest.raises(ValueError, match="output"):
        SourceStreamTask(source, [], fail).run()

    assert source.cancels == 1
    assert source.thread is not None
    assert not source.thread.is_alive()


def test_a_source_that_does_not_return_is_left_behind_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()
    source = RunningSource(lambda _: wait_for(go_on, "the end of the test"))
    task = SourceStreamTask(source, [], lambda _: None, stop_timeout=0.01)
    with running(task) as run:
        wait_for(source.started, "the source")
        run.cancel()

    assert "did not return within 0.01 s" in caplog.text
    go_on.set()
    assert source.thread is not None
    source.thread.join(TIMEOUT_S)
