"""Async I/O over any iterable: `ordered_wait` and `unordered_wait`.

Threads: the caller's thread reads the input and hands out results, both of which may block. Meanwhile the thread of an
asyncio loop runs the engine. It is the loop of the function's coroutines itself; a blocking function has a pool of
threads beside it. A coroutine that blocks the loop holds up its own results and those of others, but no timeout: the
caller, while it waits for results, runs the timers that are due.
"""

from __future__ import annotations

import math
import os
import queue
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar, Unpack

from dispatcher.errors import RejectedExecutionError
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.engine import Engine
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import host_for
from pipeline.streaming.calls.hosts.loop_host import LoopHost
from pipeline.streaming.calls.thread import LoopThread, OwnLoop
from pipeline.streaming.errors import ForkedWaitError, describe
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.options import AsyncOptions, StreamOptions, takes_options, times_in_ms
from pipeline.streaming.pace import Pace

In = TypeVar("In")
Out = TypeVar("Out")

_VALUES_AHEAD: Final = 256
"""Values read ahead of the calls when they arrive one by one."""
_CHUNKS_OF_RESULTS: Final = 2
"""Chunks of results buffered before no more values are taken in."""
_LINGER_MS: Final = 5
_READ_AHEAD: Final = 4
"""A fourth of the calls under way is read ahead, so that no call waits for the loop's next turn."""
_LOOK_EVERY_S: Final = 1.0
"""How often the caller looks whether a coroutine blocks the loop, unless a timer is due earlier."""
_HANGS_S: Final = 0.05
"""A timer that is so late is run by the caller."""
_NO_MORE: Final[Any] = object()

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
    if pace is not None:
        return _PacedRun[In, Out](function, settings, metrics, max_chunk).paced(chunks, pace)
    run: _Run[In, Out] = _Run(function, settings, metrics, max_chunk)
    return run.of_chunks(chunks)


def _wait_for_each(
    values: Iterable[In], function: AnyFunction[In, Any], settings: AsyncOptions, metrics: CallMetrics | None
) -> Iterator[Any]:
    run: _Run[In, Any] = _Run(function, settings, metrics, max_chunk=1000)

    def each() -> Iterator[Any]:
        for results in run.of_values(values):
            run.handed_out = results
            yield from results

    return each()


class _Run(Generic[In, Out]):
    """One iteration: its engine, and what the caller's thread exchanges with the thread of the engine's loop.

        caller: reads values --_values--> loop: engine --_ready--> caller: yields results

    A side that finds nothing sleeps until the other has brought something: the caller until `_wakes` has an item, the
    loop until a mail comes.
    """

    def __init__(
        self,
        function: AnyFunction[In, Out] | CallHost,
        options: AsyncOptions,
        metrics: CallMetrics | None,
        max_chunk: int,
    ) -> None:
        self._owns_host = not isinstance(function, CallHost)
        self._host = host_for(function, options)
        self._options = _options_of(self._host, options)
        self._metrics = metrics if metrics is not None else CallMetrics()
        self._max_chunk = max_chunk
        self._most_ready = max_chunk * _CHUNKS_OF_RESULTS
        self.handed_out: list[Out] = []  # results that the caller is being given one by one; caller's thread
        self._is_forked = False  # begun in the parent of this process; written at the fork
        self._own_loop: OwnLoop | None = None  # of an engine whose host has none; caller's thread
        self._thread: LoopThread | None = None  # the engine's; set by the caller's thread when it begins
        self._values: deque[In] = deque()  # the caller appends, the loop pops, and puts the last one back
        self._has_ended = False  # the input; the caller writes it, after the last value
        self._wake_at = 0  # the caller reads more when so many values are left; caller's thread
        # The loop has found no value, or no room for results. It sets this before it looks once more, and the caller
        # reads it after it has changed something: so the loop never sleeps for ever.
        self._is_idle = False
        self._ready: deque[Out] = deque()  # the loop appends, the caller pops
        self._notify_at = 1  # the caller wants so many results; caller's thread
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_notified = False  # _wakes has an item; the caller clears it before it looks for work
        self._has_all = False  # the loop's thread: all values are taken in
        self._failure: BaseException | None = None  # under the thread's lock, before _is_over
        self._is_over = False  # under the thread's lock

    # -- the caller's thread

    def of_values(self, values: Iterable[In]) -> Iterator[list[Out]]:
        """The results of values that are read one by one."""
        return self._results(((value,) for value in values), _VALUES_AHEAD)

    def of_chunks(self, chunks: Iterable[Sequence[In]]) -> Iterator[list[Out]]:
        """The results of chunks of values, in lists of `max_chunk`."""
        self._notify_at = self._max_chunk
        return self._results(chunks, 0)

    def _results(self, chunks: Iterable[Sequence[In]], ahead: int) -> Iterator[list[Out]]:
        """Read, yield and wait in turns. If the input fails, that is raised after its results.

        `ahead`: chunks are read while at most so many values wait, or as many as were in the last chunk.
        """
        reading: Iterator[Sequence[In]] | None = iter(chunks)
        input_failure: Exception | None = None
        ready, values, most = self._ready, self._values, ahead
        self._wake_at = ahead // 2
        try:
            self._begin()
            while not self._is_over:
                if self._is_forked:
                    raise ForkedWaitError
                if len(ready) >= self._notify_at:
                    yield self._take()
                elif reading is not None and len(values) <= most:
                    try:
                        chunk = next(reading, _NO_MORE)
                    except Exception as error:
                        input_failure, chunk = error, _NO_MORE
                    if chunk is _NO_MORE:
                        reading = None
                        self._end_input()
                        continue
                    if not ahead:
                        most = len(chunk)
                        self._wake_at = most // 2
                    values.extend(chunk)
                    if self._is_idle:
                        self._wake_loop()
                else:
                    self._wait()
            yield from self._last_results(input_failure)
        finally:
            self._end()

    def _last_results(self, input_failure: Exception | None) -> Iterator[list[Out]]:
        """What is ready at the end. Then raise what ended the run, if anything did: a failed call, or the input."""
        while self._ready:
            if self._is_forked:
                raise ForkedWaitError
            yield self._take()
        if self._failure is not None:
            if input_failure is not None:
                self._failure.add_note(f"The input failed, too: {describe(input_failure)}")
            raise self._failure
        if input_failure is not None:
            raise input_failure

    def _begin(self) -> None:
        _runs.add(self)
        host = self._host
        if self._owns_host:
            host.start()
        if isinstance(host, LoopHost):
            loop, thread = host.loop, host.thread
            assert loop is not None  # it was started, and so was its thread
            assert thread is not None
        else:
            # Made here, because no thread made before a fork starts after it in Python 3.13.0 (python/cpython#134381).
            self._own_loop = OwnLoop("async wait")
            loop, thread = self._own_loop.loop, self._own_loop.thread
        mail = LoopThread(loop, thread, self._fail, self._take_in)
        self._engine = Engine(
            host, mail, mail, self._options, self._ready.extend, self._metrics, "async wait", emits_values=True
        )
        self._thread = mail
        self._wake_loop()

    def _take(self) -> list[Out]:
        ready = self._ready
        count = len(ready)
        taken = [ready.popleft() for _ in range(min(count, self._max_chunk))]
        if count >= self._most_ready and self._is_idle:
            self._wake_loop()
        return taken

    def _end_input(self) -> None:
        self._has_ended = True
        self._wake_loop()

    def _wake_loop(self) -> None:
        assert self._thread is not None
        self._is_idle = False
        with suppress(RejectedExecutionError):
            self._thread.execute(_nothing)

    def _wait(self, timeout_s: float = math.inf) -> None:
        """Until there is something to do. While a coroutine blocks the loop, this thread runs the timers."""
        thread = self._thread
        assert thread is not None
        if thread.loop.is_closed():
            with thread.lock:
                self._fail(RejectedExecutionError(f"{self._host.name}: the call host has stopped; make a new one"))
            return
        late_s = thread.seconds_late()
        if late_s >= _HANGS_S and thread.lock.acquire(blocking=False):
            try:
                thread.run_due()
            finally:
                thread.lock.release()
            return
        bounds_s = [ms / 1000 for ms in (self._options.timeout_ms, self._options.deadline_ms) if ms]
        wait_s = min(timeout_s, max(0.0, min(_LOOK_EVERY_S, -late_s, *bounds_s)) + _HANGS_S)
        with suppress(queue.Empty):
            self._wakes.get(timeout=wait_s)
            self._is_notified = False

    def _end(self) -> None:
        if self._is_forked:
            return  # the loop and its thread are in the parent
        if self._thread is not None:
            self._thread.run_now_or_soon(self._finish)
        if self._owns_host:
            self._host.stop()
        if self._own_loop is not None:
            self._own_loop.stop()

    def abandon(self) -> None:
        """In a forked child, whose only thread calls this: what is left of the results is given in the parent."""
        self._is_forked = True
        self.handed_out.clear()

    # -- the thread of the engine's loop

    def _take_in(self) -> None:
        """After each mail and timer: take in what there is room for, and tell the caller what it waits for."""
        values, ready, engine, most_ready = self._values, self._ready, self._engine, self._most_ready
        has_taken = False
        while not self._is_over:
            if len(ready) >= most_ready or not values:
                if self._is_idle:
                    break
                self._is_idle = True  # and look once more
                continue
            self._is_idle = False
            value = values.popleft()
            if engine.try_take(value, value):
                has_taken = True
            else:
                values.appendleft(value)
                if not engine.make_room():
                    break
        if not values and self._has_ended and not self._is_over:
            self._end_calls()
        if len(ready) >= self._notify_at or (has_taken and len(values) <= self._wake_at):
            self._notify()

    def _end_calls(self) -> None:
        if not self._has_all:
            self._has_all = True
            self._engine.end_input(ends_retries=False)
        if self._engine.queue.is_empty():
            self._finish()

    def _notify(self) -> None:
        """Wake the caller. Notifications before it wakes count as one."""
        if not self._is_notified:
            self._is_notified = True
            self._wakes.put(None)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._finish()

    def _finish(self) -> None:
        """Make no more calls. Any thread, under the lock."""
        if not self._is_over:
            assert self._thread is not None
            self._thread.close()
            self._engine.close()
            self._is_over = True
            self._notify()


class _PacedRun(_Run[In, Out]):
    """An iteration that takes values in only as its results are read."""

    def paced(self, chunks: Iterable[Sequence[In]], pace: Pace) -> Iterator[list[Out]]:
        """Caller's thread: take in, wait and yield in turns."""
        reading: Iterator[Sequence[In]] | None = iter(chunks)
        chunk: Sequence[In] = ()  # what was read last
        place = begun = given = 0  # in chunk, of the first value not taken in; values taken in; results yielded
        input_failure: Exception | None = None
        ready, values = self._ready, self._values
        try:
            self._begin()
            assert self._thread is not None
            while not self._is_over:
                if self._is_forked:
                    raise ForkedWaitError
                pace.check_reader()
                room = 0
                if reading is not None and not values:
                    with self._thread.lock:  # none is on its way from `values` into the queue
                        passed, held = begun - len(values), self._engine.queue.size()
                    room = pace.room(begun, passed, held, given + len(ready))
                if room:
                    assert reading is not None
                    if place == len(chunk):
                        place = 0
                        try:
                            chunk = next(reading, _NO_MORE)
                        except Exception as error:
                            pace.check_reader()  # which may be why there is no more input
                            input_failure, chunk = error, _NO_MORE
                        if chunk is _NO_MORE:
                            reading, chunk = None, ()
                            self._end_input()
                    taken = chunk[place : place + room]
                    place += len(taken)
                    begun += len(taken)
                    values.extend(taken)
                    if taken and self._is_idle:
                        self._wake_loop()
                else:
                    self._notify_at = pace.results_wanted(self._max_chunk)
                    if len(ready) < self._notify_at or not pace.takes_results():
                        self._wait(pace.wait_s())
                results = self._take() if pace.takes_results() else []
                given += len(results)
                yield results
            yield from self._last_results(input_failure)
        finally:
            self._end()


def _options_of(host: CallHost, options: AsyncOptions) -> AsyncOptions:
    """As the functions that wait for an input have them."""
    holds_calls = options.rate_limit is not None or host.is_batch
    return replace(
        options,
        read_ahead=0 if holds_calls else options.most_calls // _READ_AHEAD,
        linger_ms=_LINGER_MS if host.is_batch and options.linger_ms is None else options.linger_ms,
    )


def _nothing() -> None: ...


_runs: weakref.WeakSet[_Run[Any, Any]] = weakref.WeakSet()  # begun in this process; any thread adds, a fork reads


def _after_fork() -> None:
    for run in list(_runs):
        run.abandon()


os.register_at_fork(after_in_child=_after_fork)
