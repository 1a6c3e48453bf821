"""A task's checkpoints are taken between two mails, hold all that is unfinished, and are restored before new input."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.mailbox import ManualClock
from pipeline.streaming.checkpoints import Checkpoint, CheckpointError, CheckpointStorage
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.inputs import InputStatus, IterableInput, QueueInput
from pipeline.streaming.stream_task import StreamTask, TaskCancelledError, TaskState
from pipeline.streaming.task_chain import OperatorContext, StreamTaskOutput

from .task_fakes import (
    TIMEOUT_S,
    HoldingOperator,
    LoggedOperator,
    ScriptedInput,
    mailbox_turn,
    running,
    values,
    wait_for,
)


class Crash(Exception):
    """Ends a task as a kill does: without another checkpoint."""


def crash() -> None:
    raise Crash


def latest(folder: Path) -> Checkpoint:
    checkpoint = CheckpointStorage(folder).latest()
    assert checkpoint is not None
    return checkpoint


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(tmp_path)


# ---------------------------------------------------------------------------------------------------------- taking


def test_a_checkpoint_holds_position_unfinished_elements_and_outputs(storage: CheckpointStorage) -> None:
    operators: list[HoldingOperator] = []

    def make(ctx: OperatorContext) -> HoldingOperator:
        operators.append(HoldingOperator(ctx))
        return operators[-1]

    requests: list[Future[int]] = []
    source = ScriptedInput(
        "a",
        StreamRecord("b", 5),
        Watermark(5),
        lambda: operators[0].release(),
        lambda: requests.append(task.trigger_checkpoint()),
        crash,
    )
    task = StreamTask(source, make, lambda _: None, checkpoint_storage=storage)

    with pytest.raises(Crash):
        task.run()

    assert requests[0].result(TIMEOUT_S) == 1
    taken = latest(storage.folder)
    assert taken.input_state == 5
    assert taken.operator_states == [[StreamRecord("b", 5), Watermark(5)]]
    assert taken.outputs == 1
    assert taken.task == "stream task"
    assert not taken.is_finished


def test_a_checkpoint_asked_for_before_the_start_is_taken_by_the_run(storage: CheckpointStorage) -> None:
    task = StreamTask(IterableInput([1]), [], lambda _: None, checkpoint_storage=storage)
    request = task.trigger_checkpoint()

    task.run()

    assert request.result(TIMEOUT_S) == 1


@pytest.mark.parametrize(("unaligned", "expected"), [(False, ["mail", "snapshot"]), (True, ["snapshot", "mail"])])
def test_an_unaligned_checkpoint_goes_before_other_mail(
    storage: CheckpointStorage, unaligned: bool, expected: list[str]
) -> None:
    log: list[str] = []

    class Mailing(LoggedOperator):
        def process_element(self, record: StreamRecord[Any]) -> None:
            self.context.mailbox_executor.execute(lambda: log.append("mail"))
            task.trigger_checkpoint(unaligned=unaligned)

        def snapshot_state(self) -> list[StreamElement[Any]]:
            log.append("snapshot")
            return []

    task = StreamTask(ScriptedInput(1, crash), Mailing, lambda _: None, checkpoint_storage=storage)

    with pytest.raises(Crash):
        task.run()

    assert log == expected


def test_no_checkpoint_is_taken_while_an_operator_yields(storage: CheckpointStorage) -> None:
    log: list[str] = []

    class Yielding(LoggedOperator):
        def process_element(self, record: StreamRecord[Any]) -> None:
            task.trigger_checkpoint()
            task.trigger_checkpoint(unaligned=True)
            self.context.mailbox_executor.execute(lambda: log.append("mail"))
            self.context.mailbox_executor.yield_()
            log.append("processed")

        def snapshot_state(self) -> list[StreamElement[Any]]:
            log.append("snapshot")
            return []

    task = StreamTask(ScriptedInput(1, lambda: None, crash), Yielding, lambda _: None, checkpoint_storage=storage)

    with pytest.raises(Crash):
        task.run()

    assert log == ["mail", "processed", "snapshot", "snapshot"]


def test_a_checkpoint_is_taken_while_the_head_has_no_room(storage: CheckpointStorage) -> None:
    task = StreamTask(
        IterableInput(range(9)), lambda ctx: HoldingOperator(ctx, 2), lambda _: None, checkpoint_storage=storage
    )
    with running(task):
        request = task.trigger_checkpoint()

        assert request.result(TIMEOUT_S) == 1

    assert latest(storage.folder).operator_states in ([[]], [[StreamRecord(0), StreamRecord(1)]])


def test_operators_are_notified_of_a_stored_checkpoint_even_in_a_yield(storage: CheckpointStorage) -> None:
    stored: list[list[Path]] = []

    class Waiting(LoggedOperator):
        def process_element(self, record: StreamRecord[Any]) -> None:
            if record.value == 2:
                while not stored:
                    self.context.mailbox_executor.yield_()

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            super().notify_checkpoint_complete(checkpoint_id)
            stored.append(storage.paths())

    log: list[Any] = []
    source = ScriptedInput(1, lambda: task.trigger_checkpoint() and None, 2)
    task = StreamTask(source, lambda ctx: Waiting(ctx, log), lambda _: None, checkpoint_storage=storage)

    task.run()

    assert [len(paths) for paths in stored] == [1, 2]
    assert log == ["op open", "op complete 1", "op end_input", "op complete 2", "op close"]


def test_others_may_notify_of_a_checkpoint() -> None:
    log: list[Any] = []
    task = StreamTask(QueueInput[int](), lambda ctx: LoggedOperator(ctx, log), lambda _: None)
    with running(task):
        task.notify_checkpoint_complete(7)
        mailbox_turn(task)

    task.notify_checkpoint_complete(8)
    assert log == ["op open", "op complete 7", "op close"]


def test_the_outputs_state_is_part_of_the_checkpoint_and_comes_back(storage: CheckpointStorage) -> None:
    class Counting(StreamTaskOutput):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def __call__(self, element: StreamElement[Any]) -> None:
            self.seen.append(element)

        def snapshot_state(self) -> Any:
            return len(self.seen)

        def initialize_state(self, state: Any) -> None:
            self.seen.append(f"restored {state}")

    source = ScriptedInput(1, 2, lambda: task.trigger_checkpoint() and None, 3, crash)
    task = StreamTask(source, [], Counting(), checkpoint_storage=storage)
    with pytest.raises(Crash):
        task.run()
    output = Counting()
    again = StreamTask(ScriptedInput(1, 2, None, 3), [], output, checkpoint_storage=storage)
    recovery = again.restore()
    again.run()

    assert recovery is not None
    assert recovery.output_state == 2
    assert output.seen == ["restored 2", StreamRecord(3)]


# --------------------------------------------------------------------------------------------------------- periodic


def test_checkpoints_are_taken_by_processing_time(storage: CheckpointStorage) -> None:
    clock = ManualClock()
    task = StreamTask(
        QueueInput[int](),
        [],
        lambda _: None,
        checkpoint_storage=storage,
        checkpoint_interval_ms=100,
        processing_time_service=clock,
    )
    with running(task):
        mailbox_turn(task)
        for expected in ([], [1], [1, 2], [1, 2]):
            mailbox_turn(task)
            _settle(task)
            assert [storage.load(path).checkpoint_id for path in storage.paths()] == expected
            clock.advance(100 if len(expected) < 2 else 99)

    assert [storage.load(path).taken_at_ms for path in storage.paths()] == [100, 200]


def _settle(task: StreamTask) -> None:
    """Wait until what is being written has been written and told."""
    checkpoints = task._checkpoints
    assert checkpoints is not None
    checkpoints._writer.submit(lambda: None).result(TIMEOUT_S)
    mailbox_turn(task)


def test_a_periodic_checkpoint_is_left_out_while_one_is_being_written(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, writing, go_on = ManualClock(), threading.Event(), threading.Event()
    write = CheckpointStorage.write

    def slow_write(*args: Any, **options: Any) -> Path:
        writing.set()
        wait_for(go_on, "the end of the write")
        return write(*args, **options)

    monkeypatch.setattr(CheckpointStorage, "write", slow_write)
    task = StreamTask(
        QueueInput[int](),
        [],
        lambda _: None,
        checkpoint_storage=storage,
        checkpoint_interval_ms=100,
        processing_time_service=clock,
    )
    with running(task):
        mailbox_turn(task)
        for _ in range(3):
            clock.advance(100)
            mailbox_turn(task)
        wait_for(writing, "the write")
        go_on.set()
        _settle(task)
        clock.advance(100)
        mailbox_turn(task)
        _settle(task)

    assert [storage.load(path).taken_at_ms for path in storage.paths()] == [100, 400]


# ---------------------------------------------------------------------------------------------------------- failures


def test_without_a_storage_a_checkpoint_is_refused_and_the_task_goes_on() -> None:
    output: list[StreamElement[Any]] = []
    task = StreamTask(IterableInput([1]), [], output.append)
    request, stop = task.trigger_checkpoint(), task.stop_with_savepoint()

    task.run()

    assert values(output) == [1]
    for refused in (request, stop):
        with pytest.raises(CheckpointError, match="no checkpoint_storage"):
            refused.result(TIMEOUT_S)


def test_a_checkpoint_that_fails_fails_the_task(storage: CheckpointStorage) -> None:
    source = ScriptedInput((1, 2), lambda: requests.append(task.trigger_checkpoint()), 3)
    requests: list[Future[int]] = []
    task = StreamTask(source, HoldingOperator, lambda _: None, checkpoint_storage=storage)

    with pytest.raises(CheckpointError, match="checkpoint 1 failed: operator 0 cannot be stored"):
        task.run()

    with pytest.raises(CheckpointError, match="value is a tuple"):
        requests[0].result(TIMEOUT_S)


def test_failures_that_are_tolerated_are_logged_and_those_in_a_row_counted(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = iter([False, True, False, False])
    write = CheckpointStorage.write

    def flaky_write(self: CheckpointStorage, *args: Any, **options: Any) -> Path:
        if not next(outcomes):
            raise OSError(28, "No space left on device")
        return write(self, *args, **options)

    monkeypatch.setattr(CheckpointStorage, "write", flaky_write)
    task = StreamTask(
        QueueInput[int](), [], lambda _: None, checkpoint_storage=storage, tolerable_checkpoint_failures=1
    )
    with caplog.at_level(logging.WARNING), running(task) as run:
        for works in (False, True, False):
            request = task.trigger_checkpoint()
            if works:
                assert request.result(TIMEOUT_S) == 2
            else:
                with pytest.raises(CheckpointError, match="No space left"):
                    request.result(TIMEOUT_S)
        last = task.trigger_checkpoint()
        with pytest.raises(CheckpointError, match="checkpoint 4 failed"):
            run.result()

    with pytest.raises(CheckpointError, match="checkpoint 4 failed"):
        last.result(TIMEOUT_S)
    assert caplog.text.count("failures in a row") == 2


def test_a_checkpoint_asked_for_too_late_is_refused(storage: CheckpointStorage) -> None:
    task = StreamTask(IterableInput([]), [], lambda _: None, checkpoint_storage=storage)
    task.run()

    with pytest.raises(CheckpointError, match="the task is FINISHED"):
        task.trigger_checkpoint().result(TIMEOUT_S)


def test_requests_of_a_task_that_fails_first_are_refused(storage: CheckpointStorage) -> None:
    def ask_and_crash() -> None:
        requests.extend((task.trigger_checkpoint(), task.stop_with_savepoint()))
        raise Crash

    requests: list[Future[int]] = []
    task = StreamTask(ScriptedInput(ask_and_crash), [], lambda _: None, checkpoint_storage=storage)

    with pytest.raises(Crash):
        task.run()

    for request in requests:
        with pytest.raises(CheckpointError, match="the task ended before it was taken"):
            request.result(TIMEOUT_S)


def test_two_tasks_do_not_share_a_folder(storage: CheckpointStorage, tmp_path: Path) -> None:
    first = StreamTask(QueueInput[int](), [], lambda _: None, checkpoint_storage=storage)
    second = StreamTask(IterableInput([1]), [], lambda _: None, checkpoint_storage=CheckpointStorage(tmp_path))
    with running(first):
        mailbox_turn(first)
        with pytest.raises(CheckpointError, match="another running task"):
            second.run()


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

    output: list[StreamElement[Any]] = []
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
    output: list[StreamElement[Any]] = []
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


def test_a_savepoint_asked_for_at_the_end_is_one_of_the_end(storage: CheckpointStorage) -> None:
    def ask() -> InputStatus:
        stops.append(task.stop_with_savepoint())
        return InputStatus.END_OF_INPUT

    stops: list[Future[int]] = []
    output: list[StreamElement[Any]] = []
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
@settings(max_examples=120, deadline=None)
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
        def __call__(self, element: StreamElement[Any]) -> None:
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
