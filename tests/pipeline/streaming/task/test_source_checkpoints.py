"""A source's checkpoints hold its position and what it is ahead; savepoints stop it without interrupting it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.streaming import (
    MAX_WATERMARK,
    CheckpointError,
    CheckpointStorage,
    SourceContext,
    SourceStreamTask,
    StreamRecord,
)

from ....kit import TIMEOUT_S, tries
from .task_fakes import (
    Counter,
    Element,
    GatedOutput,
    HoldingOperator,
    LoggedOperator,
    RunningSource,
    running,
    values,
    wait_for,
)

pytestmark = pytest.mark.long

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
        with pytest.raises(TimeoutError):
            request.result(0.05)
        leave.set()
        assert request.result(TIMEOUT_S) == 1

    taken = storage.latest()
    assert taken is not None
    assert taken.input_state["source"] == 1
    assert [*taken.operator_states[0], *taken.input_state["queued"]] in ([StreamRecord("a")], [["a", None]])


def test_a_checkpoint_may_be_taken_after_the_source_has_ended(storage: CheckpointStorage) -> None:
    output = GatedOutput()
    output.shut()
    with running(SourceStreamTask(Counter(end=3), HoldingOperator, output, checkpoint_storage=storage)) as run:
        wait_for(output.asked, "the question for room")
        run.task._completion.result(TIMEOUT_S)  # type: ignore[attr-defined]
        assert run.task.trigger_checkpoint().result(TIMEOUT_S) == 1
        run.task.cancel()

    again: list[Element] = []
    SourceStreamTask(Counter(end=3), HoldingOperator, again.append, checkpoint_storage=storage).run()

    assert values(again) == [0, 1, 2]


def test_stopping_with_a_savepoint_cancels_the_source_without_interrupting_it(storage: CheckpointStorage) -> None:
    log: list[str] = []
    output: list[Element] = []

    def collect(ctx: SourceContext[Any]) -> None:
        assert ctx.wait(TIMEOUT_S)
        wait_for(source.cancelled, "the cancel")
        ctx.collect("last")  # a stop is no interruption: what it still had is taken
        log.append("source")

    source = RunningSource(collect)

    class Noting(HoldingOperator):
        def snapshot_state(self) -> list[Element]:
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
    output: list[Element] = []
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


def test_a_savepoint_asked_for_when_the_source_has_ended_does_not_cancel_it(storage: CheckpointStorage) -> None:
    stops: list[Future[int]] = []

    class Asking(LoggedOperator):
        def end_input(self) -> None:
            stops.append(task.stop_with_savepoint())

    source = RunningSource()
    task = SourceStreamTask(source, Asking, lambda _: None, checkpoint_storage=storage)

    task.run()

    assert stops[0].result(TIMEOUT_S) == 1
    assert source.cancels == 0


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
    task = SourceStreamTask(RunningSource(), [], lambda _: None, checkpoint_storage=storage)

    with pytest.raises(CheckpointError, match="another kind of input"):
        task._queue.initialize_state(7)


@given(stops=st.lists(st.integers(0, 30), max_size=5), capacity=st.integers(1, 10))
@settings(max_examples=tries(15))
def test_stops_and_restarts_lose_and_repeat_nothing(
    stops: list[int], capacity: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = CheckpointStorage(tmp_path_factory.mktemp("savepoints"))
    output: list[int] = []

    def emit_and_stop_at(target: int) -> Callable[[Element], None]:
        def emit(element: Element) -> None:
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
