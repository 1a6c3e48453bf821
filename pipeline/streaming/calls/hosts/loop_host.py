"""Calls of coroutine functions, on an asyncio loop in a thread of its own.

Calls run in long-lived tasks (workers), one for each concurrent call, because starting a task for each call would cost
more than everything else here. A call that never waits ends in the turn that started it, and its worker takes the next
one. Context variables that a function sets and does not reset are seen by the next call.

A function may do to its own task what it likes, and the next call must not suffer from it. So a worker makes no further
call once its task was cancelled, or while something still refers to it, like a timer that will cancel it later. The
loop itself goes on when a function's code stops it, cancels all its tasks, or raises SystemExit in a task of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from sys import getrefcount
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final

from dispatcher.util.foreign import is_instance
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost, HostCall
from pipeline.streaming.calls.thread import new_event_loop
from pipeline.streaming.errors import OperatorStateError, RetryAfter, describe

log: logging.Logger = logging.getLogger(__name__)

_CALLS_PER_TURN: Final = 64
"""Calls that a worker may make without waiting before I/O, timers and other workers get their turn."""


class LoopHost(CallHost):
    """Calls coroutine functions on an asyncio loop, in a daemon thread."""

    def __init__(self, function: AnyFunction[Any, Any], name: str, max_calls: int | None = None) -> None:
        super().__init__(function, name)
        self.max_calls = max_calls  # never changes
        self._max_calls = max_calls or sys.maxsize  # never changes
        self._inbox: deque[HostCall] = deque()  # operators append, the loop's thread pops, each with one call
        # The loop will check the inbox. It clears this before it checks; operators read it after appending.
        self._is_awake = False
        # The loop takes no more calls. Its thread sets this before its last check of the inbox, and operators read it
        # after appending: so each call is answered.
        self._is_over = False
        self.loop: asyncio.AbstractEventLoop | None = None  # set once, by start
        self.thread: threading.Thread | None = None  # set once, by start
        self._thread_id: int | None = None  # of `thread`; set once, by start
        self._is_stopping = False  # the loop's thread only
        self._failure: BaseException | None = None  # of open; the loop's thread writes it before it sets _started
        self._started = threading.Event()
        self._idle: list[asyncio.Future[None]] = []  # the loop's thread only: workers without a call
        self._workers: set[asyncio.Task[None]] = set()  # the loop's thread only
        # The loop's thread only: the new or woken worker that is about to read the inbox, or what woke it.
        self._starting: asyncio.Future[None] | None = None
        self._is_resting = False  # the loop's thread only: all workers are busy; the first idle one resumes _wake
        method = "async_invoke_batch" if self.is_batch else "async_invoke"
        self._invoke: Callable[[Any], Any] = getattr(function, method, function)  # type: ignore[arg-type]  # never changes

    def start(self) -> None:
        if self.thread is not None:
            raise OperatorStateError(f"{self.name}: the host was already started; make a new one")
        self.loop = new_event_loop()
        self.thread = thread = threading.Thread(target=self._run, name=f"async calls of {self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # too many threads
            self.thread = None
            self.loop.close()
            raise
        self._thread_id = thread.ident
        self._started.wait()
        if self._failure is not None:
            thread.join()
            raise self._failure

    @property
    def has_ended(self) -> bool:
        return self._is_over

    def abandon(self) -> None:
        if self.thread is not None:
            self._is_forked = self._is_over = True
            self.thread = None

    def submit(self, calls: Sequence[HostCall]) -> None:
        self._inbox.extend(calls)
        if self._is_over:
            self._refuse_waiting()
        elif not self._is_awake:
            if get_ident() != self._thread_id:
                self._is_awake = True
                self._call_soon(self._wake)
            elif self._starting is None and not self._start_worker():
                self._is_awake = self._is_resting = True

    def cancel(self, call: HostCall) -> None:
        call.is_cancelled = True
        self._call_soon(self._cancel, call)

    def stop(self, timeout: float = 10.0) -> bool:
        thread = self.thread
        if thread is None:
            return True
        self._call_soon(self._end)
        if thread is threading.current_thread():  # the garbage collector has dropped the owner there
            return False
        thread.join(timeout)
        if thread.is_alive():
            log.warning("%s: the loop did not end within %s s; a call blocks it, or close() hangs", self.name, timeout)
        return not thread.is_alive()

    def _call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        loop = self.loop
        assert loop is not None, "submitted to a host that has not been started"
        try:
            if get_ident() == self._thread_id:
                loop.call_soon(callback, *args)
            else:
                loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: the host has stopped and ended its calls
            log.debug("%s: the host is stopped", self.name)

    def _run(self) -> None:
        """Open, serve until stopped, close. The loop's thread."""
        loop = self.loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            try:
                loop.run_until_complete(_call_hook(self._hook("open")))
            except BaseException as error:
                self._failure = error
            else:
                self._started.set()
                self._serve(loop)
                self._run_to_its_end(loop, self._end_calls)
                while self._workers and not loop.is_closed():  # code of the function has cancelled the end itself
                    self._run_to_its_end(loop, self._end_calls)
                self._run_to_its_end(loop, lambda: _call_hook(self._hook("close")), "close() failed")
            self._run_to_its_end(loop, lambda: _cancel(asyncio.all_tasks(loop)))  # that the function started
            self._run_to_its_end(loop, loop.shutdown_asyncgens)
        finally:
            self._is_stopping = self._is_over = True
            self._refuse_waiting()
            self._started.set()
            asyncio.set_event_loop(None)
            loop.close()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until the host is stopped, whatever else ends it."""
        while not self._is_stopping and not loop.is_closed():
            try:
                loop.run_forever()
            except BaseException as error:
                log.exception("%s: a task of the function has ended the loop, which goes on: %r", self.name, error)
            else:
                if not self._is_stopping:
                    log.warning("%s: the function has stopped the loop, which goes on", self.name)

    def _run_to_its_end(
        self,
        loop: asyncio.AbstractEventLoop,
        make: Callable[[], Coroutine[Any, Any, Any]],
        failed: str = "the loop could not end as it should",
    ) -> None:
        """Run one step of the end; if it fails, those after it are still made."""
        if loop.is_closed():
            return
        step = asyncio.Task(make(), loop=loop)
        while not step.done() and not loop.is_closed():
            try:
                loop.run_until_complete(step)
            except BaseException as error:  # of the step, or of another task, which has ended the loop
                log.exception("%s: %s: %s", self.name, failed, describe(error))

    def _end(self) -> None:
        self._is_stopping = True
        assert self.loop is not None
        self.loop.stop()

    async def _end_calls(self) -> None:
        """Answer the calls that operators still wait for."""
        await _cancel(self._workers)
        self._is_over = True
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Refuse the calls in the inbox. Any thread, once the host has ended."""
        with suppress(IndexError):
            while True:
                self._refuse(self._inbox.popleft())

    def _wake(self) -> None:
        """Start a worker for the inbox, and check again in the loop's next turn: busy operators submit more."""
        assert self.loop is not None
        if not self._inbox:
            self._is_awake = False
            if not self._inbox:
                return
            self._is_awake = True
        if self._starting is not None or self._start_worker():
            self.loop.call_soon(self._wake)
        else:
            self._is_resting = True  # and still awake: operators need not wake the loop before a worker is idle

    def _start_worker(self) -> bool:
        """Wake or start a worker. False when stopping, or when all are busy: the first idle one takes the next call."""
        assert self.loop is not None
        if self._is_stopping:
            return False
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():  # else its worker was cancelled, and is about to end
                self._starting = waiter
                waiter.set_result(None)
                return True
        if len(self._workers) >= self._max_calls:
            return False
        # Not by create_task: the function may have given the loop a task factory.
        self._starting = worker = asyncio.Task(self._work(), loop=self.loop)
        self._workers.add(worker)
        worker.add_done_callback(self._on_worker_end)
        return True

    def _on_worker_end(self, worker: asyncio.Task[None]) -> None:
        """Let another worker take its place, if there are calls waiting for one."""
        self._workers.discard(worker)
        if self._starting is worker:
            self._starting = None
        if self._inbox and not self._is_awake:  # it ended before it took the call for which it was started
            self._is_awake = self._is_resting = True
        self._resume()

    def _resume(self) -> None:
        """A worker is idle, or there is room for one: take the next call, if all were busy."""
        if self._is_resting:
            assert self.loop is not None
            self._is_resting = False
            self.loop.call_soon(self._wake)

    def _cancel(self, call: HostCall) -> None:
        if call.worker is not None:
            call.worker.cancel()

    def _give_back(self, waiting: list[HostCall]) -> None:
        """Return calls that have not begun to their operators, which know how long the pause lasts."""
        for call in waiting:
            if not call.is_cancelled:
                call.is_returned = True
                call.box.put(call)

    async def _work(self) -> None:
        """Make one call after another, until the host stops or the task is no longer this worker's alone."""
        assert self.loop is not None
        this = asyncio.current_task()
        assert this is not None
        inbox, invoke, loop = self._inbox, self._invoke, self.loop
        self._starting = None
        call: HostCall | None = None
        turns = 0
        own_references = getrefcount(this)
        now_ns = perf_counter_ns()
        while True:
            if not inbox:
                if self._is_stopping:
                    return  # its call swallowed the cancellation
                self._resume()
                turns = 0
                call = None  # released while this waits
                await self._wait_idle(loop.create_future())
                now_ns = perf_counter_ns()
                continue
            call = inbox.popleft()
            if call.is_cancelled:
                continue
            if inbox and self._starting is None:
                self._start_worker()  # it takes over if this call waits
            call.worker = this
            call.started_ns = now_ns  # when the last call ended, if this follows it
            try:
                call.results = await invoke(call.value)
            except (asyncio.CancelledError, GeneratorExit) as error:
                if self._is_stopping:
                    self._refuse(call)
                    raise
                call.error = error
            except BaseException as error:
                call.error = error
                if is_instance(error, RetryAfter):
                    waiting = [inbox.popleft() for _ in range(len(inbox))]
                    loop.call_soon(self._give_back, waiting)  # after its answer
            call.worker = None
            call.ended_ns = now_ns = perf_counter_ns()
            box = call.box
            box.answers.append(call)
            if not box.is_notified:
                box.is_notified = True
                loop.call_soon(box.notify_on, loop)  # at the end of this turn: one mail for all its answers
            # A cancellation may be pending or still to come, and would end another call: that needs another task.
            if getrefcount(this) != own_references or this.cancelling():
                return
            turns += 1
            if turns >= _CALLS_PER_TURN:
                turns = 0
                await asyncio.sleep(0)
                now_ns = perf_counter_ns()

    async def _wait_idle(self, waiter: asyncio.Future[None]) -> None:
        self._idle.append(waiter)
        try:
            await waiter
        finally:  # cancelled, perhaps, by a function that cancels all tasks of the loop
            if self._starting is waiter:
                self._starting = None


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _call_hook(hook: Callable[[], Any] | None) -> None:
    if hook is not None and inspect.isawaitable(result := hook()):
        await result
