"""Async I/O over anything that can be iterated: `ordered_wait` and `unordered_wait`.

Threads: the caller's thread reads the input and hands out results, both of which may block. A task thread runs the
operator meanwhile, and the function's calls have a host of their own. The two sides share two deques, on each of which
one appends and the other pops, and a bell for each: who sleeps until something comes is rung awake.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dispatcher.mailbox import MailboxProcessor, ManualClock
from pipeline.streaming.async_wait import AsyncWaitOperator, OutputMode
from pipeline.streaming.call_host import CallHost
from pipeline.streaming.call_metrics import CallMetrics
from pipeline.streaming.elements import StreamElement, StreamRecord
from pipeline.streaming.error_policy import DeadLetter, OnError
from pipeline.streaming.functions import AnyFunction, is_batch_function
from pipeline.streaming.inputs import AVAILABLE, ElementOutput, InputStatus
from pipeline.streaming.rate_limit import RateLimit, RateLimiter
from pipeline.streaming.retry import RetryStrategy
from pipeline.streaming.stream_task import StreamTask
from pipeline.streaming.task_chain import OperatorContext, StreamTaskOutput

In = TypeVar("In")
Out = TypeVar("Out")

_VALUES_AHEAD: Final = 256
"""Values read ahead of the operator, when they come one by one."""
_CHUNKS_OF_RESULTS: Final = 2
"""Chunks of results that wait for the caller before the operator does."""
_LINGER_MS: Final = 5
_MORE: Final = InputStatus.MORE_AVAILABLE
_NOTHING: Final = InputStatus.NOTHING_AVAILABLE
_END: Final = InputStatus.END_OF_INPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSettings:
    """How the calls are made; each field as in AsyncWaitOperator. Pickles if what it refers to does.

    `linger_ms`: None is 5 ms. At the end of the input, retries are made in their time: the end of a partition or of a
    micro-batch is no reason to hurry.
    """

    timeout_ms: int
    capacity: int = 100
    output_mode: OutputMode = "ordered"
    retry: RetryStrategy | None = None
    on_error: OnError = "fail"
    dead_letter: DeadLetter | None = None
    rate_limit: RateLimit | RateLimiter | None = None
    concurrency: int | None = None
    dedupe_by: Callable[[Any], Any] | None = None
    remember: int = 0
    remember_ms: int | None = None
    pool_size: int | None = None
    max_batch_size: int | None = None
    linger_ms: int | None = None

    def check(self, function: AnyFunction[Any, Any] | CallHost) -> None:
        """Raise what `operator` would."""
        executor = MailboxProcessor(lambda _: None).main_mailbox_executor
        self.operator(
            function, OperatorContext(executor, ManualClock(), _nowhere, None, _nowhere, task_name="check", position=0)
        )

    def operator(
        self, function: AnyFunction[Any, Any] | CallHost, context: OperatorContext, metrics: CallMetrics | None = None
    ) -> AsyncWaitOperator:
        """The operator, as part of a task.

        Raises:
            ValueError: a setting is not possible. TypeError: `function` is no function.
        """
        return AsyncWaitOperator(
            function,
            timeout_ms=self.timeout_ms,
            capacity=self.capacity,
            output_mode=self.output_mode,
            retry=self.retry,
            on_error=self.on_error,
            dead_letter=self.dead_letter,
            rate_limit=self.rate_limit,
            concurrency=self.concurrency,
            dedupe_by=self.dedupe_by,
            remember=self.remember,
            remember_ms=self.remember_ms,
            pool_size=self.pool_size,
            max_batch_size=self.max_batch_size,
            linger_ms=(_LINGER_MS if _takes_batches(function) else 0) if self.linger_ms is None else self.linger_ms,
            retries_at_end=True,
            metrics=metrics,
            mailbox_executor=context.mailbox_executor,
            processing_time_service=context.processing_time_service,
            output=context.output,
            output_availability=context.output_availability,
        )


def ordered_wait(
    values: Iterable[In],
    function: AnyFunction[In, Out],
    *,
    timeout: float,
    capacity: int = 100,
    retry: RetryStrategy | None = None,
    on_error: OnError = "fail",
    dead_letter: DeadLetter | None = None,
    rate_limit: RateLimit | None = None,
    concurrency: int | None = None,
    dedupe_by: Callable[[In], Any] | None = None,
    remember: int = 0,
    remember_ms: int | None = None,
    pool_size: int | None = None,
    max_batch_size: int | None = None,
    linger_ms: int | None = None,
    metrics: CallMetrics | None = None,
) -> Iterator[Out]:
    """Call `function` for each value, up to `capacity` at a time, and give the results in the order of the values.

    `timeout` is in seconds, for a value with all its attempts. The other options are those of AsyncWaitOperator.
    Values are read as results are taken; a generator that is closed early gives up the calls under way.

    Raises:
        AsyncOperatorError: a call has failed, and `on_error` is "fail"; after the results before it.
        ValueError, TypeError: an option is not possible; at once.
    """
    settings = WaitSettings(
        timeout_ms=timeout_to_ms(timeout),
        capacity=capacity,
        output_mode="ordered",
        retry=retry,
        on_error=on_error,
        dead_letter=dead_letter,
        rate_limit=rate_limit,
        concurrency=concurrency,
        dedupe_by=dedupe_by,
        remember=remember,
        remember_ms=remember_ms,
        pool_size=pool_size,
        max_batch_size=max_batch_size,
        linger_ms=linger_ms,
    )
    return _wait_for_each(values, function, settings, metrics)


def unordered_wait(
    values: Iterable[In],
    function: AnyFunction[In, Out],
    *,
    timeout: float,
    capacity: int = 100,
    retry: RetryStrategy | None = None,
    on_error: OnError = "fail",
    dead_letter: DeadLetter | None = None,
    rate_limit: RateLimit | None = None,
    concurrency: int | None = None,
    dedupe_by: Callable[[In], Any] | None = None,
    remember: int = 0,
    remember_ms: int | None = None,
    pool_size: int | None = None,
    max_batch_size: int | None = None,
    linger_ms: int | None = None,
    metrics: CallMetrics | None = None,
) -> Iterator[Out]:
    """As `ordered_wait`, but the results come as the calls end: one slow call holds up no other."""
    settings = WaitSettings(
        timeout_ms=timeout_to_ms(timeout),
        capacity=capacity,
        output_mode="unordered",
        retry=retry,
        on_error=on_error,
        dead_letter=dead_letter,
        rate_limit=rate_limit,
        concurrency=concurrency,
        dedupe_by=dedupe_by,
        remember=remember,
        remember_ms=remember_ms,
        pool_size=pool_size,
        max_batch_size=max_batch_size,
        linger_ms=linger_ms,
    )
    return _wait_for_each(values, function, settings, metrics)


def timeout_to_ms(timeout: float) -> int:
    """Seconds to whole milliseconds, at least 1.

    Raises:
        ValueError: it is not positive.
    """
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout}; give the seconds that a value with all its attempts may take, above 0")
    return max(1, round(timeout * 1000))


def wait_in_chunks(
    chunks: Iterable[Sequence[In]],
    function: AnyFunction[In, Out] | CallHost,
    settings: WaitSettings,
    *,
    max_chunk: int = 1000,
    metrics: CallMetrics | None = None,
) -> Iterator[list[Out]]:
    """Values in, results out, many at a time: what Spark tasks are made of.

    `chunks` is read one ahead on the caller's thread; the calls go on across its chunks. Each list that is given has
    `max_chunk` results, but for the last.

    Raises:
        AsyncOperatorError: as `ordered_wait`.
    """
    if max_chunk < 1:
        raise ValueError(f"max_chunk is {max_chunk}; a list of results has room for 1 at least")
    settings.check(function)
    run: _Run[In, Out] = _Run(function, settings, metrics, chunks_ahead=1, ring_at=max_chunk, max_chunk=max_chunk)
    return run.results(chunks)


def _wait_for_each(
    values: Iterable[In], function: AnyFunction[In, Out], settings: WaitSettings, metrics: CallMetrics | None
) -> Iterator[Out]:
    settings.check(function)
    run: _Run[In, Out] = _Run(function, settings, metrics, chunks_ahead=_VALUES_AHEAD, ring_at=1, max_chunk=1000)

    def each() -> Iterator[Out]:
        for results in run.results((value,) for value in values):
            yield from results

    return each()


def _takes_batches(function: AnyFunction[Any, Any] | CallHost) -> bool:
    return function.is_batch if isinstance(function, CallHost) else is_batch_function(function)


def _nowhere(_: object) -> None:
    pass


class _Bell:
    """Wakes one thread. Any number of rings before it looks are one."""

    __slots__ = ("_is_rung", "_wakes")

    def __init__(self) -> None:
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Cleared by the sleeper before it looks at what there is, read by ringers after they have brought something.
        self._is_rung = False

    def ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            self._wakes.put(None)

    def sleep(self) -> None:
        """Until the bell is rung, or at once if it has been since the last time; then look at everything."""
        self._wakes.get()
        self._is_rung = False


class _ChunkInput(Generic[In]):
    """The task's input: the values of the chunks that the caller has brought."""

    def __init__(self, ahead: int, caller: _Bell) -> None:
        self.chunks: deque[Iterable[In]] = deque()  # the caller appends, the mailbox thread pops; both are atomic
        self._room_at = ahead // 2
        self._caller = caller
        self._values: Iterator[In] = iter(())  # mailbox thread only
        self._lock = threading.Lock()  # leaf lock
        self._is_ended = False  # guarded by _lock
        self._waiting: Future[None] | None = None  # guarded by _lock; the mailbox thread found nothing

    def put(self, chunk: Iterable[In]) -> None:
        """Caller's thread."""
        self.chunks.append(chunk)
        # Without the lock: the mailbox thread sets it, under the lock, only if it finds no chunk after that.
        if self._waiting is not None:
            self._wake()

    def end(self) -> None:
        """Caller's thread: no more chunks."""
        with self._lock:
            self._is_ended = True
        self._wake()

    def emit_next(self, output: ElementOutput, /) -> InputStatus:
        for value in self._values:
            output(StreamRecord(value))
            return _MORE
        chunks = self.chunks
        if not chunks:
            # In this order: what is put before the end is seen after it.
            return _END if self._is_ended and not chunks else _NOTHING
        self._values = iter(chunks.popleft())
        if len(chunks) == self._room_at:
            self._caller.ring()
        return _MORE

    def available(self) -> Future[None]:
        with self._lock:
            if self._is_ended:
                return AVAILABLE
            waiting = self._waiting = Future()
        if self.chunks:
            self._wake()
        return waiting

    def snapshot_state(self) -> Any:
        raise NotImplementedError("values that are iterated are not checkpointed")

    def initialize_state(self, state: Any, /) -> None:
        raise NotImplementedError("values that are iterated are not checkpointed")

    def close(self) -> None:
        pass

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set_result(None)


class _ResultOutput(StreamTaskOutput, Generic[Out]):
    """The task's output: results that the caller has not taken yet."""

    def __init__(self, ring_at: int, most: int, caller: _Bell) -> None:
        self.ready: deque[Out] = deque()  # the mailbox thread appends, the caller pops; both are atomic
        self._ring_at = ring_at
        self._most = most
        self._caller = caller
        self._lock = threading.Lock()  # leaf lock
        self._room: Future[None] | None = None  # guarded by _lock; the mailbox thread waits until there is room

    def __call__(self, element: StreamElement[Any]) -> None:
        if type(element) is StreamRecord:
            ready = self.ready
            ready.append(element.value)
            if len(ready) >= self._ring_at:
                self._caller.ring()

    def is_available(self) -> bool:
        return len(self.ready) < self._most

    def available_future(self) -> Future[None] | None:
        if len(self.ready) < self._most:
            return None
        with self._lock:
            room = self._room = self._room or Future()
        if len(self.ready) < self._most:  # taken in between, by a caller that saw nobody waiting
            self.make_room()
        return room

    def take(self, most: int) -> list[Out]:
        """Caller's thread: up to that many results."""
        ready = self.ready
        taken = [ready.popleft() for _ in range(min(len(ready), most))]
        # Without the lock: who waits looks at what is ready once more after that.
        if self._room is not None and len(ready) < self._most:
            self.make_room()
        return taken

    def make_room(self) -> None:
        """Any thread: end the wait of the mailbox thread, if it waits."""
        with self._lock:
            room, self._room = self._room, None
        if room is not None:
            room.set_result(None)


class _Run(Generic[In, Out]):
    """One iteration: its task, and what both sides share."""

    def __init__(
        self,
        function: AnyFunction[In, Out] | CallHost,
        settings: WaitSettings,
        metrics: CallMetrics | None,
        *,
        chunks_ahead: int,
        ring_at: int,
        max_chunk: int,
    ) -> None:
        self._bell = _Bell()
        self._chunks_ahead = chunks_ahead
        self._ring_at = ring_at
        self._max_chunk = max_chunk
        self._failure: BaseException | None = None  # written by the task's thread before _is_over
        self._is_over = False  # written by the task's thread, once
        self._input: _ChunkInput[In] = _ChunkInput(chunks_ahead, self._bell)
        self._output: _ResultOutput[Out] = _ResultOutput(ring_at, max_chunk * _CHUNKS_OF_RESULTS, self._bell)
        self._task = StreamTask(
            self._input,
            lambda context: settings.operator(function, context, metrics),
            self._output,
            name="async wait",
        )
        self._thread = threading.Thread(target=self._work, name="async wait", daemon=True)

    def results(self, chunks: Iterable[Iterable[In]]) -> Iterator[list[Out]]:
        """Caller's thread: read, hand out, wait, in turns."""
        self._thread.start()
        reading: Iterator[Iterable[In]] | None = iter(chunks)
        output, task_input = self._output, self._input
        try:
            while not self._is_over:
                if len(output.ready) >= self._ring_at:
                    yield output.take(self._max_chunk)
                elif reading is not None and len(task_input.chunks) < self._chunks_ahead:
                    chunk = next(reading, None)
                    if chunk is None:
                        reading = None
                        task_input.end()
                    else:
                        task_input.put(chunk)
                else:
                    self._bell.sleep()
            while output.ready:
                yield output.take(self._max_chunk)
            if self._failure is not None:
                raise self._failure
        finally:
            self._task.cancel()
            self._thread.join()

    def _work(self) -> None:
        """The task's thread."""
        try:
            self._task.run()
        except BaseException as error:
            self._failure = error
        finally:
            self._is_over = True
            self._bell.ring()
