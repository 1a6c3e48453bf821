"""A restored task does again what was unfinished, before new input; nothing is lost, and it says what may repeat."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.streaming import CheckpointError, CheckpointStorage, StreamRecord, StreamTask, StreamTaskOutput, Watermark

from ....kit import tries
from ....kit.scenarios import play
from .stage import TaskStage
from .task_fakes import Crash, Element, HoldingOperator, OperatorContext, ScriptedInput, crash

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


SCENARIOS = {
    "restored elements come before new ones": (
        "hold", "run a b checkpoint crash -> raised Crash ; out | run a b - c -> out a b c",
    ),
    "a finished task has nothing to do": (
        "hold", "run 1 2 -> out 1 2 | run 1 2 -> log ; out 1 2 ; closed True ; is_finished True ; state FINISHED",
    ),
    "a cancelled or failed task takes no last checkpoint": (
        "", "run 1 crash -> raised Crash ; files | cancelled 1 -> raised TaskCancelledError ; files",
    ),
    "a task stopped with a savepoint goes on from there": (
        "hold",
        "run 1 2 savepoint 3 -> requests 1 ; files savepoint-00000001 ; state FINISHED ; has_ended False ; out"
        " | run 1 2 savepoint 3 -> out 1 2 3",
    ),
    "a task that was drained with a savepoint does not go on": (
        "hold",
        "run 1 2 drain 3 -> requests 1 ; files savepoint-00000001 ; state FINISHED ; has_ended True ; out 1 2"
        " | run 1 2 drain 3 -> out 1 2",
    ),
    "a savepoint requested at the end is the last checkpoint": (
        "hold", "run 1 last -> requests 1 ; out 1 ; is_finished True",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("chain", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(storage: CheckpointStorage, chain: str, script: str) -> None:
    play(TaskStage(chain, storage), script)


def test_a_checkpoint_of_another_chain_is_refused(storage: CheckpointStorage) -> None:
    source = ScriptedInput(1, lambda: task.trigger_checkpoint() and None, crash)
    task = StreamTask(source, HoldingOperator, lambda _: None, checkpoint_storage=storage)
    with pytest.raises(Crash):
        task.run()

    with pytest.raises(CheckpointError, match="a chain of 1 operators, and the task has 2"):
        StreamTask(ScriptedInput(), [HoldingOperator] * 2, lambda _: None, checkpoint_storage=storage).run()


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
