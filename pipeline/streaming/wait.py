"""Async I/O over any iterable: `ordered_wait` and `unordered_wait`.

Threads: the caller's thread reads the input and hands out results, both of which may block. Meanwhile a task thread
runs the operator, and the function's calls have a host of their own. `exchange` holds what the two threads share.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar, Unpack

from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import host_for
from pipeline.streaming.calls.wait_operator import AsyncWaitOperator
from pipeline.streaming.errors import ForkedWaitError, describe
from pipeline.streaming.exchange import ChunkInput, ResultOutput, Wakeup
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.options import AsyncOptions, StreamOptions, takes_options, times_in_ms
from pipeline.streaming.pace import Pace
from pipeline.streaming.task.stream_task import StreamTask
from pipeline.streaming.task.task_chain import OperatorContext, OperatorFactory, StreamOperator, async_wait_operator

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
    pace: Pace | None = None,
) -> Iterator[list[Out]]:
    """Process values and yield results in chunks, as Spark tasks do.

    `chunks` is read one ahead on the caller's thread; calls continue across chunk boundaries. Each list yielded has
    `max_chunk` results, except the last: a shorter one waits for more, even while `chunks` blocks.

    `pace`: no more values are taken in than it allows. The lists have at most `max_chunk` results, and none when the
    caller is only to ask `pace` what to send.

    Raises:
        AsyncOperatorError: as `ordered_wait`. ReaderGoneError: `pace` says that the reader of the results has ended.
    """
    require_number("max_chunk", max_chunk, least=1, whole=True)
    make = _operator(function, settings, metrics)
    if pace is not None:
        return _PacedRun[In, Out](make, pace, max_chunk).results(chunks)
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
            self._start()
            while not self._is_over:
                self._check_process()
                if len(output.ready) >= output.notify_at:
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

    def _start(self) -> None:
        # Made here, because no thread made before a fork starts after it in Python 3.13.0 (python/cpython#134381).
        self._thread = threading.Thread(target=self._work, name="async wait", daemon=True)
        self._thread.start()
        _runs.add(self)

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


class _PacedRun(_Run[In, Out]):
    """An iteration that takes values in only as its results are read."""

    def __init__(self, operator: OperatorFactory, pace: Pace, max_chunk: int) -> None:
        super().__init__(self._noting(operator), chunks_ahead=1, notify_at=1, max_chunk=max_chunk)
        self._pace = pace  # caller's thread
        self._reading: Iterator[Sequence[In]] | None = None  # caller's thread; None: there is no more input
        self._chunk: Sequence[In] = ()  # caller's thread; what was read last
        self._place = 0  # caller's thread; in _chunk, of the first value that was not taken in
        self._begun = 0  # values taken in; caller's thread
        self._passed = 0  # values that have reached the operator, counted by slices; written by the mailbox thread
        self._given = 0  # results that were yielded; caller's thread
        self._input_failure: Exception | None = None  # caller's thread
        self._made: AsyncWaitOperator | None = None  # written once, by the mailbox thread

    def results(self, chunks: Iterable[Sequence[In]]) -> Iterator[list[Out]]:  # type: ignore[override]
        """Caller's thread: take in, wait and yield in turns."""
        self._reading = iter(chunks)
        output, pace = self._output, self._pace
        try:
            self._start()
            while not self._is_over:
                self._check_process()
                pace.check_reader()
                if not self._take_in():
                    output.notify_at = pace.results_wanted(self._max_chunk)
                    if len(output.ready) < output.notify_at or not pace.takes_results():
                        self._wakeup.wait(pace.wait_s())
                yield self._take() if pace.takes_results() else []
            while output.ready:
                self._check_process()
                yield self._take()
            self._raise(self._input_failure)
        finally:
            self._end()

    def _take(self) -> list[Out]:
        results = self._output.take(self._max_chunk)
        self._given += len(results)
        return results

    def _take_in(self) -> bool:
        """Take in what there is room for; False if there is none, or no more input."""
        if self._reading is None or self._input.chunks:
            return False
        held = self._made.size() if self._made is not None else 0
        room = self._pace.room(self._begun, self._passed, held, self._given + len(self._output.ready))
        if not room:
            return False
        if self._place == len(self._chunk):
            self._read(self._reading)
        taken = self._chunk[self._place : self._place + room]
        if taken:
            self._place += len(taken)
            self._begun += len(taken)
            self._input.put(itertools.chain(taken, self._end_of_slice(len(taken))))
        return True

    def _read(self, reading: Iterator[Sequence[In]]) -> None:
        self._chunk, self._place = (), 0
        try:
            self._chunk = next(reading, _NO_MORE)
        except Exception as error:
            self._pace.check_reader()  # which may be why there is no more input
            self._input_failure, self._chunk = error, _NO_MORE
        if self._chunk is _NO_MORE:
            self._reading = None
            self._input.end()

    def _end_of_slice(self, size: int) -> Iterator[In]:
        """Yields nothing. The mailbox thread reaches it when all values of a slice have been passed on."""
        self._passed += size
        yield from ()

    def _noting(self, operator: OperatorFactory) -> OperatorFactory:
        def make(context: OperatorContext) -> StreamOperator:
            made = operator(context)
            assert isinstance(made, AsyncWaitOperator)
            self._made = made
            return made

        return make


_runs: weakref.WeakSet[_Run[Any, Any]] = weakref.WeakSet()  # begun in this process; any thread adds, a fork reads


def _after_fork() -> None:
    for run in list(_runs):
        run.abandon()


os.register_at_fork(after_in_child=_after_fork)
