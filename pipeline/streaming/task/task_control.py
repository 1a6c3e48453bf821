"""How other threads reach a task before, during and after its run: always by mail.

Requests made before there is a mailbox are sent once there is one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum

from dispatcher.errors import DispatcherError, MailboxClosedError, RejectedExecutionError
from dispatcher.mailbox import MailboxProcessor, MailOptions
from pipeline.streaming.errors import TaskCancelledError
from pipeline.streaming.task.task_checkpoints import CheckpointRequest

log: logging.Logger = logging.getLogger(__name__)


class TaskState(Enum):
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
    """The state of a task, and the access of other threads to its mailbox. Any thread; nothing here blocks."""

    def __init__(self, name: str) -> None:
        self._name = name  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._state = TaskState.CREATED  # written under _lock; CREATED -> RUNNING -> one of the others
        self._cancelled = False  # written under _lock, once; read by all
        self._processor: MailboxProcessor | None = None  # written under _lock, once
        self._early: list[Callable[[MailboxProcessor], None]] = []  # guarded by _lock; sent when the task starts

    @property
    def state(self) -> TaskState:
        return self._state

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled

    @property
    def processor(self) -> MailboxProcessor:
        """The processor of a task that has started."""
        assert self._processor is not None
        return self._processor

    def stop_loop(self) -> None:
        """End the loop after the mail that runs now."""
        self.processor.all_actions_completed()

    def cancel(self) -> None:
        with self._lock:
            if self._cancelled or self._state not in (TaskState.CREATED, TaskState.RUNNING):
                return
            self._cancelled = True
        self.report_error(TaskCancelledError(f"{self._name} was cancelled"))
        if self._processor is not None:
            self._processor.all_actions_completed()  # even if a user's `except Exception` swallows the error

    def check_cancelled(self) -> None:
        if self._cancelled:
            raise TaskCancelledError(f"{self._name} was cancelled")

    def report_error(self, error: BaseException) -> None:
        def report(processor: MailboxProcessor) -> None:
            try:
                processor.report_throwable(error)
            except MailboxClosedError:
                if not isinstance(error, TaskCancelledError):
                    log.error("%s: an error after the end of the task", self._name, exc_info=error)

        self.send(report)

    def request(
        self, perform: Callable[[CheckpointRequest], None], options: MailOptions = MailOptions.DEFAULT
    ) -> Future[int]:
        """Call `perform` in a mail; the request is refused if the task ends before that."""
        request = CheckpointRequest(self._name, perform)

        def send(processor: MailboxProcessor) -> None:
            executor = processor.main_mailbox_executor
            try:
                executor.execute(request, "a checkpoint of %s", self._name, options=options)
            except RejectedExecutionError:
                request.refuse(f"the task is {self._state.name}")

        self.send(send)
        return request.future

    def send(self, action: Callable[[MailboxProcessor], None]) -> None:
        """Call `action`, which sends a mail: now, or when the task starts."""
        with self._lock:
            processor = self._processor
            if processor is None:
                self._early.append(action)
                return
        action(processor)

    def start_with(self, processor: MailboxProcessor) -> None:
        """Start the task. Mailbox thread. Raises DispatcherError if it has run before."""
        with self._lock:
            if self._state is not TaskState.CREATED:
                raise DispatcherError(f"{self._name} is {self._state.name}; a task runs once, make another one")
            self._state = TaskState.RUNNING
            self._processor = processor
            early, self._early = self._early, []
        for send in early:
            send(processor)

    def end_with(self, error: BaseException | None) -> None:
        """The task has ended. Mailbox thread."""
        with self._lock:
            if error is None:
                self._state = TaskState.FINISHED
            else:
                self._state = TaskState.CANCELED if isinstance(error, TaskCancelledError) else TaskState.FAILED
