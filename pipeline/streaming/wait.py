"""Async I/O over any iterable: `ordered_wait` and `unordered_wait`.

Threads: the caller's thread reads the input and hands out results, both of which may block. Meanwhile a task thread
runs the operator, and the function's calls have a host of their own. The two threads exchange chunks of values one way,
results the other. Each side appends to one deque and pops from the other. A side that finds nothing sleeps until it is
woken: the caller by a Wakeup, the mailbox thread by the futures of its input and output.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar, Unpack

from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import host_for
from pipeline.streaming.elements import StreamElement, StreamRecord
from pipeline.streaming.errors import ForkedWaitError, describe
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.options import AsyncOptions, StreamOptions, takes_options, times_in_ms
from pipeline.streaming.task.inputs import AVAILABLE, END, MORE, NOTHING, ElementOutput, InputStatus
from pipeline.streaming.task.stream_task import StreamTask
from pipeline.streaming.task.task_chain import OperatorFactory, StreamTaskOutput, async_wait_operator

In = TypeVar("In")
Out = TypeVar("Out")

_VALUES_AHEAD: Final = 256
"""Values read ahead of the operator when they arrive one by one."""
_CHUNKS_OF_RESULTS: Final = 2
"""Chunks of results buffered before the operator waits for the caller."""
_LINGER_MS: Final = 5
_READ_AHEAD: Final = 4
"""A fourth of the calls under way is read ahead, so that no call waits for a thread to wake up."""
_NO_MORE: Final[list[Any]] = []
"""Sentinel in place of a chunk, compared by identity."""

WaitSettings = AsyncOptions
"""Alias for the options of `wait_in_chunks`."""


@takes_options(StreamOptions)
def ordered_wait(
    values: Iterable[In],
    function: AnyFunction[In, Any],
    *,
    timeout: float,
    deadline: float | None = None,
    metrics: CallMetrics | None = None,
    **options: Unpack[StreamOptions],
) -> Iterator[Any]:
    """Call `function` for each value, up to `concurrency` at a time; yield the results in the order of the values.

    `timeout`: seconds for a value with all its attempts, from the start of its first call. `deadline`: seconds from
    when the value was taken in. For the other options see AsyncOptions; a fourth of the calls is read ahead.

    Values are read on the thread that takes the results: while `values` blocks, calls continue, and their results
    follow later. Closing the generator early gives up the calls under way; it waits up to 10 seconds for a blocking
    call to return. At the end of the input, retries keep their delays.

    Raises:
        AsyncOperatorError: a call has failed, and `on_error` is "fail"; raised after the results before it.
        Exception: what `values` raised, after the results of all values before it.
        ForkedWaitError: this process is a fork of the one that began to read the results.
        ValueError, TypeError: an option is invalid; raised at once.
    """
    settings = AsyncOptions(**times_in_ms(timeout, deadline), **options)
    return _wait_for_each(values, function, settings, metrics)


@takes_options(StreamOptions)
def unordered_wait(
    values: Iterable[In],
    function: AnyFunction[In, Any],
    *,
    timeout: float,
    deadline: float | None = None,
    metrics: CallMetrics | None = None,
    **options: Unpack[StreamOptions],
) -> Iterator[Any]:
    """As `ordered_wait`, but results are yielded as calls end: a slow call does not hold up others."""
    settings = AsyncOptions(**times_in_ms(timeout, deadline), output_mode="unordered", **options)
    return _wait_for_each(values, function, settings, metrics)


def wait_in_chunks(
    chunks: Iterable[Sequence[In]],
    function: AnyFunction[In, Out] | CallHost,
    settings: AsyncOptions,
    *,
    max_chunk: int = 1000,
    metrics: CallMetrics | None = None,
) -> Iterator[list[Out]]:
    """Process values and yield results in chunks, as Spark tasks do.

    `chunks` is read one ahead on the caller's thread; calls continue across chunk boundaries. Each list yielded has
    `max_chunk` results, except the last: a shorter one waits for more, even while `chunks` blocks.

    Raises:
        AsyncOperatorError: as `ordered_wait`.
    """
    require_number("max_chunk", max_chunk, least=1, whole=True)
    make = _operator(function, settings, metrics)
    run: _Run[In, Out] = _Run(make, chunks_ahead=1, notify_at=max_chunk, max_chunk=max_chunk)
    return run.results(chunks)


def _wait_for_each(
    values: Iterable[In], function: AnyFunction[In, Any], settings: AsyncOptions, metrics: CallMetrics | None
) -> Iterator[Any]:
    make = _operator(function, settings, metrics)
    run: _Run[In, Any] = _Run(make, chunks_ahead=_VALUES_AHEAD, notify_at=1, max_chunk=1000)

    def each() -> Iterator[Any]:
        for results in run.results((value,) for value in values):
            run.handed_out = results
            yield from results

    return each()


def _operator(
    function: AnyFunction[Any, Any] | CallHost, options: AsyncOptions, metrics: CallMetrics | None
) -> OperatorFactory:
    # Only a partition or a micro-batch ends here, so retries keep their delays.
    is_batch = host_for(function, options).is_batch
    holds_calls = options.rate_limit is not None or is_batch
    options = replace(
        options,
        retries_at_end=True,
        read_ahead=0 if holds_calls else options.most_calls // _READ_AHEAD,
        linger_ms=_LINGER_MS if is_batch and options.linger_ms is None else options.linger_ms,
    )
    return async_wait_operator(function, metrics=metrics, name="async wait", **options.arguments())


class _Run(Generic[In, Out]):
    """One iteration: its task, and the state that both threads share."""

    def __init__(self, operator: OperatorFactory, *, chunks_ahead: int, notify_at: int, max_chunk: int) -> None:
        self._wakeup = Wakeup()
        self._chunks_ahead = chunks_ahead
        self._notify_at = notify_at
        self._max_chunk = max_chunk
        self.handed_out: list[Out] = []  # results that the caller is being given one by one; caller's thread
        self._is_forked = False  # begun in the parent of this process; written at the fork
        self._failure: BaseException | None = None  # written by the task's thread before _is_over
        self._is_over = False  # written by the task's thread, once
        self._input: ChunkInput[In] = ChunkInput(chunks_ahead, self._wakeup)
        self._output: ResultOutput[Out] = ResultOutput(notify_at, max_chunk * _CHUNKS_OF_RESULTS, self._wakeup)
        self._task = StreamTask(self._input, operator, self._output, name="async wait")
        self._thread: threading.Thread | None = None  # the task's; set by the caller's thread when it starts it

    def results(self, chunks: Iterable[Iterable[In]]) -> Iterator[list[Out]]:
        """Caller's thread: read, yield and wait in turns. If the input fails, that is raised after its results."""
        reading: Iterator[Iterable[In]] | None = iter(chunks)
        input_failure: Exception | None = None
        output, task_input = self._output, self._input
        try:
            # Made here, because no thread made before a fork starts after it in Python 3.13.0 (python/cpython#134381).
            self._thread = threading.Thread(target=self._work, name="async wait", daemon=True)
            self._thread.start()
            _runs.add(self)
            while not self._is_over:
                self._check_process()
                if len(output.ready) >= self._notify_at:
                    yield output.take(self._max_chunk)
                elif reading is not None and len(task_input.chunks) < self._chunks_ahead:
                    try:
                        chunk = next(reading, _NO_MORE)
                    except Exception as error:
                        input_failure, chunk = error, _NO_MORE
                    if chunk is _NO_MORE:
                        reading = None
                        task_input.end()
                    else:
                        task_input.put(chunk)
                else:
                    self._wakeup.wait()
            while output.ready:
                self._check_process()
                yield output.take(self._max_chunk)
            self._raise(input_failure)
        finally:
            self._end()

    def _raise(self, input_failure: Exception | None) -> None:
        """Raise what ended the run, if anything did; a failed call comes before the end of the input."""
        if self._failure is not None:
            if input_failure is not None:
                self._failure.add_note(f"The input failed, too: {describe(input_failure)}")
            raise self._failure
        if input_failure is not None:
            raise input_failure

    def _check_process(self) -> None:
        if self._is_forked:
            raise ForkedWaitError

    def _end(self) -> None:
        if self._is_forked:
            return  # the task and its thread are in the parent
        self._task.cancel()
        # None, or not started: a KeyboardInterrupt may have come before that.
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()

    def abandon(self) -> None:
        """In a forked child, whose only thread calls this: what is left of the results is given in the parent."""
        self._is_forked = True
        self.handed_out.clear()

    def _work(self) -> None:
        """The task's thread."""
        try:
            self._task.run()
        except BaseException as error:
            self._failure = error
        finally:
            self._is_over = True
            self._wakeup.notify()


_runs: weakref.WeakSet[_Run[Any, Any]] = weakref.WeakSet()  # begun in this process; any thread adds, a fork reads


def _after_fork() -> None:
    for run in list(_runs):
        run.abandon()


os.register_at_fork(after_in_child=_after_fork)


class Wakeup:
    """Wakes one thread. Notifications before the thread wakes count as one."""

    __slots__ = ("_is_notified", "_wakes")

    def __init__(self) -> None:
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Cleared by the waiter before it checks for work, read by notifiers after they have added some.
        self._is_notified = False

    def notify(self) -> None:
        if not self._is_notified:
            self._is_notified = True
            self._wakes.put(None)

    def wait(self) -> None:
        """Block until the next notification, or return at once if one came since the last wait; then check for work."""
        self._wakes.get()
        self._is_notified = False


class ChunkInput(Generic[In]):
    """The task's input: the values of the caller's chunks."""

    def __init__(self, ahead: int, caller: Wakeup) -> None:
        self.chunks: deque[Iterable[In]] = deque()  # the caller appends, the mailbox thread pops; both are atomic
        self._room_at = ahead // 2  # never changes
        self._caller = caller  # never changes
        self._values: Iterator[In] = iter(())  # mailbox thread only
        self._lock = threading.Lock()  # leaf lock
        self._is_ended = False  # guarded by _lock
        self._waiting: Future[None] | None = None  # guarded by _lock; the mailbox thread found nothing

    def put(self, chunk: Iterable[In]) -> None:
        """Caller's thread."""
        self.chunks.append(chunk)
        # Read without the lock: the mailbox thread sets it under the lock, and checks for chunks after that.
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
            return MORE
        chunks = self.chunks
        if not chunks:
            # In this order: a chunk put before the end is seen.
            return END if self._is_ended and not chunks else NOTHING
        self._values = iter(chunks.popleft())
        if len(chunks) == self._room_at:
            self._caller.notify()
        return MORE

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


class ResultOutput(StreamTaskOutput, Generic[Out]):
    """The task's output: results that the caller has not taken yet."""

    def __init__(self, notify_at: int, most: int, caller: Wakeup) -> None:
        self.ready: deque[Out] = deque()  # the mailbox thread appends, the caller pops; both are atomic
        self._notify_at = notify_at  # never changes
        self._most = most  # never changes
        self._caller = caller  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._room: Future[None] | None = None  # guarded by _lock; the mailbox thread waits until there is room

    def __call__(self, element: StreamElement[Any]) -> None:
        if type(element) is StreamRecord:
            ready = self.ready
            ready.append(element.value)
            if len(ready) >= self._notify_at:
                self._caller.notify()

    def is_available(self) -> bool:
        return len(self.ready) < self._most

    def available_future(self) -> Future[None] | None:
        if len(self.ready) < self._most:
            return None
        with self._lock:
            room = self._room = self._room or Future()
        if len(self.ready) < self._most:  # the caller took results before it could see _room
            self.make_room()
        return room

    def take(self, most: int) -> list[Out]:
        """Caller's thread: take up to `most` results."""
        ready = self.ready
        taken = [ready.popleft() for _ in range(min(len(ready), most))]
        # Read without the lock: the mailbox thread checks `ready` again after it sets _room.
        if self._room is not None and len(ready) < self._most:
            self.make_room()
        return taken

    def make_room(self) -> None:
        """Any thread: wake the mailbox thread if it waits for room."""
        with self._lock:
            room, self._room = self._room, None
        if room is not None:
            room.set_result(None)
