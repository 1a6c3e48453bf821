"""The operators of one task, one feeding the next, after Flink's OperatorChain. Mailbox thread only.

The operators are opened from the last to the first, so that elements emitted from restored state find the next operator
open. They end and are closed from the first to the last, so that each receives everything emitted before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, Unpack, runtime_checkable

from dispatcher.mailbox import MailboxExecutor, MailboxProcessor, MailboxTimeService, ProcessingTimeService
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.wait_operator import AsyncWaitOperator
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.errors import CheckpointError
from pipeline.streaming.options import AsyncOptions, OperatorOptions, takes_options
from pipeline.streaming.task.inputs import ElementOutput


@runtime_checkable
class AvailabilityProvider(Protocol):
    """A receiver that may lack room; checked before each element. Mailbox thread only."""

    def is_available(self) -> bool: ...

    def available_future(self) -> Future[None] | None:
        """A future that any thread completes when there is room again; None: there is room now."""


class StreamOperator(Protocol):
    """Processes the elements of a task. Called only on the mailbox thread, it can wait only by yielding.

    An operator with the methods of AvailabilityProvider gets elements only while it's available. If you add
    `notify_checkpoint_complete(checkpoint_id)`, it gets these notifications, even while it yields.
    """

    def initialize_state(self, state: list[StreamElement[Any]], /) -> None:
        """Restore what `snapshot_state` returned. Called before `open` if there's a checkpoint."""

    def open(self) -> None:
        """Called once, before the first element."""

    def process_element(self, record: StreamRecord[Any], /) -> None:
        """Take a record."""

    def process_watermark(self, watermark: Watermark, /) -> None:
        """Take a watermark."""

    def end_input(self) -> None:
        """Emit what is left, since no element follows, and yield until that's done. Timers still fire meanwhile."""

    def snapshot_state(self) -> list[StreamElement[Any]]:
        """Return the elements taken in and not finished, as a list that won't change."""

    def close(self) -> None:
        """Release everything. Called once, however the task ends, even if it wasn't opened."""


class StreamTaskOutput:
    """A task's output with limited room, state, or something to close. Otherwise you can use a callable.

    Use it only on the mailbox thread. It's an AvailabilityProvider: without room, the task doesn't read, but operators
    can still emit to the output.
    """

    def __call__(self, element: StreamElement[Any]) -> object:
        raise NotImplementedError

    def is_available(self) -> bool:
        """Whether there is room."""
        return True

    def available_future(self) -> Future[None] | None:
        """Return a future that's done once there's room."""
        return None

    def initialize_state(self, state: Any) -> None:
        """Restore what `snapshot_state` returned. Called before anything is opened if there's a checkpoint."""

    def snapshot_state(self) -> Any:
        """Called for each checkpoint: make everything emitted so far survive the process.

        The returned value, which the storage's serializer must accept, is passed to Recovery and `initialize_state`.
        For example, it can be the length of a file. A recovery truncates the file to that, so nothing is in it twice.
        """
        return None

    def close(self) -> None:
        """Called once, at the end of the task, however it ends."""


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What a task passes to the factory of an operator."""

    mailbox_executor: MailboxExecutor
    """Its priority is the position in the chain: while an operator yields, only it and those after it run."""
    processing_time_service: ProcessingTimeService
    """Callbacks run as mail of the operator's priority, and no longer once the operator has ended."""
    output: ElementOutput
    output_availability: Callable[[], Future[None] | None] | None
    """Returns None while `output` has room, else a future that completes when it does. None: always room."""
    report_error: Callable[[BaseException], None]
    """Fails the task, for errors outside any mail. Any thread; does not block."""
    task_name: str
    position: int
    """In the chain; the head is 0."""


OperatorFactory: TypeAlias = Callable[[OperatorContext], StreamOperator]
"""Makes an operator when its task starts, on the mailbox thread."""


@takes_options(OperatorOptions)
def async_wait_operator(
    function: AnyFunction[Any, Any] | CallHost,
    *,
    timeout_ms: int,
    metrics: CallMetrics | None = None,
    name: str | None = None,
    **options: Unpack[OperatorOptions],
) -> OperatorFactory:
    """Return a factory of AsyncWaitOperators: `StreamTask(input, [async_wait_operator(f, timeout_ms=1000)], output)`.

    The task provides the mailbox, the timers and the output, and a `name` unless you pass one.

    Raises:
        ValueError, TypeError: an option is invalid. The message names it.
    """
    AsyncOptions(timeout_ms=timeout_ms, **options)

    def make(context: OperatorContext) -> AsyncWaitOperator:
        return AsyncWaitOperator(
            function,
            timeout_ms=timeout_ms,
            mailbox_executor=context.mailbox_executor,
            processing_time_service=context.processing_time_service,
            output=context.output,
            output_availability=context.output_availability,
            metrics=metrics,
            name=name or f"{context.task_name} async wait {context.position}",
            **options,
        )

    return make


class OperatorChain:
    """Operators, the first of which is fed by the task, and the last of which feeds `output`."""

    def __init__(self, output: ElementOutput, output_availability: AvailabilityProvider | None) -> None:
        # The head first; includes those that a failed build has made.
        self._links: list[tuple[StreamOperator, MailboxExecutor, MailboxTimeService]] = []
        self.feed: ElementOutput = output
        """Pass an element to the head, or to the output if there is no operator."""
        self.availability = output_availability
        """The head's: the task feeds only while it is available. None: always."""

    def build(
        self,
        factories: Sequence[OperatorFactory],
        processor: MailboxProcessor,
        time_service: ProcessingTimeService,
        report_error: Callable[[BaseException], None],
        task_name: str,
    ) -> None:
        """Make the operators. If a factory raises, `closers` still closes those that were made."""
        for position in reversed(range(len(factories))):
            executor = processor.mailbox_executor(position)
            timers = MailboxTimeService(time_service, executor)
            behind = self.availability.available_future if self.availability is not None else None
            context = OperatorContext(executor, timers, self.feed, behind, report_error, task_name, position)
            operator = factories[position](context)
            self._links.insert(0, (operator, executor, timers))
            self.feed = _feed_into(operator)
            # An operator without availability passes everything on: the next one's applies.
            if isinstance(operator, AvailabilityProvider):
                self.availability = operator

    def initialize_state(self, states: list[list[StreamElement[Any]]]) -> None:
        """Give each operator its part of a checkpoint.

        Raises:
            CheckpointError: the checkpoint is of a chain of another length.
        """
        if len(states) != len(self._links):
            raise CheckpointError(
                f"the checkpoint is of a chain of {len(states)} operators, and the task has {len(self._links)}. "
                "Restore it with the chain it was taken with, or give the task an empty folder."
            )
        for (operator, _, _), state in zip(self._links, states, strict=True):
            operator.initialize_state(state)

    def open(self) -> None:
        for operator, _, _ in reversed(self._links):
            operator.open()

    def snapshot_state(self) -> list[list[StreamElement[Any]]]:
        return [operator.snapshot_state() for operator, _, _ in self._links]

    def end_input(self) -> None:
        """End one operator after the other, each with its timers, and with the mail of its priority or higher, also
        deferrable mail, and what that sends."""
        for operator, executor, timers in self._links:
            operator.end_input()
            timers.quiesce().result()  # waits for a callback that is sending its mail, which never blocks
            while executor.try_yield(ignore_deferrable=True):  # after FLINK-39481
                pass

    def quiesce_timers(self) -> None:
        for _, _, timers in self._links:
            timers.quiesce()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        for operator, _, _ in self._links:
            notify = getattr(operator, "notify_checkpoint_complete", None)
            if notify is not None:
                notify(checkpoint_id)

    def closers(self) -> list[Callable[[], None]]:
        """The operators' `close` methods, in order. Call each of them, whatever the others raise."""
        return [operator.close for operator, _, _ in self._links]


def _feed_into(operator: StreamOperator) -> ElementOutput:
    process_element, process_watermark = operator.process_element, operator.process_watermark

    def feed(element: StreamElement[Any]) -> None:
        if type(element) is Watermark:
            process_watermark(element)
        else:
            process_element(element)  # type: ignore[arg-type]  # the only other kind; a check would cost at each record

    return feed
