"""When a running task takes checkpoints, after Flink's SubtaskCheckpointCoordinator.

Threads: the mailbox thread collects and serializes the state between two mails, so it is consistent. A thread of its
own writes it to the disk while the task continues, and reports the outcome by a mail of the highest priority.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor

from dispatcher.errors import RejectedExecutionError
from dispatcher.mailbox import (
    MAX_PRIORITY,
    MailboxExecutor,
    MailboxProcessor,
    MailboxTimeService,
)
from dispatcher.mailbox.timer_queue import TimerService
from pipeline.streaming.errors import CheckpointError
from pipeline.streaming.task.checkpoints import Checkpoint, CheckpointStorage

log: logging.Logger = logging.getLogger(__name__)

TakeCheckpoint = Callable[[int, bool, bool], Checkpoint]
"""Collects a task's state, given the checkpoint's id, whether it is a savepoint, and whether the task has ended."""


class CheckpointRequest:
    """A mail's runnable that takes a checkpoint; its future has the id or the error. A closing mailbox cancels it."""

    def __init__(self, task: str, perform: Callable[[CheckpointRequest], None]) -> None:
        self._task = task
        self._perform = perform
        self.future: Future[int] = Future()
        self.future.set_running_or_notify_cancel()  # not cancellable by the requester: the work may have begun

    def __call__(self) -> None:
        self._perform(self)

    def cancel(self) -> bool:
        return self.refuse("the task ended before it was taken")

    def refuse(self, why: str) -> bool:
        """Fail the future; False if it was already done."""
        try:
            self.future.set_exception(CheckpointError(f"{self._task}: no checkpoint: {why}"))
        except InvalidStateError:
            return False
        return True


class _Notice:
    """A mail's runnable with the outcome of a write. If the task ends first, it only completes the future."""

    def __init__(
        self, checkpoints: TaskCheckpoints, checkpoint_id: int, failure: Exception | None, future: Future[int]
    ) -> None:
        self._checkpoints = checkpoints
        self._outcome = checkpoint_id, failure, future

    def __call__(self) -> None:
        self._checkpoints._on_written(*self._outcome)

    def cancel(self) -> bool:
        checkpoint_id, failure, future = self._outcome
        if failure is None:
            future.set_result(checkpoint_id)
        else:
            future.set_exception(self._checkpoints._error(checkpoint_id, failure))
        return True


class TaskCheckpoints:
    """The checkpoints of one run of a task. Mailbox thread only, except where marked.

    More than `tolerable_failures` consecutive failures fail the task.
    """

    def __init__(
        self,
        storage: CheckpointStorage | None,
        take: TakeCheckpoint,
        notify: Callable[[int], None],
        *,
        processor: MailboxProcessor,
        time_service: TimerService,
        interval_ms: int | None,
        tolerable_failures: int,
        task_name: str,
    ) -> None:
        self._storage = storage
        self._take = take
        self._notify = notify
        self._interval_ms = interval_ms
        self._tolerable_failures = tolerable_failures
        self._task_name = task_name
        self._notices: MailboxExecutor = processor.mailbox_executor(MAX_PRIORITY)  # any thread
        self._timers = MailboxTimeService(time_service, processor.main_mailbox_executor)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"{task_name}-checkpoints")  # any thread
        self._next_id = storage.next_id() if storage is not None else 1
        self._under_way = 0  # taken, with the outcome of the write outstanding
        self._failures = 0  # consecutive

    def start_periodic(self) -> None:
        """Take a checkpoint every `interval_ms` of processing time, unless the last one is still being written."""
        if self._interval_ms is not None:
            self._register_timer(self._interval_ms)

    def perform(self, future: Future[int]) -> None:
        """Take a checkpoint now; the writer stores it and completes `future`, on the mailbox thread while that runs."""
        storage = self._storage
        if storage is None:
            why = "the task has no checkpoint_storage. Pass one to its constructor."
            future.set_exception(CheckpointError(f"{self._task_name}: no checkpoint: {why}"))
            return
        checkpoint_id = self._claim_id()
        try:
            data = storage.encode(self._take(checkpoint_id, False, False))
        except Exception as error:
            self._fail(checkpoint_id, error, future)
            return
        except BaseException as error:  # KeyboardInterrupt ends the task; its caller must not wait forever
            future.set_exception(error)
            raise
        self._under_way += 1
        self._writer.submit(self._write, storage, checkpoint_id, data, future)

    def perform_last(self, *, is_savepoint: bool, is_finished: bool) -> int | None:
        """Take and write a checkpoint after all others, and notify the operators; None without a storage.

        Raises:
            CheckpointError: it failed.
        """
        self._writer.shutdown(wait=True)
        if self._storage is None:
            return None
        checkpoint_id = self._claim_id()
        try:
            data = self._storage.encode(self._take(checkpoint_id, is_savepoint, is_finished))
            self._storage.write(checkpoint_id, data, is_savepoint=is_savepoint)
        except Exception as error:
            raise self._error(checkpoint_id, error) from error
        self._notify(checkpoint_id)
        return checkpoint_id

    def quiesce(self) -> None:
        """Take no more periodic checkpoints."""
        self._timers.quiesce()

    def close(self) -> None:
        """Wait for pending writes, so that the next run of the task has the folder to itself."""
        self._writer.shutdown(wait=True)

    def _claim_id(self) -> int:
        checkpoint_id = self._next_id
        self._next_id += 1
        return checkpoint_id

    def _register_timer(self, interval_ms: int) -> None:
        # One timer at a time: a task that was held up does not make up for missed checkpoints.
        due_ms = self._timers.current_processing_time() + interval_ms
        self._timers.register_timer(due_ms, lambda _: self._on_timer(interval_ms))

    def _on_timer(self, interval_ms: int) -> None:
        self._register_timer(interval_ms)
        if self._under_way == 0:
            self.perform(Future())

    def _write(self, storage: CheckpointStorage, checkpoint_id: int, data: bytes, future: Future[int]) -> None:
        # On the writer's thread.
        failure: Exception | None = None
        try:
            storage.write(checkpoint_id, data)
        except Exception as error:
            failure = error
        notice = _Notice(self, checkpoint_id, failure, future)
        try:
            self._notices.execute(notice, "checkpoint %s is written", checkpoint_id)
        except RejectedExecutionError:
            notice.cancel()

    def _on_written(self, checkpoint_id: int, failure: Exception | None, future: Future[int]) -> None:
        self._under_way -= 1
        if failure is not None:
            self._fail(checkpoint_id, failure, future)
            return
        self._failures = 0
        log.debug("%s: checkpoint %s is complete", self._task_name, checkpoint_id)
        future.set_result(checkpoint_id)
        self._notify(checkpoint_id)

    def _fail(self, checkpoint_id: int, cause: Exception, future: Future[int]) -> None:
        """Fail the future, and also the task if there are too many consecutive failures."""
        self._failures += 1
        error = self._error(checkpoint_id, cause)
        future.set_exception(error)
        if self._failures > self._tolerable_failures:
            raise error from cause
        log.warning("%s (%s failures in a row)", error, self._failures, exc_info=cause)

    def _error(self, checkpoint_id: int, cause: Exception) -> CheckpointError:
        error = CheckpointError(f"{self._task_name}: checkpoint {checkpoint_id} failed: {cause}")
        error.__cause__ = cause
        return error
