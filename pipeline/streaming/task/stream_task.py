"""A task: one input, a chain of operators and one output on one mailbox, after Flink's StreamTask.

Threads: the caller of `run` becomes the mailbox thread, to which input, operators and output belong. Other threads send
it mail: timers, answers of calls, requests for checkpoints, cancellation, errors.

Life cycle: restore the newest checkpoint, open, read until the input ends, end each operator and its timers in order,
drain the mailbox, take a last checkpoint, close. After a failure or a cancellation the task only closes; its next run
starts from the last intact checkpoint, so nothing is lost, and some outputs may repeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypedDict

from dispatcher.errors import InvalidValueError, RejectedExecutionError
from dispatcher.mailbox import (
    MAX_PRIORITY,
    MailboxController,
    MailboxProcessor,
    MailOptions,
    SystemProcessingTimeService,
)
from dispatcher.mailbox.processor import IdleTimer
from dispatcher.mailbox.timer_queue import TimerService
from dispatcher.util.functions import require_methods
from pipeline.streaming.elements import StreamElement, StreamRecord
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.task.checkpoints import Checkpoint, CheckpointStorage, Recovery
from pipeline.streaming.task.inputs import MORE, NOTHING, ElementOutput, StreamTaskInput
from pipeline.streaming.task.task_chain import (
    AvailabilityProvider,
    OperatorChain,
    OperatorFactory,
    StreamTaskOutput,
)
from pipeline.streaming.task.task_checkpoints import CheckpointRequest, TaskCheckpoints
from pipeline.streaming.task.task_control import FinishingReason, TaskControl, TaskState

log: logging.Logger = logging.getLogger(__name__)


class TaskOptions(TypedDict, total=False):
    """What a task takes besides input, operators and output; described at StreamTask."""

    name: str
    checkpoint_storage: CheckpointStorage | None
    checkpoint_interval_ms: int | None
    tolerable_checkpoint_failures: int
    processing_time_service: TimerService | None


class StreamTask:
    """Reads `input`, feeds the head of the `operators`, and passes the output of the last one to `output`.

    `operators`: a factory, or several, the head first. Each is called with an OperatorContext when the task starts:
        `StreamTask(input, [lambda ctx: AsyncWaitOperator(f, mailbox_executor=ctx.mailbox_executor, ...)], output)`
    `output`: a callable, or a StreamTaskOutput.
    `checkpoint_storage`: where the state is stored and restored from. None disables checkpoints.
    `checkpoint_interval_ms`: processing time between periodic checkpoints. None takes them only on request and at the
        end.
    `tolerable_checkpoint_failures`: consecutive checkpoint failures tolerated.
    `processing_time_service`: one shared with others, left running. By default, the task has a private one.

    Any thread can call any method but `run` and `restore`.
    """

    def __init__(
        self,
        input: StreamTaskInput,
        operators: OperatorFactory | Sequence[OperatorFactory],
        output: StreamTaskOutput | ElementOutput,
        *,
        name: str = "stream task",
        checkpoint_storage: CheckpointStorage | None = None,
        checkpoint_interval_ms: int | None = None,
        tolerable_checkpoint_failures: int = 0,
        processing_time_service: TimerService | None = None,
    ) -> None:
        if not callable(operators):
            require_methods(operators, "operators", "a function that makes an operator, or several", "__iter__")
        require_methods(input, "input", "a StreamTaskInput", "emit_next")
        require_number("tolerable_checkpoint_failures", tolerable_checkpoint_failures, least=0, whole=True)
        if checkpoint_interval_ms is not None:
            require_number("checkpoint_interval_ms", checkpoint_interval_ms, least=1)
            if checkpoint_storage is None:
                raise InvalidValueError(
                    f"checkpoint_interval_ms is {checkpoint_interval_ms}; give a checkpoint_storage, too"
                )
        self.name = name
        self.recovery: Recovery | None = None
        """What is repeated, or None without a checkpoint. Known after `restore`, or once `run` opens operators."""
        self.records_out: int = 0  # emitted, in this run and those it continues; mailbox thread writes, all read
        self.idle_timer: IdleTimer = IdleTimer()
        """Time without input or without room for it. Any thread can read its `total_ns`."""
        self._control = TaskControl(name)  # any thread
        self._input = input
        self._factories = [operators] if callable(operators) else list(operators)
        self._call_output: ElementOutput = output
        self._output_room = output if isinstance(output, StreamTaskOutput) else None
        self._output = output if isinstance(output, StreamTaskOutput) else StreamTaskOutput()  # a callable has no state
        self._storage = checkpoint_storage
        self._interval_ms = checkpoint_interval_ms
        self._tolerable_failures = tolerable_checkpoint_failures
        self._owns_time = processing_time_service is None
        self._time: TimerService = processing_time_service or SystemProcessingTimeService(
            f"{name} timers", on_error=self.report_error
        )
        self._has_storage = False  # this task holds the folder; mailbox thread only
        self._restored: Checkpoint | None = None  # mailbox thread only
        self._chain: OperatorChain | None = None  # mailbox thread only
        self._checkpoints: TaskCheckpoints | None = None  # mailbox thread only
        self._notified = 0  # the newest checkpoint announced to the operators; mailbox thread only
        self._availabilities: tuple[AvailabilityProvider, ...] = ()  # asked before each record; mailbox thread only
        self._reason = FinishingReason.END_OF_DATA  # mailbox thread only
        self._is_stopping = False  # mailbox thread only
        self._stop_requests: list[CheckpointRequest] = []  # completed with the last checkpoint; mailbox thread only

    @property
    def state(self) -> TaskState:
        """The task's state. Thread-safe."""
        return self._control.state

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._control.is_cancelled

    def cancel(self) -> None:
        """End the task soon, without a last checkpoint, so that `run` raises TaskCancelledError. Doesn't block.

        Idempotent, and without effect on an ended task. The mailbox thread finishes its current work, since Python
        can't interrupt it, but a wait for mail, in the loop or in an operator's yield, ends at once.
        """
        self._control.cancel()

    def report_error(self, error: BaseException) -> None:
        """Fail the task with an error of another thread, so that `run` raises it. Doesn't block.

        Once the task has ended, the error goes to the log.
        """
        self._control.report_error(error)

    def trigger_checkpoint(self, *, unaligned: bool = False) -> Future[int]:
        """Take a checkpoint between two mails, and return a future of its id once it's stored. Doesn't block.

        `unaligned`: before all other mail. Neither kind interrupts an operator that yields. If the task hasn't started,
            it takes the checkpoint when it runs.

        The future fails with CheckpointError if the checkpoint fails, or the task ends before it's taken.
        """
        options = MailOptions.URGENT if unaligned else MailOptions.DEFAULT
        return self._control.request(lambda request: self._of_run()[2].perform(request.future), options)

    def stop_with_savepoint(self, *, drain: bool = False) -> Future[int]:
        """Stop reading, take a savepoint, and end. Returns a future of the savepoint's id. Doesn't block.

        Without `drain`, unfinished elements become part of the savepoint, and the next run of the task resumes from
        there. With `drain`, the task ends as if the input had ended, and nothing is left to resume.

        The future fails with CheckpointError if the savepoint can't be taken.
        """
        reason = FinishingReason.STOP_WITH_SAVEPOINT_DRAIN if drain else FinishingReason.STOP_WITH_SAVEPOINT_NO_DRAIN
        return self._control.request(lambda request: self._stop_with(reason, request))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify each operator with a `notify_checkpoint_complete`, by a mail of MAX_PRIORITY. Doesn't block.

        The task itself does this for each checkpoint it has stored. Call it after you copied one elsewhere.
        """

        def send(processor: MailboxProcessor) -> None:
            executor = processor.mailbox_executor(MAX_PRIORITY)
            with suppress(RejectedExecutionError):  # the task has ended
                executor.execute(lambda: self._notify(checkpoint_id), "checkpoint %s is complete", checkpoint_id)

        self._control.send(send)

    def restore(self) -> Recovery | None:
        """Read the newest checkpoint, to set `recovery` before `run`, which otherwise does this.

        Locks the folder for the task until `run` has ended.

        Raises:
            CheckpointError: no existing checkpoint can be restored, or another task holds the folder.
        """
        storage = self._storage
        if storage is not None and not self._has_storage:
            storage.acquire()
            self._has_storage = True
            try:
                self._restored = checkpoint = storage.latest(self.name)
            except BaseException:
                self._release_storage()
                raise
            if checkpoint is not None:
                self.recovery = Recovery.of(checkpoint)
                log.info("%s: %s", self.name, self.recovery)
        return self.recovery

    def run(self) -> None:
        """Run as the mailbox thread until the task ends. Call it only once.

        Raises:
            TaskCancelledError: the task was cancelled.
            CheckpointError: the task can't be restored, or too many checkpoints failed.
            Exception: the input, an operator or the output raised it, or another thread reported it.
        """
        processor = MailboxProcessor(self._process_input)
        self._control.start_with(processor)
        failure: BaseException | None = None
        try:
            self._control.check_cancelled()
            self.restore()
            if self.recovery is None or not self.recovery.is_finished:
                self._prepare(processor)
                processor.run_mailbox_loop()
                self._control.check_cancelled()
                self._end(processor)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._clean_up(processor, failure)

    def _prepare(self, processor: MailboxProcessor) -> None:
        """Create and open everything, in its restored state."""
        self._checkpoints = TaskCheckpoints(
            self._storage,
            self._take_checkpoint,
            self._notify,
            processor=processor,
            time_service=self._time,
            interval_ms=self._interval_ms,
            tolerable_failures=self._tolerable_failures,
            task_name=self.name,
        )
        self._chain = chain = OperatorChain(self._emitter(), self._output_room)
        chain.build(self._factories, processor, self._time, self.report_error, self.name)
        if self._restored is not None:
            self._input.initialize_state(self._restored.input_state)
            self._output.initialize_state(self._restored.output_state)
            chain.initialize_state(self._restored.operator_states)
            self.records_out = self._restored.outputs
            self._restored = None
        # Both the head and the output: an operator with room of its own does not vouch for the output's.
        rooms = (chain.availability, self._output_room)
        self._availabilities = tuple(dict.fromkeys(room for room in rooms if room is not None))
        chain.open()
        self._control.check_cancelled()
        self._checkpoints.start_periodic()

    def _emitter(self) -> ElementOutput:
        call = self._call_output

        def emit(element: StreamElement[Any]) -> None:
            call(element)
            if type(element) is StreamRecord:
                self.records_out += 1

        return emit

    def _process_input(self, controller: MailboxController) -> None:
        """The default action: feed the head while it has room, there is input, and no mail waits."""
        processor, chain, _ = self._of_run()
        rooms, feed, emit_next = self._availabilities, chain.feed, self._input.emit_next
        mailbox = processor.mailbox
        while True:
            for room in rooms:
                if not room.is_available():
                    self._suspend_until(controller, room.available_future())
                    return
            status = emit_next(feed)
            if status is not MORE:
                break
            if mailbox.new_mail or mailbox.batch:  # has_mail() inlined
                return
        if status is NOTHING:
            self._suspend_until(controller, self._input.available())
        else:
            self._is_stopping = True  # a savepoint requested from now on is the last checkpoint
            self._control.stop_loop()

    def _suspend_until(self, controller: MailboxController, available: Future[None] | None) -> None:
        """Run only mail until `available` completes. Its error fails the task."""
        if available is None:
            return

        def resume(available: Future[None]) -> None:
            error = None if available.cancelled() else available.exception()
            if error is not None:
                self.report_error(error)
            suspension.resume()

        self.idle_timer.mark_start()
        suspension = controller.suspend_default_action(self.idle_timer)
        available.add_done_callback(resume)
        if self._control.processor.is_default_action_available():  # already resumed
            self.idle_timer.mark_end()

    def _stop_reading(self) -> None:
        """Hook: stop reading for a savepoint, and let the loop end."""
        self._control.stop_loop()

    def _end_of_data(self, feed: ElementOutput) -> None:
        """Hook: the input has ended, the operators have not."""

    def _end(self, processor: MailboxProcessor) -> None:
        """After the input has ended: end the operators, and take the last checkpoint."""
        _, chain, checkpoints = self._of_run()
        checkpoints.quiesce()
        is_finished = self._reason is not FinishingReason.STOP_WITH_SAVEPOINT_NO_DRAIN
        if is_finished:
            self._end_of_data(chain.feed)
            chain.end_input()
        processor.prepare_close()
        processor.drain()
        self._control.check_cancelled()
        # A savepoint requested while the input ended by itself is this last checkpoint.
        checkpoint_id = checkpoints.perform_last(is_savepoint=bool(self._stop_requests), is_finished=is_finished)
        for request in self._stop_requests:
            if checkpoint_id is not None:
                request.future.set_result(checkpoint_id)
        self._stop_requests.clear()

    def _clean_up(self, processor: MailboxProcessor, failure: BaseException | None) -> None:
        """Close everything, whatever raises. Errors are added to `failure`; without one, the first error is raised."""
        chain, checkpoints = self._chain, self._checkpoints
        steps: list[Callable[[], Any]] = [processor.prepare_close]
        if checkpoints is not None:
            steps += [checkpoints.quiesce, checkpoints.close]
        if chain is not None:
            steps += [chain.quiesce_timers, *chain.closers()]
        steps += [self._input.close, self._output.close]
        if self._owns_time:
            steps.append(self._time.shutdown)
        steps.append(self._release_storage)
        steps.append(processor.close)
        first = failure
        for step in steps:
            try:
                step()
            except BaseException as error:
                log.exception("%s: %s failed", self.name, getattr(step, "__qualname__", step))
                if first is None:
                    first = error
                elif first is not error:
                    first.add_note(f"and at the end {error!r}")
        for request in self._stop_requests:
            request.refuse(f"the task ended before it was taken: {first!r}")
        self._control.end_with(first)
        if failure is None and first is not None:
            raise first

    def _take_checkpoint(self, checkpoint_id: int, is_savepoint: bool, is_finished: bool) -> Checkpoint:
        return Checkpoint(
            checkpoint_id=checkpoint_id,
            task=self.name,
            taken_at_ms=self._time.current_processing_time(),
            input_state=self._input.snapshot_state(),
            operator_states=self._of_run()[1].snapshot_state(),
            outputs=self.records_out,
            output_state=self._output.snapshot_state(),
            is_savepoint=is_savepoint,
            is_finished=is_finished,
        )

    def _stop_with(self, reason: FinishingReason, request: CheckpointRequest) -> None:
        if self._storage is None:
            request.refuse("the task has no checkpoint_storage")
            return
        self._stop_requests.append(request)
        if not self._is_stopping:
            self._is_stopping, self._reason = True, reason
            self._stop_reading()

    def _release_storage(self) -> None:
        if self._storage is not None and self._has_storage:
            self._has_storage = False
            self._storage.release()

    def _notify(self, checkpoint_id: int) -> None:
        if checkpoint_id > self._notified:  # operators need no repeated or outdated notifications
            self._notified = checkpoint_id
            self._of_run()[1].notify_checkpoint_complete(checkpoint_id)

    def _of_run(self) -> tuple[MailboxProcessor, OperatorChain, TaskCheckpoints]:
        assert self._chain is not None
        assert self._checkpoints is not None
        return self._control.processor, self._chain, self._checkpoints
