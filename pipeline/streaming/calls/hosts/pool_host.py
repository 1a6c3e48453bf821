"""Calls of blocking functions, on a bounded pool of threads."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from dispatcher.util.figures import counted
from dispatcher.util.foreign import is_instance
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import AnswerBox, CallHost, HostCall
from pipeline.streaming.errors import OperatorStateError, RetryAfter, describe
from pipeline.streaming.gathering import gathers_while

log: logging.Logger = logging.getLogger(__name__)


class PoolHost(CallHost):
    """Calls blocking functions on up to `pool_size` daemon threads, started as needed.

    A blocking call cannot be interrupted: a late one keeps its thread until it returns, or yields its next result, and
    its answer is ignored. So a service that may hang needs its own timeout. `open` runs on the thread that starts the
    host, `close` on the one that stops it.
    """

    keeps_late_calls = True

    def __init__(self, function: AnyFunction[Any, Any], name: str, pool_size: int) -> None:
        super().__init__(function, name)
        self._pool_size = self.max_calls = pool_size  # never changes
        self._lock = threading.Lock()  # leaf lock; replaced only in a forked child
        self._inbox: deque[HostCall] = deque()  # guarded by _lock; empty once stopped
        self._threads: list[threading.Thread] = []  # guarded by _lock; at most pool_size
        self._busy_or_queued = 0  # guarded by _lock; calls submitted and not answered
        self._idle = 0  # guarded by _lock; threads that wait for _wakes, and for which it has no item
        # Guarded by _lock; threads that were started or woken and have not looked into the inbox. One is enough: it
        # wakes the next one if it finds several calls. So calls that hardly wait are made by one thread, one after the
        # other, and a call that waits holds up none.
        self._coming = 0
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # thread-safe; an item for each thread to wake
        # Guarded by _lock; they have answers, which a thread that is coming announces: several of them at once.
        self._unannounced: list[AnswerBox] = []
        self._is_started = False  # opened; the starting thread writes it, the stopping one reads it
        self._is_stopped = False  # written under _lock; read without it by calls that yield
        self._invoke: Callable[[Any], Any] = function  # type: ignore[assignment]  # never changes

    def start(self) -> None:
        if self._is_started:
            raise OperatorStateError(f"{self.name}: the host was already started; make a new one")
        if (opening := self._hook("open")) is not None:
            opening()
        self._is_started = True

    @property
    def has_ended(self) -> bool:
        return self._is_stopped

    def abandon(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may have held the other one
        if self._is_started:
            self._is_forked = self._is_stopped = True
            self._threads = []

    def submit(self, calls: Sequence[HostCall]) -> None:
        with self._lock:
            if not self._is_stopped:
                while len(self._threads) < min(self._pool_size, self._busy_or_queued + len(calls)):
                    name = f"calls of {self.name} {len(self._threads)}"
                    thread = threading.Thread(target=self._work, name=name, daemon=True)
                    thread.start()  # raises if there are too many threads; then nothing was submitted
                    self._threads.append(thread)
                    self._coming += 1
                self._busy_or_queued += len(calls)
                self._inbox.extend(calls)
                self._wake_one()
                return
        for call in calls:
            self._refuse(call)

    def cancel(self, call: HostCall) -> None:
        call.is_cancelled = True

    def stop(self, timeout: float = 10.0) -> bool:
        with self._lock:
            if self._is_stopped:
                return True
            self._is_stopped = True
            threads, refused = list(self._threads), list(self._inbox)
            self._inbox.clear()
        for call in refused:
            self._refuse(call)
        for _ in threads:
            self._wakes.put(None)
        deadline_ns = perf_counter_ns() + int(timeout * 1e9)
        for thread in threads:
            if thread is not threading.current_thread():  # the garbage collector has dropped the owner there
                thread.join(max(0.0, (deadline_ns - perf_counter_ns()) / 1e9))
        alive = sum(thread.is_alive() for thread in threads)
        if alive:
            log.warning(
                "%s: %s did not return within %s s; the threads are left behind",
                self.name,
                counted(alive, "call"),
                timeout,
            )
        closing = self._hook("close")
        if closing is not None and self._is_started:
            try:
                closing()
            except Exception as error:
                log.exception("%s: close() failed: %s", self.name, describe(error))
        return not alive

    def _wake_one(self) -> None:
        """Wake a thread for the inbox, unless one is coming or all are busy. The caller holds the lock."""
        if self._inbox and self._coming == 0 and self._idle > 0:
            self._idle -= 1
            self._coming += 1
            self._wakes.put(None)

    def _work(self) -> None:
        call: HostCall | None = None
        gathers_while(lambda: not (self._is_stopped or call is None or call.is_cancelled))
        while True:
            boxes, call = self._arrive()
            for box in boxes:
                box.announce()
            del boxes
            while call is not None:
                if not call.is_cancelled:
                    call.started_ns = perf_counter_ns()
                    try:
                        call.results = self._invoke(call.value)
                    except BaseException as error:
                        call.error = error
                    call.ended_ns = perf_counter_ns()
                call = self._after(call)
            if self._is_stopped:
                return
            self._wakes.get()

    def _arrive(self) -> tuple[list[AnswerBox], HostCall | None]:
        """A thread was started or woken: what to announce, and its first call; None: it is idle again."""
        with self._lock:
            self._coming -= 1
            boxes, self._unannounced = self._unannounced, []
            return boxes, self._take()

    def _after(self, call: HostCall) -> HostCall | None:
        """Answer a call that has ended or was cancelled; return the thread's next one, or None: it is idle."""
        box = call.box
        is_answered = call.ended_ns != 0
        asks_for_pause = call.error is not None and is_instance(call.error, RetryAfter)
        if is_answered:
            box.answers.append(call)
        with self._lock:
            self._busy_or_queued -= 1
            waiting = self._take_waiting() if asks_for_pause else ()
            following = self._take()
            # The thread that is coming runs while the next call waits, or else within a switch interval.
            if is_answered and not box.is_notified and following is not None and self._coming and not self._is_stopped:
                self._unannounced.append(box)
                is_answered = False
        if is_answered:
            box.announce()
        for other in waiting:  # after the call that asks for the pause
            other.is_returned = True
            other.box.put(other)
        return following

    def _take(self) -> HostCall | None:
        """The next call, or None: the calling thread is idle. The caller holds the lock."""
        if not self._inbox:
            self._idle += 1
            return None
        call = self._inbox.popleft()
        if not self._coming:
            self._wake_one()
        return call

    def _take_waiting(self) -> list[HostCall]:
        """Take back the calls that have not begun; their operators know how long the pause lasts. Under the lock."""
        waiting = [call for call in self._inbox if not call.is_cancelled]
        self._busy_or_queued -= len(self._inbox)
        self._inbox.clear()
        return waiting
