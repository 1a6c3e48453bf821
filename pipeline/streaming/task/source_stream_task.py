"""A task whose input is a blocking source on a thread of its own, after Flink's SourceStreamTask.

Threads: the source's `run` is called on the source thread. The elements it collects go into a bounded queue, which the
mailbox thread reads. So operators stay on the mailbox thread, and a source that is too fast waits in `collect`.

A checkpoint holds the source's position and the queued elements, both taken outside the source's atomic blocks.

Life cycle: the source runs from when the operators are open until it returns, raises or is cancelled. `cancel` is
called once: when the task is cancelled, has failed, or stops with a savepoint. In the first two cases the source is
interrupted as well, as far as Python can: every call of its context raises SourceInterruptedError.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Generic, Protocol, TypeVar, Unpack

from dispatcher.mailbox import MailboxProcessor
from pipeline.streaming.elements import StreamRecord, Watermark
from pipeline.streaming.errors import CheckpointError, SourceInterruptedError, TaskCancelledError
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.task.inputs import ElementOutput, QueueInput
from pipeline.streaming.task.stream_task import StreamTask, TaskOptions
from pipeline.streaming.task.task_chain import OperatorFactory, StreamTaskOutput
from pipeline.streaming.task.task_control import FinishingReason

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WATERMARK: Final = Watermark(2**63 - 1)
"""The watermark at the end of a source, which ends every wait for an event time."""


class SourceContext(Generic[T]):
    """The methods for a source's `run`. Call them only on the source thread."""

    def __init__(self, queue: QueueInput[T]) -> None:
        self._queue = queue  # never changes
        self._stop = threading.Event()  # set by the thread that stops the source
        self._interrupt: Callable[[], BaseException] | None = None  # written before _stop is set

    def collect(self, value: T, timestamp_ms: int | None = None) -> None:
        """Emit a record, waiting while the queue is full.

        Raises:
            SourceInterruptedError: the task was cancelled, or has failed. The record was not kept.
        """
        self._queue.put(StreamRecord(value, timestamp_ms))

    def emit_watermark(self, watermark: Watermark) -> None:
        """Emit a watermark, as `collect` does a record."""
        self._queue.put(watermark)

    @property
    def checkpoint_lock(self) -> AbstractContextManager[None]:
        """Hold this to keep a checkpoint from being taken. Collect a record and note its position in one `with` block:

            with ctx.checkpoint_lock:
                ctx.collect(line)
                self.position += 1

        Entering it waits while the queue is full. A `collect` inside doesn't.
        """
        return self._queue.atomically()

    @property
    def is_stopping(self) -> bool:
        """Whether the source's `cancel` was called or is being called."""
        return self._stop.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait `timeout` seconds or until the source must stop, and return whether it must. Use it in place of sleep.

        Raises:
            SourceInterruptedError: as `collect`.
        """
        is_stopping = self._stop.wait(timeout)
        if self._interrupt is not None:
            raise self._interrupt()
        return is_stopping

    def _stop_now(self, interrupt: Callable[[], BaseException] | None) -> None:
        """Any thread."""
        if interrupt is not None:
            self._interrupt = interrupt
            self._queue.interrupt(interrupt)
        self._stop.set()


class Source(Protocol):
    """Produces the records of a SourceStreamTask.

    If your source can resume from a position, add two methods. `snapshot_state()` returns the position. It's called on
    the mailbox thread under the checkpoint lock, so it must not wait for a lock that `run` holds while collecting.
    `initialize_state(state)` gets the position before `run`, if there's a checkpoint. You can also add `close()`, which
    is called on the mailbox thread at the end of the task.
    """

    def run(self, ctx: SourceContext[Any], /) -> None:
        """Collect records until there are no more or `cancel` is called. Runs on the source thread, and can block."""

    def cancel(self) -> None:
        """Make `run` return soon. Called no more than once, from any thread, possibly before `run`."""


class _SourceInput(QueueInput[Any]):
    """The queue between the threads, and the source's position."""

    def __init__(self, source: Source, capacity: int) -> None:
        super().__init__(capacity)
        self._source = source  # never changes

    def snapshot_state(self) -> Any:
        queued, position = self.snapshot_with(getattr(self._source, "snapshot_state", lambda: None))
        return {"source": position, "queued": queued}

    def initialize_state(self, state: Any, /) -> None:
        if type(state) is not dict:
            raise CheckpointError(f"the input is a source, and its state is {state!r}: another kind of input took it")
        super().initialize_state(state["queued"])
        initialize = getattr(self._source, "initialize_state", None)
        if initialize is not None:
            initialize(state["source"])

    def close(self) -> None:
        super().close()
        close = getattr(self._source, "close", None)
        if close is not None:
            close()


class SourceStreamTask(StreamTask):
    """A StreamTask that runs `source` on a separate thread.

    `queue_capacity`: how many elements the source can be ahead of the operators.
    `stop_timeout`: seconds for an ending task to wait for its source. After that, it's left on its daemon thread, with
        an error in the log.

    For the rest see StreamTask. At the end of the source, a MAX_WATERMARK passes through the operators before they end.
    """

    def __init__(
        self,
        source: Source,
        operators: OperatorFactory | Sequence[OperatorFactory],
        output: StreamTaskOutput | ElementOutput,
        *,
        queue_capacity: int = 1000,
        stop_timeout: float = 10.0,
        **options: Unpack[TaskOptions],
    ) -> None:
        require_number("queue_capacity", queue_capacity, least=1, whole=True)
        require_number("stop_timeout", stop_timeout, least=0)
        queue = _SourceInput(source, queue_capacity)
        options.setdefault("name", "source stream task")
        super().__init__(queue, operators, output, **options)
        self._source = source  # never changes
        self._queue = queue  # never changes
        self._context: SourceContext[Any] = SourceContext(queue)  # never changes
        self._stop_timeout = stop_timeout  # never changes
        self._cancel_once = threading.Lock()  # acquired by the thread that calls the source's cancel, never released
        self._thread: threading.Thread | None = None  # mailbox thread only
        self._completion: Future[None] = Future()  # of the source's run; the source thread completes it

    def cancel(self) -> None:
        """Cancel the task as StreamTask.cancel does, and the source, once, and interrupt it."""
        super().cancel()
        if self.is_cancelled:
            self._cancel_source(lambda: SourceInterruptedError(f"{self.name} was cancelled"))

    def _prepare(self, processor: MailboxProcessor) -> None:
        super()._prepare(processor)
        self._completion.add_done_callback(self._on_source_ended)
        thread = threading.Thread(target=self._run_source, name=f"{self.name} source", daemon=True)
        thread.start()
        self._thread = thread

    def _run_source(self) -> None:
        try:
            if not self._context.is_stopping:
                self._source.run(self._context)
        except BaseException as error:
            self._completion.set_exception(error)
        else:
            self._completion.set_result(None)

    def _on_source_ended(self, completion: Future[None]) -> None:
        # On the source thread.
        error = completion.exception()
        if error is None:
            self._queue.end()  # the mailbox thread reads what is left, and then sees the end
            # The reason was written before the source was cancelled.
            if self._reason is FinishingReason.STOP_WITH_SAVEPOINT_NO_DRAIN:
                self._control.stop_loop()
        elif self.is_cancelled and _was_interrupted(error):
            cancelled = TaskCancelledError(f"{self.name} was cancelled")
            cancelled.__cause__ = error
            self.report_error(cancelled)
        else:
            self.report_error(error)

    def _stop_reading(self) -> None:
        """Cancel the source; once it has ended, queued elements are processed or become part of the savepoint."""
        self._cancel_source(None)

    def _end_of_data(self, feed: ElementOutput) -> None:
        feed(MAX_WATERMARK)

    def _clean_up(self, processor: MailboxProcessor, failure: BaseException | None) -> None:
        try:
            self._stop_source()
        finally:
            super()._clean_up(processor, failure)

    def _stop_source(self) -> None:
        """End the source before the objects that it uses are closed."""
        thread = self._thread
        if thread is None:
            with suppress(InvalidStateError):
                self._completion.set_result(None)
            return
        if not self._completion.done():
            try:
                self._cancel_source(lambda: SourceInterruptedError(f"{self.name} has ended"))
            except Exception:
                log.exception("%s: the source's cancel failed", self.name)
        thread.join(self._stop_timeout)
        if thread.is_alive():
            log.error(
                "%s: the source did not return within %s s and is left behind on thread %s. "
                "Its cancel() must end whatever its run() waits for.",
                self.name,
                self._stop_timeout,
                thread.name,
            )

    def _cancel_source(self, interrupt: Callable[[], BaseException] | None) -> None:
        """Call the source's `cancel` unless it was called before; then interrupt it, if `interrupt` is given."""
        try:
            if self._cancel_once.acquire(blocking=False):
                self._context._stop_now(None)
                self._source.cancel()
        finally:
            if interrupt is not None:
                self._context._stop_now(interrupt)


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether a SourceInterruptedError is in the chain of causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, SourceInterruptedError):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
