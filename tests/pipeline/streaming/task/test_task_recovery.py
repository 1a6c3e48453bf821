"""A restored task does again what was unfinished, before new input; nothing is lost, and it says what may repeat."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.streaming import (
    CheckpointError,
    CheckpointStorage,
    IterableInput,
    StreamRecord,
    StreamTask,
    StreamTaskOutput,
    TaskCancelledError,
    Watermark,
)

from ....kit import TIMEOUT_S, tries
from .task_fakes import (
    Crash,
    Element,
    HoldingOperator,
    InputStatus,
    LoggedOperator,
    OperatorContext,
    ScriptedInput,
    TaskState,
    crash,
    latest,
    values,
)

pytestmark = pytest.mark.long

# ---------------------------------------------------------------------------------------------------------- restoring


def test_a_restored_task_says_what_may_repeat(storage: CheckpointStorage, caplog: pytest.LogCaptureFixture) -> None:
    def steps() -> ScriptedInput:
        return ScriptedInput("a", "b", lambda: task.trigger_checkpoint() and None, "c", crash)

    task = StreamTask(steps(), HoldingOperator, lambda _: None, checkpoint_storage=storage)
    with pytest.raises(Crash):
        task.run()
    assert task.recovery is None
    again = StreamTask(steps(), HoldingOperator, lambda _: None, checkpoint_storage=storage)

    with caplog.at_level(logging.INFO), pytest.raises(Crash):
        again.run()

    assert again.recovery is not None
    assert again.recovery.checkpoint_id == 1
    assert again.recovery.redone == (StreamRecord("a"), StreamRecord("b"))
    assert again.recovery.outputs_before == 0
    assert "2 elements are processed again, outputs after number 0 may repeat" in caplog.text


def test_restored_elements_come_before_new_ones(storage: CheckpointStorage) -> None:
    source = ScriptedInput("a", "b", lambda: task.trigger_checkpoint() and None, crash)
    task = StreamTask(source, HoldingOperator, lambda _: None, checkpoint_storage=storage)
    with pytest.raises(Crash):
        task.run()

    output: list[Element] = []
    again = ScriptedInput("a", "b", None, "c")
    StreamTask(again, [HoldingOperator], output.append, checkpoint_storage=storage).run()

    assert values(output) == ["a", "b", "c"]


def test_a_finished_task_has_nothing_to_do(storage: CheckpointStorage) -> None:
    StreamTask(IterableInput([1, 2]), HoldingOperator, lambda _: None, checkpoint_storage=storage).run()
    log: list[Any] = []
    source = ScriptedInput(1, 2)
    again = StreamTask(source, lambda ctx: LoggedOperator(ctx, log), log.append, checkpoint_storage=storage)

    again.run()

    assert log == []
    assert source.is_closed
    assert again.recovery is not None
    assert again.recovery.is_finished
    assert again.state is TaskState.FINISHED


def test_a_cancelled_or_failed_task_takes_no_last_checkpoint(storage: CheckpointStorage) -> None:
    with pytest.raises(Crash):
        StreamTask(ScriptedInput(1, crash), [], lambda _: None, checkpoint_storage=storage).run()
    task = StreamTask(ScriptedInput(1), [], lambda _: None, checkpoint_storage=storage)
    task.cancel()
    with pytest.raises(TaskCancelledError):
        task.run()

    assert storage.paths() == []


def test_a_checkpoint_of_another_chain_is_refused(storage: CheckpointStorage) -> None:
    source = ScriptedInput(1, lambda: task.trigger_checkpoint() and None, crash)
    task = StreamTask(source, HoldingOperator, lambda _: None, checkpoint_storage=storage)
    with pytest.raises(Crash):
        task.run()

    with pytest.raises(CheckpointError, match="a chain of 1 operators, and the task has 2"):
        StreamTask(ScriptedInput(), [HoldingOperator] * 2, lambda _: None, checkpoint_storage=storage).run()


# ---------------------------------------------------------------------------------------------------------- savepoints


@pytest.mark.parametrize("drain", [False, True])
def test_a_task_stopped_with_a_savepoint_goes_on_from_there_unless_it_was_drained(
    storage: CheckpointStorage, drain: bool
) -> None:
    output: list[Element] = []
    log: list[Any] = []
    stops: list[Future[int]] = []

    def steps() -> ScriptedInput:
        return ScriptedInput(1, 2, lambda: stops.append(task.stop_with_savepoint(drain=drain)), 3)

    task = StreamTask(steps(), lambda ctx: HoldingOperator(ctx, log=log), output.append, checkpoint_storage=storage)
    task.run()

    assert stops[0].result(TIMEOUT_S) == 1
    assert [path.name for path in storage.paths()] == ["savepoint-00000001"]
    assert task.state is TaskState.FINISHED
    assert ("op end_input" in log) is drain
    assert values(output) == ([1, 2] if drain else [])
    StreamTask(steps(), HoldingOperator, output.append, checkpoint_storage=storage).run()
    assert values(output) == ([1, 2] if drain else [1, 2, 3])


def test_a_savepoint_requested_at_the_end_is_the_last_checkpoint(storage: CheckpointStorage) -> None:
    def ask() -> InputStatus:
        stops.append(task.stop_with_savepoint())
        return InputStatus.END_OF_INPUT

    stops: list[Future[int]] = []
    output: list[Element] = []
    task = StreamTask(ScriptedInput(1, ask), HoldingOperator, output.append, checkpoint_storage=storage)

    task.run()

    assert stops[0].result(TIMEOUT_S) == 1
    assert values(output) == [1]
    assert latest(storage.folder).is_finished


# ------------------------------------------------------------------------------------------- random interleavings

STEPS = st.lists(
    st.one_of(
        st.just("record"),
        st.just("watermark"),
        st.integers(1, 3),  # so many held elements are released
        st.just("checkpoint"),
        st.just("unaligned"),
        st.just("crash"),
    ),
    max_size=40,
)


@given(steps=STEPS, chain_length=st.integers(1, 3), capacity=st.integers(1, 4))
@settings(max_examples=tries(60), deadline=None)
def test_whatever_happens_nothing_is_lost_and_only_what_may_repeat_does(
    steps: list[Any], chain_length: int, capacity: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Crashes anywhere; each crash is followed by a restart with what is left of the steps, until the end."""
    storage = CheckpointStorage(tmp_path_factory.mktemp("checkpoints"))
    inputs = [number for number, step in enumerate(steps) if step == "record"]
    output: list[Any] = []  # of all runs, one after the other
    steps = list(steps)
    crashed = True
    while crashed:
        crashed = _run_steps(storage, steps, chain_length, capacity, output)

    assert sorted(set(output)) == inputs


def _run_steps(storage: CheckpointStorage, steps: list[Any], chain: int, capacity: int, output: list[Any]) -> bool:
    """Run until a crash, which is taken out of the steps; says whether there was one."""
    operators: list[HoldingOperator] = []
    before = list(output)

    def make(ctx: OperatorContext) -> HoldingOperator:
        operators.append(_Roomy(ctx, capacity=capacity))
        return operators[-1]

    def action(number: int, step: Any) -> Any:
        def act() -> None:
            if step == "crash":
                steps[number] = "nothing"
                raise Crash
            if step in ("checkpoint", "unaligned"):
                task.trigger_checkpoint(unaligned=step == "unaligned")
            elif isinstance(step, int):
                for operator in operators:
                    operator.release(step)

        return number if step == "record" else Watermark(number) if step == "watermark" else act

    class Output(StreamTaskOutput):
        def __call__(self, element: Element) -> None:
            if isinstance(element, StreamRecord):
                output.append(element.value)

        def snapshot_state(self) -> Any:
            return len(output)

    source = ScriptedInput(*(action(number, step) for number, step in enumerate(list(steps))))
    task = StreamTask(source, [make] * chain, Output(), checkpoint_storage=storage)
    recovery = task.restore()
    try:
        task.run()
    except Crash:
        crashed = True
    else:
        crashed = False
    safe = before[: recovery.output_state] if recovery is not None else []
    assert not set(safe) & set(output[len(before) :]), "repeated what the recovery had said would not come again"
    return crashed


class _Roomy(HoldingOperator):
    """Makes room by itself when it has none, by mail, as answers do."""

    def available_future(self) -> Future[None] | None:
        future = super().available_future()
        if future is not None:
            self.context.mailbox_executor.execute(self.release)
        return future

    def process_element(self, record: StreamRecord[Any]) -> None:
        while not self.is_available():  # behind another one: what that emits has to go somewhere
            self.release()
        super().process_element(record)

    def process_watermark(self, watermark: Watermark) -> None:
        while not self.is_available():
            self.release()
        super().process_watermark(watermark)
