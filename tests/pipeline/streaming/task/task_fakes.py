"""What tests of stream tasks share: scripted operators, inputs and outputs that record what was called."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.streaming import (
    Checkpoint,
    CheckpointStorage,
    SourceContext,
    StreamRecord,
    StreamTask,
    StreamTaskOutput,
    TaskCancelledError,
    Watermark,
)
from pipeline.streaming.task.inputs import AVAILABLE, ElementOutput, InputStatus
from pipeline.streaming.task.task_chain import OperatorContext

from ....kit import TIMEOUT_S
from ..calls.harness import Element


def values(elements: list[Element]) -> list[Any]:
    return [element.value for element in elements if isinstance(element, StreamRecord)]


class Crash(Exception):
    """Ends a task as a kill does: without another checkpoint."""


def crash() -> None:
    raise Crash


def latest(folder: Path) -> Checkpoint:
    checkpoint = CheckpointStorage(folder).latest()
    assert checkpoint is not None
    return checkpoint


class LoggedOperator:
    """Passes everything on, and writes into `log` what was done to it and on which thread."""

    def __init__(self, context: OperatorContext, log: list[Any] | None = None, name: str = "op") -> None:
        self.context = context
        self.log = log if log is not None else []
        self.name = name

    def note(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")

    def initialize_state(self, state: list[Element]) -> None:
        self.note(f"restore {len(state)}")

    def open(self) -> None:
        self.note("open")

    def process_element(self, record: StreamRecord[Any]) -> None:
        self.context.output(record)

    def process_watermark(self, watermark: Watermark) -> None:
        self.context.output(watermark)

    def end_input(self) -> None:
        self.note("end_input")

    def snapshot_state(self) -> list[Element]:
        return []

    def close(self) -> None:
        self.note("close")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.note(f"complete {checkpoint_id}")


def logged(log: list[Any], *names: str) -> list[Any]:
    return [lambda ctx, name=name: LoggedOperator(ctx, log, name) for name in names]


def doing(log: list[Any] | None = None, name: str = "op", **methods: Any) -> Callable[[OperatorContext], Any]:
    """Makes a LoggedOperator with methods of the test's: `doing(open=lambda op: ...)`."""
    kind = type("Doing", (LoggedOperator,), methods)
    return lambda context: kind(context, log, name)


def output_of(source: Any, chain: Any = (), **options: Any) -> list[Element]:
    """What a task emits from its start to its end."""
    output: list[Element] = []
    StreamTask(source, chain, output.append, **options).run()
    return output


def snapshotted(log: list[Any]) -> Callable[[LoggedOperator], list[Element]]:
    """A method for `doing` that writes of each snapshot into the log."""

    def snapshot_state(operator: LoggedOperator) -> list[Element]:
        log.append("snapshot")
        return []

    return snapshot_state


class HoldingOperator(LoggedOperator):
    """Holds elements until `release`, as an operator with calls in flight does; emits the rest at the end."""

    def __init__(self, context: OperatorContext, capacity: int = 1000, **options: Any) -> None:
        super().__init__(context, **options)
        self.capacity = capacity
        self.held: deque[Element] = deque()
        self.room: Future[None] | None = None

    def initialize_state(self, state: list[Element]) -> None:
        super().initialize_state(state)
        self.held.extend(state)

    def process_element(self, record: StreamRecord[Any]) -> None:
        assert len(self.held) < self.capacity, "fed without room"
        self.held.append(record)

    def process_watermark(self, watermark: Watermark) -> None:
        assert len(self.held) < self.capacity, "fed without room"
        self.held.append(watermark)

    def release(self, count: int = 1) -> None:
        """On the mailbox thread."""
        for _ in range(min(count, len(self.held))):
            self.context.output(self.held.popleft())
        room, self.room = self.room, None
        if room is not None:
            room.set_result(None)

    def end_input(self) -> None:
        super().end_input()
        self.release(len(self.held))

    def snapshot_state(self) -> list[Element]:
        return list(self.held)

    def is_available(self) -> bool:
        return len(self.held) < self.capacity

    def available_future(self) -> Future[None] | None:
        if self.is_available():
            return None
        self.room = self.room or Future()
        return self.room


class ScriptedInput:
    """Each turn does the next step: a callable is called, anything else is emitted; its position is the step."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps
        self.position = 0
        self.future: Future[None] = AVAILABLE
        self.is_closed = False

    def emit_next(self, output: ElementOutput) -> InputStatus:
        if self.position == len(self.steps):
            return InputStatus.END_OF_INPUT
        step = self.steps[self.position]
        self.position += 1
        if isinstance(step, StreamRecord | Watermark):
            output(step)
        elif callable(step):
            status = step()
            if isinstance(status, InputStatus):
                return status
        else:
            output(StreamRecord(step))
        return InputStatus.MORE_AVAILABLE

    def available(self) -> Future[None]:
        return self.future

    def snapshot_state(self) -> Any:
        return self.position

    def initialize_state(self, state: Any) -> None:
        self.position = state

    def close(self) -> None:
        self.is_closed = True


class GatedOutput(StreamTaskOutput):
    """Has room or not, as the test sets it."""

    def __init__(self) -> None:
        self.elements: list[Element] = []
        self.gate: Future[None] | None = None
        self.asked = threading.Event()  # for room, while there was none
        self.is_closed = False

    def __call__(self, element: Element) -> None:
        self.elements.append(element)

    def is_available(self) -> bool:
        return self.gate is None

    def available_future(self) -> Future[None] | None:
        self.asked.set()
        return self.gate

    def shut(self) -> None:
        self.gate = Future()

    def open_again(self) -> None:
        gate, self.gate = self.gate, None
        assert gate is not None
        gate.set_result(None)

    def close(self) -> None:
        self.is_closed = True


class RunningSource:
    """Calls `body(ctx)` in its run; records which thread called what."""

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


class Running:
    """A task on a thread of its own."""

    def __init__(self, task: StreamTask) -> None:
        self.task = task
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="mailbox", daemon=True)

    def _run(self) -> None:
        try:
            self.task.run()
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive(), f"{self.task.name} hangs"

    def cancel(self) -> None:
        """Cancel the task, and wait until it has ended for that reason."""
        self.task.cancel()
        with pytest.raises(TaskCancelledError):
            self.result()

    def result(self) -> None:
        """Wait for the end, and raise what `run` raised."""
        self.join()
        if self.error is not None:
            raise self.error


@contextmanager
def running(task: StreamTask) -> Iterator[Running]:
    """Run the task on another thread, and see to it that it ends."""
    run = Running(task)
    run.thread.start()
    try:
        yield run
    finally:
        task.cancel()
        run.join()


def wait_for(event: threading.Event, what: str) -> None:
    assert event.wait(TIMEOUT_S), f"{what} has not come about in {TIMEOUT_S} s"


def mailbox_turn(task: StreamTask, action: Callable[[], Any] = lambda: None) -> Any:
    """Run `action` as mail of the lowest priority, now or when the task starts, and wait for it."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(action())
        except BaseException as error:
            done.set_exception(error)

    task._control.send(lambda processor: processor.main_mailbox_executor.execute(run, "a turn of the test"))
    return done.result(TIMEOUT_S)
