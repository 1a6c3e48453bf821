"""Where the calls of a user's function run: on an asyncio loop, or on a pool of threads.

Threads: a host has threads of its own. An operator submits and cancels calls from its mailbox thread; several operators
may share a host. A call is touched by the host from when it is submitted until it is answered. Then the host appends it
to the operator's AnswerBox, and one mail tells the operator of all answers that it has not fetched yet.

The loop's calls run in long-lived tasks (workers), one for each call under way, and not in a task of their own: to
start a task costs more than all the rest here. A call that never waits ends in the turn in which it was started, and
its worker takes the next one. A function that sets context variables and does not reset them leaves them to the next.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from time import perf_counter_ns
from typing import Any, Final

from dispatcher.errors import RejectedExecutionError
from pipeline.streaming.failures import AsyncTimeoutError, describe
from pipeline.streaming.functions import AnyFunction, is_batch_function, is_coroutine_function, name_of
from pipeline.streaming.precise_loop import new_event_loop
from pipeline.streaming.rate_limit import RateLimit, RateLimiter

log = logging.getLogger(__name__)

DEFAULT_POOL_SIZE: Final = 32
_CALLS_PER_TURN: Final = 64
"""Calls that a worker may make without waiting before others have their turn: I/O, timers, other workers."""


class AnswerBox:
    """The answers to one operator's calls, until its mailbox thread fetches them."""

    __slots__ = ("_execute", "_fetch", "answers", "is_notified")

    def __init__(self, execute: Callable[..., None], fetch: Callable[[], None]) -> None:
        self.answers: deque[Call] = deque()  # hosts append, the mailbox thread pops; both are atomic
        # A mail is on its way. The mailbox thread clears it before it fetches, a host reads it after it has appended:
        # no answer stays behind. Two threads of a host may both send a mail, and one of them finds nothing.
        self.is_notified = False
        self._execute = execute
        self._fetch = fetch

    def notify(self) -> None:
        """Tell the mailbox thread. Any thread; does not block."""
        self.is_notified = True
        try:
            self._execute(self._fetch, "fetch answers")
        except RejectedExecutionError:
            log.debug("answers dropped: the mailbox is closed, the state will be replayed")


class Call:
    """One call of the function, as its host sees it.

    Until `ended_ns` is set, the host alone writes; from then on, it is the mailbox thread's. The mailbox thread may set
    `is_cancelled` at any time: nobody waits for the answer any more.
    """

    # Most calls never change these, so they are the class's: it halves the time to make a call.
    results: Any = None
    error: BaseException | None = None
    started_ns = 0
    ended_ns = 0  # not 0: answered
    is_cancelled = False
    is_counted = False  # the mailbox thread only: it takes room under a limit of concurrency
    worker: asyncio.Task[None] | None = None  # the loop's thread only

    def __init__(self, value: Any, box: AnswerBox) -> None:
        self.value = value
        self.box = box


class CallHost(ABC):
    """Runs the calls of one function. `start` and `stop` are for its owner, `submit` and `cancel` for operators."""

    def __init__(self, function: AnyFunction[Any, Any], name: str) -> None:
        self.function = function
        self.name = name
        self.is_batch = is_batch_function(function)
        self._limiters: dict[RateLimit, RateLimiter] = {}  # of the scope "worker"; setdefault is atomic

    @abstractmethod
    def start(self) -> None:
        """Open the function; blocks until that is done. What `open` raises is raised."""

    @abstractmethod
    def submit(self, call: Call) -> None:
        """Make the call as soon as possible, in the order of submission. Any thread; does not block."""

    @abstractmethod
    def cancel(self, call: Call) -> None:
        """Give the call up if that is possible; it may be answered all the same. Any thread; does not block."""

    @abstractmethod
    def stop(self, timeout: float = 10.0) -> bool:
        """Give up the calls under way and close the function; says whether all has ended within `timeout` seconds.

        What does not end is left behind on a daemon thread. Errors of `close` are logged. Stopping again does nothing.
        """

    def timeout(self, value: Any, timeout_ms: float, attempts: int) -> Any:
        """What the function gives instead of an answer that is late. Raises what its `timeout` raises."""
        hook = getattr(self.function, "timeout", None)
        if not callable(hook):
            raise AsyncTimeoutError(timeout_ms, attempts)
        try:
            return hook(value)
        except AsyncTimeoutError as error:
            if error.timeout_ms is None:
                raise AsyncTimeoutError(timeout_ms, attempts) from None
            raise

    def limiter_for(self, limit: RateLimit) -> RateLimiter:
        """A limiter of its own for each that asks, or with scope "worker" one for all that share the host."""
        return RateLimiter(limit) if limit.scope == "task" else self._limiters.setdefault(limit, RateLimiter(limit))

    def _hook(self, name: str) -> Callable[[], Any] | None:
        """The function's `open` or `close`, if it has one; only what has both has hooks."""
        hooks = [getattr(self.function, name, None) for name in ("open", "close")]
        return getattr(self.function, name) if all(callable(hook) for hook in hooks) else None


def make_host(function: AnyFunction[Any, Any], *, pool_size: int | None = None, name: str | None = None) -> CallHost:
    """The host that suits the function, not started: a loop for coroutines, else a pool of `pool_size` threads.

    Raises:
        TypeError: `function` is not callable. ValueError: `pool_size` is not positive.
    """
    if pool_size is not None and pool_size <= 0:
        raise ValueError(f"pool_size is {pool_size}; a pool needs at least 1 thread")
    name = name or name_of(function)
    if is_coroutine_function(function):
        return LoopHost(function, name)
    return PoolHost(function, name, pool_size or DEFAULT_POOL_SIZE)


class LoopHost(CallHost):
    """Calls coroutine functions on an asyncio loop, in a daemon thread."""

    def __init__(self, function: AnyFunction[Any, Any], name: str) -> None:
        super().__init__(function, name)
        self._inbox: deque[Call] = deque()  # operators append, the loop's thread pops; both are atomic
        # The loop will look into the inbox. The loop clears it before it looks, operators read it after appending.
        self._is_awake = False
        self._loop: asyncio.AbstractEventLoop | None = None  # set by start, never changes then
        self._thread: threading.Thread | None = None  # set by start, never changes then
        self._stopping: asyncio.Event | None = None  # the loop's thread, but for its creation in start
        self._failure: BaseException | None = None  # of open; written by the loop's thread before _started is set
        self._started = threading.Event()
        self._idle: list[asyncio.Future[None]] = []  # the loop's thread only: workers without a call
        self._workers: set[asyncio.Task[None]] = set()  # the loop's thread only
        self._is_starting_worker = False  # the loop's thread only: one is on its way to the inbox
        method = "async_invoke_batch" if self.is_batch else "async_invoke"
        self._invoke: Callable[[Any], Any] = getattr(function, method, function)  # type: ignore[arg-type]

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError(f"{self.name}: the host has been started before; make a new one")
        self._loop = new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"async calls of {self.name}", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def submit(self, call: Call) -> None:
        self._inbox.append(call)
        if not self._is_awake:
            self._is_awake = True
            self._call_soon(self._wake)

    def cancel(self, call: Call) -> None:
        call.is_cancelled = True
        self._call_soon(self._cancel, call)

    def stop(self, timeout: float = 10.0) -> bool:
        thread, stopping = self._thread, self._stopping
        if thread is None or stopping is None:
            return True
        self._call_soon(stopping.set)
        thread.join(timeout)
        if thread.is_alive():
            log.warning(
                "%s: its loop has not ended within %s s; a call blocks it, or close() hangs", self.name, timeout
            )
        return not thread.is_alive()

    def _call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        loop = self._loop
        assert loop is not None, "submitted to a host that has not been started"
        try:
            loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: the host was stopped, and with it all its calls
            log.debug("%s: the host is stopped", self.name)

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live())
            loop.run_until_complete(loop.shutdown_asyncgens())
        except BaseException:
            log.exception("%s: the loop has failed", self.name)
        finally:
            self._started.set()
            asyncio.set_event_loop(None)
            loop.close()

    async def _live(self) -> None:
        """Open, serve until stopped, close. Workers run beside this."""
        assert self._stopping is not None
        try:
            await _call_hook(self._hook("open"))
        except BaseException as error:
            self._failure = error
            return
        self._started.set()
        await self._stopping.wait()
        await _cancel(self._workers)
        try:
            await _call_hook(self._hook("close"))
        except Exception as error:
            log.exception("%s: close() failed: %s", self.name, describe(error))
        this = asyncio.current_task()
        await _cancel({task for task in asyncio.all_tasks() if task is not this})  # that the function has started

    def _wake(self) -> None:
        """Have the inbox emptied, and look once more in the loop's next turn: operators that are busy bring more."""
        assert self._loop is not None
        if not self._inbox:
            self._is_awake = False
            if not self._inbox:
                return
            self._is_awake = True
        if not self._is_starting_worker:
            self._start_worker()
        self._loop.call_soon(self._wake)

    def _start_worker(self) -> None:
        assert self._loop is not None
        assert self._stopping is not None
        if self._stopping.is_set():
            return
        self._is_starting_worker = True
        if self._idle:
            self._idle.pop().set_result(None)
            return
        worker = self._loop.create_task(self._work())
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    def _cancel(self, call: Call) -> None:
        if call.worker is not None:
            call.worker.cancel()

    async def _work(self) -> None:
        """Make one call after the other. Ends when the host stops, or when a call kept this worker for too long."""
        assert self._loop is not None
        assert self._stopping is not None
        this = asyncio.current_task()
        assert this is not None
        inbox, invoke, loop = self._inbox, self._invoke, self._loop
        self._is_starting_worker = False
        call: Call | None = None
        turns = 0
        while True:
            if not inbox:
                turns = 0
                call = None  # not kept while this waits
                waiter = loop.create_future()
                self._idle.append(waiter)
                await waiter
                self._is_starting_worker = False
                continue
            call = inbox.popleft()
            if call.is_cancelled:
                continue
            if inbox and not self._is_starting_worker:
                self._start_worker()  # it gets its turn if this call waits
            call.worker = this
            call.started_ns = perf_counter_ns()
            try:
                call.results = await invoke(call.value)
            except asyncio.CancelledError as error:
                if self._stopping.is_set():
                    raise
                while this.uncancel():  # of our own cancel; then the task is as good as new
                    pass
                call.error = error
            except BaseException as error:
                call.error = error
            call.worker = None
            call.ended_ns = perf_counter_ns()
            box = call.box
            box.answers.append(call)
            if not box.is_notified:
                box.notify()
            turns += 1
            if turns >= _CALLS_PER_TURN:
                turns = 0
                await asyncio.sleep(0)


class PoolHost(CallHost):
    """Calls blocking functions on `pool_size` daemon threads, started as they are needed.

    A blocking call cannot be interrupted: one that is late keeps its thread until it returns, and its answer is
    ignored. So a service that hangs needs a timeout of its own, too. `open` runs on the thread that starts the host,
    `close` on the one that stops it.
    """

    def __init__(self, function: AnyFunction[Any, Any], name: str, pool_size: int) -> None:
        super().__init__(function, name)
        self._pool_size = pool_size
        self._inbox: queue.SimpleQueue[Call | None] = queue.SimpleQueue()  # thread-safe; None ends a thread
        self._lock = threading.Lock()  # leaf lock
        self._threads: list[threading.Thread] = []  # guarded by _lock; full once it has pool_size of them
        self._busy_or_queued = 0  # guarded by _lock; calls submitted and not answered
        self._is_stopped = False  # guarded by _lock
        self._invoke: Callable[[Any], Any] = function  # type: ignore[assignment]

    def start(self) -> None:
        opening = self._hook("open")
        if opening is not None and inspect.isawaitable(result := opening()):
            _close_coroutine(result)
            raise TypeError(f"{self.name}: open() of a blocking function cannot be a coroutine; make it a plain method")

    def submit(self, call: Call) -> None:
        with self._lock:
            if self._is_stopped:
                return
            self._busy_or_queued += 1
            if len(self._threads) < min(self._pool_size, self._busy_or_queued):
                name = f"calls of {self.name} {len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._inbox.put(call)

    def cancel(self, call: Call) -> None:
        call.is_cancelled = True

    def stop(self, timeout: float = 10.0) -> bool:
        with self._lock:
            if self._is_stopped:
                return True
            self._is_stopped = True
            threads = list(self._threads)
        try:
            while True:
                self._inbox.get_nowait()
        except queue.Empty:
            pass
        for _ in threads:
            self._inbox.put(None)
        deadline_ns = perf_counter_ns() + int(timeout * 1e9)
        for thread in threads:
            thread.join(max(0.0, (deadline_ns - perf_counter_ns()) / 1e9))
        alive = sum(thread.is_alive() for thread in threads)
        if alive:
            log.warning(
                "%s: %d calls have not returned within %s s; their threads are left behind", self.name, alive, timeout
            )
        closing = self._hook("close")
        if closing is not None:
            try:
                closing()
            except Exception as error:
                log.exception("%s: close() failed: %s", self.name, describe(error))
        return not alive

    def _work(self) -> None:
        while (call := self._inbox.get()) is not None:
            if not call.is_cancelled:
                call.started_ns = perf_counter_ns()
                try:
                    call.results = self._invoke(call.value)
                except BaseException as error:
                    call.error = error
                call.ended_ns = perf_counter_ns()
            with self._lock:
                self._busy_or_queued -= 1
            if call.ended_ns:
                call.box.answers.append(call)
                if not call.box.is_notified:
                    call.box.notify()
            del call  # not kept while this thread waits for the next


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _call_hook(hook: Callable[[], Any] | None) -> None:
    if hook is not None and inspect.isawaitable(result := hook()):
        await result


def _close_coroutine(awaitable: Any) -> None:
    if inspect.iscoroutine(awaitable):
        awaitable.close()
