"""What other threads do with a task: ask for its state, for checkpoints and for its end, and report errors to it.

Threads: any thread may call, before, while and after the task runs; everything reaches the task as mail. What comes
before there is a mailbox is sent when there is one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum

from dispatcher.errors import DispatcherError, MailboxClosedError, RejectedExecutionError
from dispatcher.mailbox import MAX_PRIORITY, MailboxProcessor, MailOptions
from pipeline.streaming.task.task_checkpoints import CheckpointRequest

log = logging.getLogger(__name__)


class TaskCancelledError(DispatcherError):
    """A task was cancelled before it had processed all of its input."""


class TaskState(Enum):
    """Where a task is in its life."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"


class FinishingReason(Enum):
    """Why a task stops reading, after Flink's."""

    END_OF_DATA = "END_OF_DATA"
    STOP_WITH_SAVEPOINT_DRAIN = "STOP_WITH_SAVEPOINT_DRAIN"
    STOP_WITH_SAVEPOINT_NO_DRAIN = "STOP_WITH_SAVEPOINT_NO_DRAIN"


class TaskControl:
    """The part of a StreamTask that is for every thread. Nothing here blocks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()  # under it, nothing else is called
        self._state = TaskState.CREATED  # written under _lock; CREATED -> RUNNING -> one of the others
        self._cancelled = False  # written under _lock, once; read by all
        self._processor: MailboxProcessor | None = None  # written under _lock, once
        self._early: list[Callable[[MailboxProcessor], None]] = []  # what to send to the mailbox; guarded by _lock

    @property
    def state(self) -> TaskState:
        return self._state

    @property
    def is_running(self) -> bool:
        return self._state is TaskState.RUNNING

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """End the task soon, without a last checkpoint: `run` raises TaskCancelledError. Once only; does not block.

        A task that has ended does not care. What the mailbox thread does now is finished first: Python has no
        interrupt. Where it waits for mail, in the loop or in an operator's yield, it stops at once.
        """
        with self._lock:
            if self._cancelled or self._state not in (TaskState.CREATED, TaskState.RUNNING):
                return
            self._cancelled = True
        self.report_error(TaskCancelledError(f"{self.name} was cancelled"))
        if self._processor is not None:
            self._processor.all_actions_completed()  # even if somebody's `except Exception` has swallowed the error

    def report_error(self, error: BaseException) -> None:
        """Fail the task with an error of another thread: `run` raises it. Does not block.

        Of a task that has ended, the error goes to the log.
        """

        def report(processor: MailboxProcessor) -> None:
            try:
                processor.report_throwable(error)
            except MailboxClosedError:
                if not isinstance(error, TaskCancelledError):
                    log.error("%s: an error after the end of the task", self.name, exc_info=error)

        self._with_processor(report)

    def trigger_checkpoint(self, *, unaligned: bool = False) -> Future[int]:
        """Take a checkpoint between two mails; gives its id once it is stored. Does not block.

        `unaligned`: before all other mail. Neither kind interrupts an operator that yields. A task that has not started
        takes it when it runs.

        The future fails with CheckpointError if the checkpoint fails, or the task ends before it is taken.
        """
        request = CheckpointRequest(self.name, self._perform_checkpoint)
        self._send_request(request, MailOptions.URGENT if unaligned else MailOptions.DEFAULT)
        return request.future

    def stop_with_savepoint(self, *, drain: bool = False) -> Future[int]:
        """Stop reading, take a savepoint, and end; gives the savepoint's id. Does not block.

        Without `drain`, what operators have in hand becomes part of the savepoint, and the task goes on from there when
        it is run again. With `drain` it is as if the input had ended: there is nothing left to go on with.

        The future fails with CheckpointError if there is no savepoint.
        """
        reason = FinishingReason.STOP_WITH_SAVEPOINT_DRAIN if drain else FinishingReason.STOP_WITH_SAVEPOINT_NO_DRAIN
        request = CheckpointRequest(self.name, lambda _: self._stop_with(reason, request))
        self._send_request(request, MailOptions.DEFAULT)
        return request.future

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the operators that have `notify_checkpoint_complete`, by a mail of MAX_PRIORITY. Does not block.

        The task does this for the checkpoints it has stored; here others may, that copy them elsewhere.
        """

        def send(processor: MailboxProcessor) -> None:
            executor = processor.mailbox_executor(MAX_PRIORITY)
            with suppress(RejectedExecutionError):  # the task has ended
                executor.execute(lambda: self._notify(checkpoint_id), "checkpoint %s is complete", checkpoint_id)

        self._with_processor(send)

    # ------------------------------------------------------------------------------------------------- for StreamTask

    def _perform_checkpoint(self, future: Future[int]) -> None:
        raise NotImplementedError

    def _stop_with(self, reason: FinishingReason, request: CheckpointRequest) -> None:
        raise NotImplementedError

    def _notify(self, checkpoint_id: int) -> None:
        raise NotImplementedError

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise TaskCancelledError(f"{self.name} was cancelled")

    def _with_processor(self, action: Callable[[MailboxProcessor], None]) -> None:
        """Call `action` now, or when the task starts."""
        with self._lock:
            processor = self._processor
            if processor is None:
                self._early.append(action)
                return
        action(processor)

    def _send_request(self, request: CheckpointRequest, options: MailOptions) -> None:
        def send(processor: MailboxProcessor) -> None:
            executor = processor.main_mailbox_executor
            try:
                executor.execute(request, "a checkpoint of %s", self.name, options=options)
            except RejectedExecutionError:
                request.refuse(f"the task is {self._state.name}")

        self._with_processor(send)

    def _start_with(self, processor: MailboxProcessor) -> None:
        """The task runs from now on. Mailbox thread.

        Raises:
            DispatcherError: it has run before.
        """
        with self._lock:
            if self._state is not TaskState.CREATED:
                raise DispatcherError(f"{self.name} is {self._state.name}; a task runs once, make another one")
            self._state = TaskState.RUNNING
            self._processor = processor
            early, self._early = self._early, []
        for send in early:
            send(processor)

    def _ended_with(self, error: BaseException | None) -> None:
        with self._lock:
            if error is None:
                self._state = TaskState.FINISHED
            else:
                self._state = TaskState.CANCELED if isinstance(error, TaskCancelledError) else TaskState.FAILED
