"""Async I/O over any iterable: `ordered_wait` and `unordered_wait`.

Threads: the caller's thread reads the input and hands out results, both of which may block. Meanwhile a task thread
runs the operator, and the function's calls have a host of their own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar, Unpack

from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import host_for
from pipeline.streaming.exchange import ChunkInput, ResultOutput, Wakeup
from pipeline.streaming.options import AsyncOptions, StreamOptions, takes_options
from pipeline.streaming.task.stream_task import StreamTask
from pipeline.streaming.task.task_chain import OperatorFactory, async_wait_operator

In = TypeVar("In")
Out = TypeVar("Out")

_VALUES_AHEAD: Final = 256
"""Values read ahead of the operator when they arrive one by one."""
_CHUNKS_OF_RESULTS: Final = 2
"""Chunks of results buffered before the operator waits for the caller."""
_LINGER_MS: Final = 5
_READ_AHEAD: Final = 4
"""This fraction of the capacity, a fourth, is read ahead, so that no call waits for a thread to wake up."""
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
    metrics: CallMetrics | None = None,
    **options: Unpack[StreamOptions],
) -> Iterator[Any]:
    """Call `function` for each value, up to `capacity` at a time, and yield the results in the order of the values.

    `timeout`: seconds for a value with all its attempts. For the other options see AsyncOptions; a fourth of the
    capacity is read ahead. Values are read on the thread that takes the results: while `values` blocks, calls continue,
    and their results follow later. Closing the generator early gives up the calls under way; it waits up to 10 seconds
    for a blocking call to return. At the end of the input, retries keep their delays.

    Raises:
        AsyncOperatorError: a call has failed, and `on_error` is "fail"; raised after the results before it.
        ValueError, TypeError: an option is invalid; raised at once.
    """
    settings = AsyncOptions(timeout_ms=timeout_to_ms(timeout), **options)
    return _wait_for_each(values, function, settings, metrics)


@takes_options(StreamOptions)
def unordered_wait(
    values: Iterable[In],
    function: AnyFunction[In, Any],
    *,
    timeout: float,
    metrics: CallMetrics | None = None,
    **options: Unpack[StreamOptions],
) -> Iterator[Any]:
    """As `ordered_wait`, but results are yielded as calls end: a slow call does not hold up others."""
    settings = AsyncOptions(timeout_ms=timeout_to_ms(timeout), output_mode="unordered", **options)
    return _wait_for_each(values, function, settings, metrics)


def timeout_to_ms(timeout: float) -> int:
    """Seconds to whole milliseconds, at least 1.

    Raises:
        ValueError: it is not positive, or not finite.
    """
    if not 0 < timeout < math.inf:
        raise ValueError(
            f"timeout is {timeout}; it must be a positive, finite number of seconds for a value with all its attempts"
        )
    return max(1, round(timeout * 1000))


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
    if max_chunk < 1:
        raise ValueError(f"max_chunk is {max_chunk}; it must be at least 1")
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
            yield from results

    return each()


def _operator(
    function: AnyFunction[Any, Any] | CallHost, options: AsyncOptions, metrics: CallMetrics | None
) -> OperatorFactory:
    # Only a partition or a micro-batch ends here, so retries keep their delays.
    is_batch = host_for(function, options).is_batch
    holds_calls = options.rate_limit is not None or options.concurrency is not None or is_batch
    options = replace(
        options,
        retries_at_end=True,
        read_ahead=0 if holds_calls else options.capacity // _READ_AHEAD,
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
        self._failure: BaseException | None = None  # written by the task's thread before _is_over
        self._is_over = False  # written by the task's thread, once
        self._input: ChunkInput[In] = ChunkInput(chunks_ahead, self._wakeup)
        self._output: ResultOutput[Out] = ResultOutput(notify_at, max_chunk * _CHUNKS_OF_RESULTS, self._wakeup)
        self._task = StreamTask(self._input, operator, self._output, name="async wait")
        self._thread = threading.Thread(target=self._work, name="async wait", daemon=True)

    def results(self, chunks: Iterable[Iterable[In]]) -> Iterator[list[Out]]:
        """Caller's thread: read, yield and wait in turns."""
        reading: Iterator[Iterable[In]] | None = iter(chunks)
        output, task_input = self._output, self._input
        try:
            self._thread.start()
            while not self._is_over:
                if len(output.ready) >= self._notify_at:
                    yield output.take(self._max_chunk)
                elif reading is not None and len(task_input.chunks) < self._chunks_ahead:
                    chunk = next(reading, _NO_MORE)
                    if chunk is _NO_MORE:
                        reading = None
                        task_input.end()
                    else:
                        task_input.put(chunk)
                else:
                    self._wakeup.wait()
            while output.ready:
                yield output.take(self._max_chunk)
            if self._failure is not None:
                raise self._failure
        finally:
            self._task.cancel()
            if self._thread.ident is not None:  # started; a KeyboardInterrupt may have come before that
                self._thread.join()

    def _work(self) -> None:
        """The task's thread."""
        try:
            self._task.run()
        except BaseException as error:
            self._failure = error
        finally:
            self._is_over = True
            self._wakeup.notify()
