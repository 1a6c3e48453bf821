"""A source runs on a thread of its own, and its task ends it once, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.streaming.checkpoints import CheckpointError, CheckpointStorage
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.source_stream_task import (
    MAX_WATERMARK,
    SourceContext,
    SourceInterruptedError,
    SourceStreamTask,
)
from pipeline.streaming.stream_task import TaskCancelledError, TaskState
from pipeline.streaming.task_operators import async_wait_operator

from .task_fakes import TIMEOUT_S, GatedOutput, HoldingOperator, LoggedOperator, mailbox_turn, running, values, wait_for


class RunningSource:
    """Calls `body(ctx)` in its run; knows who called what."""

    def __init__(self, body: Callable[[SourceContext[Any]], None] = lambda _: None) -> None:
        self.body = body
        self.cancels = 0
        self.cancelled = threading.Event()
        self.started = threading.Event()
        self.thread: threading.Thread | None = None
        self.is_closed = False

    def run(self, ctx: SourceContext[Any]) -> None:
        self.thread = threading.current_thread()
        self.started.set()
        self.body(ctx)

    def cancel(self) -> None:
        self.cancels += 1
        self.cancelled.set()

    def close(self) -> None:
        self.is_closed = True


class Counter:
    """Emits 0, 1, 2... until `end`, or for ever; its position is the next number."""

    def __init__(self, end: int | None = None) -> None:
        self.position = 0
        self.end = end
        self.is_running = True

    def run(self, ctx: SourceContext[int]) -> None:
        while self.is_running and self.position != self.end:
            with ctx.checkpoint_lock:
                position, self.position = self.position, -1  # only outside of the lock it is right
                ctx.collect(position)
                self.position = position + 1

    def cancel(self) -> None:
        self.is_running = False

    def snapshot_state(self) -> int:
        return self.position

    def initialize_state(self, state: Any) -> None:
        self.position = state


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(tmp_path)


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


def test_a_source_may_feed_an_asynchronous_operator() -> None:
    async def double(value: int) -> list[int]:
        return [2 * value]

    output: list[StreamElement[Any]] = []
    operator = async_wait_operator(double, timeout_ms=60_000, capacity=8)

    SourceStreamTask(Counter(end=300), operator, output.append).run()

    assert values(output) == [2 * value for value in range(300)]
    assert output[-1] == MAX_WATERMARK


def test_what_the_source_raises_comes_out_of_run_as_it_is() -> None:
    def fail(_: SourceContext[Any]) -> None:
        raise ConnectionError("reset")

    source = RunningSource(fail)
    task = SourceStreamTask(source, [], lambda _: None)

    with pytest.raises(ConnectionError, match="reset"):
        task.run()

    assert task.state is TaskState.FAILED
    assert source.is_closed


def test_an_interruption_in_a_task_that_is_not_cancelled_is_an_error_as_any_other() -> None:
    def fail(_: SourceContext[Any]) -> None:
        raise RuntimeError("wrapped") from SourceInterruptedError("of somebody else")

    task = SourceStreamTask(RunningSource(fail), [], lambda _: None)

    with pytest.raises(RuntimeError, match="wrapped"):
        task.run()


# ---------------------------------------------------------------------------------------------------------- cancel


def test_cancel_calls_the_sources_cancel_once_and_interrupts_it() -> None:
    interrupted: list[BaseException] = []

    def wait(ctx: SourceContext[Any]) -> None:
        try:
            ctx.wait(TIMEOUT_S)
        except SourceInterruptedError as error:
            interrupted.append(error)
            raise

    source = RunningSource(wait)
    with running(SourceStreamTask(source, [], lambda _: None)) as run:
        wait_for(source.started, "the source")
        run.task.cancel()
        run.task.cancel()
        with pytest.raises(TaskCancelledError):
            run.result()

    assert source.cancels == 1
    assert len(interrupted) == 1
    assert run.task.state is TaskState.CANCELED


def test_cancel_interrupts_a_source_that_waits_for_room() -> None:
    errors: list[BaseException] = []
    output = GatedOutput()
    output.shut()

    def collect(ctx: SourceContext[Any]) -> None:
        try:
            while True:
                ctx.collect(1)
        except SourceInterruptedError as error:
            errors.append(error)
            raise

    with running(SourceStreamTask(RunningSource(collect), [], output, queue_capacity=1)) as run:
        wait_for(output.asked, "the question for room")
        run.task.cancel()
        with pytest.raises(TaskCancelledError):
            run.result()

    assert len(errors) == 1


def test_a_source_is_interrupted_even_if_its_cancel_raises() -> None:
    class Failing(RunningSource):
        def cancel(self) -> None:
            super().cancel()
            raise ValueError("in cancel")

    source = Failing(lambda ctx: ctx.wait(TIMEOUT_S))
    with running(SourceStreamTask(source, [], lambda _: None)) as run:
        wait_for(source.started, "the source")
        with pytest.raises(ValueError, match="in cancel"):
            run.task.cancel()
        with pytest.raises(TaskCancelledError):
            run.result()

    assert source.cancels == 1


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
        task.cancel()
        with pytest.raises(TaskCancelledError):
            run.result()

    assert "has not returned within 0.01 s" in caplog.text
    go_on.set()
    assert source.thread is not None
    source.thread.join(TIMEOUT_S)


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_waits_for_the_sources_atomic_block(storage: CheckpointStorage) -> None:
    inside, leave = threading.Event(), threading.Event()

    class Slow(RunningSource):
        position = 0

        def snapshot_state(self) -> int:
            return self.position

    def collect(ctx: SourceContext[Any]) -> None:
        with ctx.checkpoint_lock:
            ctx.collect("a")
            inside.set()
            wait_for(leave, "the checkpoint")
            source.position = 1
        source.cancelled.wait(TIMEOUT_S)

    source = Slow(collect)
    with running(SourceStreamTask(source, HoldingOperator, lambda _: None, checkpoint_storage=storage)) as run:
        wait_for(inside, "the block")
        request = run.task.trigger_checkpoint()
        assert not request.done()
        leave.set()
        assert request.result(TIMEOUT_S) == 1

    taken = storage.latest()
    assert taken is not None
    assert taken.input_state["source"] == 1
    assert [*taken.operator_states[0], *taken.input_state["queued"]] in ([StreamRecord("a")], [["a", None]])


def test_a_source_goes_on_from_its_checkpoint(storage: CheckpointStorage) -> None:
    output: list[StreamElement[Any]] = []
    reached = threading.Event()

    def emit(element: StreamElement[Any]) -> None:
        output.append(element)
        if len(output) == 50:
            reached.set()

    source = Counter()
    with running(SourceStreamTask(source, [], emit, checkpoint_storage=storage, queue_capacity=7)) as run:
        wait_for(reached, "some output")
        stopped = run.task.stop_with_savepoint()
        run.result()
        assert stopped.result(TIMEOUT_S) == 1
    first = len(output)
    again = Counter(end=first + 100)
    SourceStreamTask(again, [], emit, checkpoint_storage=storage).run()

    assert values(output) == list(range(first + 100))
    assert output[-1] == MAX_WATERMARK
    assert MAX_WATERMARK not in output[:-1]


def test_stopping_with_a_savepoint_cancels_the_source_without_interrupting_it(storage: CheckpointStorage) -> None:
    log: list[str] = []
    output: list[StreamElement[Any]] = []

    def collect(ctx: SourceContext[Any]) -> None:
        assert ctx.wait(TIMEOUT_S)
        wait_for(source.cancelled, "the cancel")
        ctx.collect("last")  # a stop is no interruption: what it still had is taken
        log.append("source")

    source = RunningSource(collect)

    class Noting(HoldingOperator):
        def snapshot_state(self) -> list[StreamElement[Any]]:
            log.append("snapshot")
            return super().snapshot_state()

    with running(SourceStreamTask(source, Noting, output.append, checkpoint_storage=storage)) as run:
        wait_for(source.started, "the source")
        stopped = run.task.stop_with_savepoint()
        run.result()

    assert stopped.result(TIMEOUT_S) == 1
    assert log == ["source", "snapshot"]
    assert output == []
    assert source.cancels == 1
    taken = storage.latest()
    assert taken is not None
    assert not taken.is_finished
    assert len(taken.operator_states[0]) + len(taken.input_state["queued"]) == 1


def test_a_drained_source_ends_its_operators_and_has_nothing_left(storage: CheckpointStorage) -> None:
    output: list[StreamElement[Any]] = []
    log: list[Any] = []

    def collect(ctx: SourceContext[Any]) -> None:
        ctx.collect(1)
        source.cancelled.wait(TIMEOUT_S)

    source = RunningSource(collect)
    task = SourceStreamTask(
        source, lambda ctx: HoldingOperator(ctx, log=log), output.append, checkpoint_storage=storage
    )
    with running(task) as run:
        wait_for(source.started, "the source")
        stopped = task.stop_with_savepoint(drain=True)
        run.result()

    assert stopped.result(TIMEOUT_S) == 1
    assert output == [StreamRecord(1), MAX_WATERMARK]
    assert "op end_input" in log
    taken = storage.latest()
    assert taken is not None
    assert taken.is_finished


def test_a_source_restored_as_finished_does_not_run(storage: CheckpointStorage) -> None:
    SourceStreamTask(Counter(end=2), [], lambda _: None, checkpoint_storage=storage).run()
    source = RunningSource()

    SourceStreamTask(source, [], lambda _: None, checkpoint_storage=storage).run()

    assert source.thread is None
    assert source.is_closed


def test_a_source_that_fails_while_it_is_stopped_fails_the_task_and_the_savepoint(storage: CheckpointStorage) -> None:
    def fail(_: SourceContext[Any]) -> None:
        source.cancelled.wait(TIMEOUT_S)
        raise ConnectionError("on the way out")

    source = RunningSource(fail)
    with running(SourceStreamTask(source, [], lambda _: None, checkpoint_storage=storage)) as run:
        stopped = run.task.stop_with_savepoint()
        with pytest.raises(ConnectionError, match="on the way out"):
            run.result()

    with pytest.raises(CheckpointError, match="on the way out"):
        stopped.result(TIMEOUT_S)


def test_a_state_of_another_kind_of_input_is_refused(storage: CheckpointStorage) -> None:
    source = RunningSource()
    task = SourceStreamTask(source, [], lambda _: None, checkpoint_storage=storage)

    with pytest.raises(CheckpointError, match="another kind of input"):
        task._queue.initialize_state(7)


@given(stops=st.lists(st.integers(0, 30), max_size=5), capacity=st.integers(1, 10))
@settings(max_examples=40, deadline=None)
def test_stops_and_restarts_lose_and_repeat_nothing(
    stops: list[int], capacity: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = CheckpointStorage(tmp_path_factory.mktemp("savepoints"))
    output: list[int] = []

    def emit_and_stop_at(target: int) -> Callable[[StreamElement[Any]], None]:
        def emit(element: StreamElement[Any]) -> None:
            if isinstance(element, StreamRecord):
                output.append(element.value)
                if len(output) == target:
                    futures.append(task.stop_with_savepoint())

        return emit

    futures: list[Future[int]] = []
    for more in stops:
        task = SourceStreamTask(
            Counter(end=len(output) + more + 50),
            [],
            emit_and_stop_at(len(output) + more + 1),
            queue_capacity=capacity,
            checkpoint_storage=storage,
        )
        task.run()
        assert futures.pop().result(TIMEOUT_S)

    assert output == list(range(len(output)))
