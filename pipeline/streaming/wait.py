"""Async I/O over any iterable: `ordered_wait` and `unordered_wait`.

Threads: the caller's thread reads the input and yields the results; both may block. The engine runs on the thread of an
asyncio loop: the loop that runs the function's coroutines, or, for a blocking function, a loop of its own next to the
pool of threads. A coroutine that blocks the loop delays every result. It delays no timeout while the caller waits for
results, because the caller then runs the timers that are due.
"""

from __future__ import annotations

import math
import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar, Unpack

from dispatcher.errors import InvalidTypeError, RejectedExecutionError
from dispatcher.util.registry import Registry
from pipeline.streaming.calls.call_counts import CallMetrics, counts_of
from pipeline.streaming.calls.engine import Engine
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import host_for
from pipeline.streaming.calls.hosts.loop_host import LoopHost
from pipeline.streaming.calls.thread import LoopThread, OwnLoop
from pipeline.streaming.errors import ForkedWaitError, describe, quoted
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.options import AsyncOptions, StreamOptions, takes_options, times_in_ms
from pipeline.streaming.pace import ReaderPace

In = TypeVar("In")
Out = TypeVar("Out")

_VALUES_AHEAD: Final = 256
"""Values read ahead of the calls when they arrive one by one."""
_CHUNKS_OF_RESULTS: Final = 2
"""Chunks of results buffered before no more values are taken in."""
_LINGER_MS: Final = 5
_READ_AHEAD: Final = 4
"""A fourth of the calls in flight is read ahead, so that no call waits for the loop's next turn."""
_LOOK_EVERY_S: Final = 1.0
"""The caller checks at least this often whether a coroutine blocks the loop."""
_HANGS_S: Final = 0.05
"""Once a timer is this late, the caller runs it."""


def _require_iterable(called: str, values: Any) -> None:
    kind = type(values)
    if any(base.__module__.startswith("pyspark.sql.") and base.__name__ == "DataFrame" for base in kind.__mro__):
        name = called.rpartition(".")[2]
        raise InvalidTypeError(f"{called} takes an iterable; for a DataFrame, call pipeline.spark.{name}")
    try:
        iter(values)
    except TypeError:
        raise InvalidTypeError(f"{called} takes an iterable; {quoted(values)} is a {kind.__qualname__}") from None


_takes_options = takes_options(StreamOptions, check_first=_require_iterable)


@_takes_options
def ordered_wait(
    values: Iterable[In],
    function: AnyFunction[In, Any],
    *,
    timeout: float,
    deadline: float | None = None,
    metrics: CallMetrics | None = None,
    **options: Unpack[StreamOptions],
) -> Iterator[Any]:
    """Call `function` for each value, up to `concurrency` at a time, and yield the results in the order of the values.

    `timeout`: seconds for a value with all its attempts, from the start of its first call.
    `deadline`: seconds from when the value was taken in.

    For the other options see AsyncOptions. A quarter of the calls is read ahead.

    Values are read on the thread where you take the results. While `values` blocks, calls continue, and their results
    follow later. If you close the generator early, it gives up the calls in flight, and waits up to 10 seconds for a
    blocking call to return. At the end of the input, retries keep their delays.

    Raises:
        AsyncOperatorError: a call has failed, and `on_error` is "fail". Raised after the results before it.
        Exception: `values` raised it. Raised after the results of all values before it.
        ForkedWaitError: this process is a fork of the one that began to read the results.
        ValueError, TypeError: an option is invalid. Raised at once.
    """
    settings = AsyncOptions(**times_in_ms(timeout, deadline), **options)
    return _wait_for_each(values, function, settings, metrics)


@_takes_options
def unordered_wait(
    values: Iterable[In],
    function: AnyFunction[In, Any],
    *,
    timeout: float,
    deadline: float | None = None,
    metrics: CallMetrics | None = None,
    **options: Unpack[StreamOptions],
) -> Iterator[Any]:
    """Call as `ordered_wait` does, but yield results as calls end, so a slow call doesn't hold up others."""
    settings = AsyncOptions(**times_in_ms(timeout, deadline), output_mode="unordered", **options)
    return _wait_for_each(values, function, settings, metrics)


def wait_in_chunks(
    chunks: Iterable[Sequence[In]],
    function: AnyFunction[In, Out] | CallHost,
    settings: AsyncOptions,
    *,
    max_chunk: int = 1000,
    metrics: CallMetrics | None = None,
    pace: ReaderPace | None = None,
    without_results: deque[Any] | None = None,
) -> Iterator[list[Any]]:
    """Process values and yield results in chunks, as Spark tasks do.

    `chunks` is read one ahead on the caller's thread. Calls continue across chunk boundaries. Each list yielded has
    `max_chunk` results, except the last: a shorter one waits for more, even while `chunks` blocks.

    `without_results`: with it, the values come as pairs of a value and its number, or whatever stands for it. Each
        result goes as a pair of that number and the result. The numbers of values without results are appended here.
    `pace`: limits the values taken in. The lists then have up to `max_chunk` results. With an empty one, ask `pace`
        what to send.

    Raises:
        AsyncOperatorError: as `ordered_wait`.
        ReaderGoneError: `pace` reports the end of the results' reader.
    """
    require_number("max_chunk", max_chunk, least=1, whole=True)
    run: _WaitRun[Any, Any] = _WaitRun(function, settings, metrics, max_chunk, without_results)
    return run.of_chunks(chunks) if pace is None else run.paced(chunks, pace)


def _wait_for_each(
    values: Iterable[In], function: AnyFunction[In, Any], settings: AsyncOptions, metrics: CallMetrics | None
) -> Iterator[Any]:
    run: _WaitRun[In, Any] = _WaitRun(function, settings, metrics, max_chunk=1000)

    def each() -> Iterator[Any]:
        for results in run.of_values(values):
            run.handed_out = results
            yield from results

    return each()


class _WaitRun(Generic[In, Out]):
    """One iteration: its engine, and the values and results that pass between the caller's thread and the loop's.

        caller: reads values --_values--> loop: engine --_ready--> caller: yields results

    A thread that has nothing to do sleeps: the caller until `_wakes` has an item, the loop until a mail comes.
    """

    def __init__(
        self,
        function: AnyFunction[In, Out] | CallHost,
        options: AsyncOptions,
        metrics: CallMetrics | None,
        max_chunk: int,
        without_results: deque[Any] | None = None,
    ) -> None:
        self._without_results = without_results  # the loop appends; None: values have no numbers
        self._owns_host = not isinstance(function, CallHost)
        self._host = host_for(function, options)
        self._options = _options_of(self._host, options)
        self._metrics = counts_of(metrics)
        self._max_chunk = max_chunk
        self._most_ready = max_chunk * _CHUNKS_OF_RESULTS
        self.handed_out: list[Out] = []  # results that the caller is being given one by one; caller's thread
        self._is_forked = False  # begun in the parent of this process; written at the fork
        self._own_loop: OwnLoop | None = None  # of an engine whose host has none; caller's thread
        self._thread: LoopThread | None = None  # the engine's; the caller's thread sets it when the iteration begins
        self._engine: Engine | None = None  # the caller's thread sets it, under the lock of _thread
        self._values: deque[In] = deque()  # the caller appends; the loop pops
        self._has_ended = False  # the caller sets it after the last value of the input
        self._input_failure: Exception | None = None  # raised by the input; caller's thread
        self._wake_at = 0  # the loop wakes the caller to read once only this many values are left; caller's thread
        # The loop found no value, or no room for results, and has nothing to do. No wake-up is lost, in either order:
        #   loop: sets True, finds nothing; caller: puts v, reads True, wakes the loop.
        #   caller: puts v, reads False; loop: sets True, looks once more, finds v.
        self._is_idle = False
        self._ready: deque[Out] = deque()  # the loop appends, the caller pops
        self._notify_at = 1  # the loop wakes the caller once this many results are ready; caller's thread
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

        `ahead`: the next chunk is read while at most this many values wait; 0: as many as the last chunk had.
        """
        reading = iter(chunks)
        ready, values, most = self._ready, self._values, ahead
        self._wake_at = ahead // 2
        try:
            self._begin()
            while not self._is_over:
                if self._is_forked:
                    raise ForkedWaitError
                if len(ready) >= self._notify_at:
                    yield self._take()
                elif not self._has_ended and len(values) <= most:
                    chunk = self._read(reading)
                    if not ahead:
                        most = len(chunk)
                        self._wake_at = most // 2
                    self._put(chunk)
                else:
                    self._wait()
            yield from self._last_results()
        finally:
            self._end()

    def paced(self, chunks: Iterable[Sequence[In]], pace: ReaderPace) -> Iterator[list[Out]]:
        """The results of chunks, whose values are taken in only as their results are read."""
        reading = iter(chunks)
        chunk: Sequence[In] = ()  # the last one read
        place = begun = given = 0  # the first value of `chunk` not taken in; values taken in; results yielded
        ready, values = self._ready, self._values
        try:
            engine, thread = self._begin()
            while not self._is_over:
                if self._is_forked:
                    raise ForkedWaitError
                pace.check_reader()
                room = 0
                if not self._has_ended and not values:
                    with thread.lock:  # no value is on its way from `values` into the queue
                        passed, held = begun - len(values), engine.queue.size()
                    room = pace.room(begun, passed, held, given + len(ready))
                if room:
                    if place == len(chunk):
                        chunk, place = self._read(reading), 0
                        if self._input_failure is not None:
                            pace.check_reader()  # a reader that has ended may be why the input failed
                    taken = chunk[place : place + room]
                    place += len(taken)
                    begun += len(taken)
                    self._put(taken)
                else:
                    self._notify_at = pace.results_wanted(self._max_chunk)
                    if len(ready) < self._notify_at or not pace.takes_results():
                        self._wait(pace.wait_s())
                results = self._take() if pace.takes_results() else []
                given += len(results)
                yield results
            yield from self._last_results()
        finally:
            self._end()

    def _read(self, reading: Iterator[Sequence[In]]) -> Sequence[In]:
        """The next chunk of the input; an empty one once the input has ended or failed."""
        try:
            return next(reading)
        except StopIteration:
            pass
        except Exception as error:
            self._input_failure = error
        self._has_ended = True
        self._wake_loop()
        return ()

    def _put(self, values: Sequence[In]) -> None:
        self._values.extend(values)
        if values and self._is_idle:
            self._wake_loop()

    def _last_results(self) -> Iterator[list[Out]]:
        """What is ready at the end. Then raise what ended the run, if anything did: a failed call, or the input."""
        while self._ready:
            if self._is_forked:
                raise ForkedWaitError
            yield self._take()
        if self._failure is not None:
            if self._input_failure is not None:
                self._failure.add_note(f"The input failed, too: {describe(self._input_failure)}")
            raise self._failure
        if self._input_failure is not None:
            raise self._input_failure

    def _begin(self) -> tuple[Engine, LoopThread]:
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
        mail = self._thread = LoopThread(loop, thread, self._fail, self._take_in)
        output: Callable[..., object] = self._ready.extend if self._without_results is None else self._put_numbered
        with mail.lock:  # a cache that has failed before sends mail at once
            engine = self._engine = Engine(
                host,
                mail,
                mail,
                self._options,
                output,
                self._metrics,
                "async wait",
                emits="results" if self._without_results is None else "records",
            )
        self._wake_loop()
        return engine, mail

    def _take(self) -> list[Out]:
        ready = self._ready
        count = len(ready)
        taken = [ready.popleft() for _ in range(min(count, self._max_chunk))]
        if count >= self._most_ready and self._is_idle:
            self._wake_loop()
        return taken

    def _wake_loop(self) -> None:
        assert self._thread is not None
        self._is_idle = False
        with suppress(RejectedExecutionError):
            self._thread.execute(_nothing)

    def _wait(self, timeout_s: float = math.inf) -> None:
        """Sleep until there may be something to do. If a coroutine blocks the loop, run the timers that are due."""
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
        with ExitStack() as last_first:  # each step follows, even if a KeyboardInterrupt ends the one before it
            if self._own_loop is not None:
                last_first.callback(self._own_loop.stop)
            if self._owns_host:
                last_first.callback(self._host.stop)
            if self._thread is not None:
                self._thread.run_now_or_soon(self._finish)

    def abandon(self) -> None:
        """In a forked child, whose only thread calls this: what is left of the results is given in the parent."""
        self._is_forked = True
        self.handed_out.clear()

    # -- the thread of the engine's loop

    def _take_in(self) -> None:
        """After each mail and timer: take in what there is room for, and tell the caller what it waits for."""
        values, ready, engine, most_ready = self._values, self._ready, self._engine, self._most_ready
        assert engine is not None  # mail waits for it
        are_numbered = self._without_results is not None
        has_taken = False
        while not self._is_over:
            if len(ready) >= most_ready or not values:
                if self._is_idle:
                    break
                self._is_idle = True  # and look once more
                continue
            self._is_idle = False
            if room := engine.room(len(values)):
                taken: list[Any] = [values.popleft() for _ in range(room)]
                engine.take(taken if are_numbered else zip(taken, taken, strict=True))
                has_taken = True
            elif not engine.make_room():
                break
        if not values and self._has_ended and not self._is_over:
            self._end_calls(engine)
        if len(ready) >= self._notify_at or (has_taken and len(values) <= self._wake_at):
            self._notify()

    def _put_numbered(self, records: list[tuple[Any, Sequence[Any]]]) -> None:
        ready: deque[Any] = self._ready
        ready.extend([(number, result) for number, results in records for result in results])
        if without := [number for number, results in records if not results]:
            assert self._without_results is not None
            self._without_results.extend(without)

    def _end_calls(self, engine: Engine) -> None:
        if not self._has_all:
            self._has_all = True
            engine.end_input(ends_retries=False)
        if engine.queue.is_empty():
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
            if self._engine is not None:
                self._engine.close()
            self._is_over = True
            self._notify()


def _options_of(host: CallHost, options: AsyncOptions) -> AsyncOptions:
    """The options with the defaults of the functions that wait for an input."""
    holds_calls = options.rate_limit is not None or host.is_batch
    return replace(
        options,
        read_ahead=0 if holds_calls else options.most_calls // _READ_AHEAD,
        linger_ms=_LINGER_MS if host.is_batch and options.linger_ms is None else options.linger_ms,
    )


def _nothing() -> None: ...


_runs: Registry[_WaitRun[Any, Any]] = Registry()  # begun in this process


def _after_fork() -> None:
    for run in _runs.all():
        run.abandon()


os.register_at_fork(after_in_child=_after_fork)
