"""A task takes its checkpoints between two mails, with all unfinished elements, and announces them once stored."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from dispatcher.mailbox import ManualClock
from pipeline.streaming import (
    CheckpointError,
    CheckpointStorage,
    IterableInput,
    QueueInput,
    StreamRecord,
    StreamTask,
    StreamTaskOutput,
)

from ....kit import TIMEOUT_S
from ....kit.scenarios import play
from .stage import TaskStage
from .task_fakes import (
    Crash,
    Element,
    HoldingOperator,
    LoggedOperator,
    ScriptedInput,
    crash,
    doing,
    latest,
    mailbox_turn,
    running,
    snapshotted,
    values,
    wait_for,
)

# ---------------------------------------------------------------------------------------------------------- taking


SCENARIOS = {
    "a checkpoint holds position, unfinished elements and outputs": (
        "hold",
        "run a b@5 ~5 release checkpoint crash -> requests 1 ; input_state 5 ; held b@5 ~5 ; outputs 1"
        " ; task stream_task ; is_finished False",
    ),
    "a checkpoint asked for before the start is taken by the run": ("", "early 1 -> requests 1 ; out 1"),
}  # fmt: skip


@pytest.mark.parametrize(("chain", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(storage: CheckpointStorage, chain: str, script: str) -> None:
    play(TaskStage(chain, storage), script)


@pytest.mark.parametrize(("unaligned", "expected"), [(False, ["mail", "snapshot"]), (True, ["snapshot", "mail"])])
def test_an_unaligned_checkpoint_goes_before_other_mail(
    storage: CheckpointStorage, unaligned: bool, expected: list[str]
) -> None:
    log: list[str] = []

    def mail(operator: LoggedOperator, record: StreamRecord[Any]) -> None:
        operator.context.mailbox_executor.execute(lambda: log.append("mail"))
        task.trigger_checkpoint(unaligned=unaligned)

    mailing = doing(process_element=mail, snapshot_state=snapshotted(log))
    task = StreamTask(ScriptedInput(1, crash), mailing, lambda _: None, checkpoint_storage=storage)

    with pytest.raises(Crash):
        task.run()

    assert log == expected


def test_no_checkpoint_is_taken_while_an_operator_yields(storage: CheckpointStorage) -> None:
    log: list[str] = []

    def yield_once(operator: LoggedOperator, record: StreamRecord[Any]) -> None:
        task.trigger_checkpoint()
        task.trigger_checkpoint(unaligned=True)
        operator.context.mailbox_executor.execute(lambda: log.append("mail"))
        operator.context.mailbox_executor.yield_()
        log.append("processed")

    yielding = doing(process_element=yield_once, snapshot_state=snapshotted(log))
    task = StreamTask(ScriptedInput(1, lambda: None, crash), yielding, lambda _: None, checkpoint_storage=storage)

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


def test_others_may_notify_of_a_checkpoint_even_in_a_yield() -> None:
    waiting = threading.Event()

    def wait(operator: LoggedOperator, record: StreamRecord[Any]) -> None:
        waiting.set()
        while "op complete 7" not in log:
            operator.context.mailbox_executor.yield_()

    log: list[Any] = []
    task = StreamTask(IterableInput([1]), doing(log, process_element=wait), lambda _: None)
    with running(task) as run:
        wait_for(waiting, "the yield")
        task.notify_checkpoint_complete(7)
        run.result()

    task.notify_checkpoint_complete(8)
    assert log == ["op open", "op complete 7", "op end_input", "op close"]


def test_a_notice_that_comes_again_or_late_is_ignored() -> None:
    log: list[Any] = []
    task = StreamTask(QueueInput[int](), lambda ctx: LoggedOperator(ctx, log), lambda _: None)
    with running(task):
        for checkpoint_id in (3, 3, 2, 4):
            task.notify_checkpoint_complete(checkpoint_id)
        mailbox_turn(task)

    assert log == ["op open", "op complete 3", "op complete 4", "op close"]


def test_the_outputs_state_is_part_of_the_checkpoint_and_comes_back(storage: CheckpointStorage) -> None:
    class Counting(StreamTaskOutput):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def __call__(self, element: Element) -> None:
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


def _task_with_checkpoints_every_100_ms(storage: CheckpointStorage, clock: ManualClock) -> StreamTask:
    return StreamTask(
        QueueInput[int](),
        [],
        lambda _: None,
        checkpoint_storage=storage,
        checkpoint_interval_ms=100,
        processing_time_service=clock,
    )


def _settle(task: StreamTask) -> None:
    """Wait until pending writes have ended and were announced."""
    checkpoints = task._checkpoints
    assert checkpoints is not None
    checkpoints._writer.submit(lambda: None).result(TIMEOUT_S)
    mailbox_turn(task)


def test_checkpoints_are_taken_by_processing_time_and_left_out_while_one_is_being_written(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, writing, go_on = ManualClock(), threading.Event(), threading.Event()
    write = CheckpointStorage.write

    def slow_write(*args: Any, **options: Any) -> Path:
        writing.set()
        wait_for(go_on, "the end of the write")
        return write(*args, **options)

    monkeypatch.setattr(CheckpointStorage, "write", slow_write)
    task = _task_with_checkpoints_every_100_ms(storage, clock)
    with running(task):
        mailbox_turn(task)
        for passing_ms in (99, 1, 100, 100):
            clock.advance(passing_ms)
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
    output: list[Element] = []
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
