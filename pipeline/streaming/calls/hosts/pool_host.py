"""Calls of blocking functions, on a bounded pool of threads."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from dispatcher.util.foreign import is_instance
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import Call, CallHost
from pipeline.streaming.errors import OperatorStateError, RetryAfter, describe
from pipeline.streaming.gathering import gathers_while

log = logging.getLogger(__name__)


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
        self._inbox: queue.SimpleQueue[Call | None] = queue.SimpleQueue()  # thread-safe; None ends a thread
        self._lock = threading.Lock()  # leaf lock; replaced only in a forked child
        self._threads: list[threading.Thread] = []  # guarded by _lock; at most pool_size
        self._busy_or_queued = 0  # guarded by _lock; calls submitted and not answered
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

    def submit(self, call: Call) -> None:
        # The put as well: stop: markers M; submit: puts c; inbox = [M, c]: the threads end at M, and c is lost.
        with self._lock:
            if not self._is_stopped:
                if len(self._threads) < min(self._pool_size, self._busy_or_queued + 1):
                    name = f"calls of {self.name} {len(self._threads)}"
                    thread = threading.Thread(target=self._work, name=name, daemon=True)
                    thread.start()  # raises if there are too many threads; then nothing was submitted
                    self._threads.append(thread)
                self._busy_or_queued += 1
                self._inbox.put(call)
                return
        self._refuse(call)

    def cancel(self, call: Call) -> None:
        call.is_cancelled = True

    def stop(self, timeout: float = 10.0) -> bool:
        with self._lock:
            if self._is_stopped:
                return True
            self._is_stopped = True
            threads = list(self._threads)
        with suppress(queue.Empty):
            while (waiting := self._inbox.get_nowait()) is not None:
                self._refuse(waiting)
        for _ in threads:
            self._inbox.put(None)
        deadline_ns = perf_counter_ns() + int(timeout * 1e9)
        for thread in threads:
            if thread is not threading.current_thread():  # the garbage collector has dropped the owner there
                thread.join(max(0.0, (deadline_ns - perf_counter_ns()) / 1e9))
        alive = sum(thread.is_alive() for thread in threads)
        if alive:
            log.warning(
                "%s: %d calls did not return within %s s; their threads are left behind", self.name, alive, timeout
            )
        closing = self._hook("close")
        if closing is not None and self._is_started:
            try:
                closing()
            except Exception as error:
                log.exception("%s: close() failed: %s", self.name, describe(error))
        return not alive

    def _work(self) -> None:
        call: Call | None = None
        gathers_while(lambda: not (self._is_stopped or call is None or call.is_cancelled))
        while (call := self._inbox.get()) is not None:
            if not call.is_cancelled:
                call.started_ns = perf_counter_ns()
                try:
                    call.results = self._invoke(call.value)
                except BaseException as error:
                    call.error = error
                call.ended_ns = perf_counter_ns()
            waiting = self._take_waiting() if is_instance(call.error, RetryAfter) else ()
            with self._lock:
                self._busy_or_queued -= 1
            if call.ended_ns:
                call.box.put(call)
            for other in waiting:  # after the call that asks for the pause
                other.is_returned = True
                other.box.put(other)
            del call, waiting  # released while this thread waits

    def _take_waiting(self) -> list[Call]:
        """Take back the calls that have not begun; their operators know how long the pause lasts."""
        waiting: list[Call] = []
        with self._lock:
            if not self._is_stopped:  # once stopped, the inbox holds only end markers
                with suppress(queue.Empty):
                    while (call := self._inbox.get_nowait()) is not None:
                        waiting.append(call)
                self._busy_or_queued -= len(waiting)
        return [call for call in waiting if not call.is_cancelled]
