"""The thread that owns an engine: the interface that the engine needs, and its implementation on an asyncio loop.

A coroutine of the function may block the loop, and with it the loop's timers. So each mail and each timer runs under a
lock. While a coroutine blocks the loop, another thread can take the lock and run the timers that are due.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import select
import selectors
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol

from dispatcher.errors import RejectedExecutionError

_COARSE_FROM_S: Final = 0.1
"""Longer waits may end a millisecond late."""
_FD_SETSIZE: Final = 1024
"""select accepts only file descriptors below this."""
_AHEAD_MS: Final = time.time() * 1000 - time.monotonic() * 1000
"""The system clock minus the steady one, when this was imported. All loops of a process share a clock that never goes
back."""


class EngineMailbox(Protocol):
    """What an engine uses of a MailboxExecutor."""

    def execute(self, command: Callable[..., Any], description: str = "", *args: Any) -> None:
        """Run `command` soon, on the engine's thread. Any thread; does not block. An error in it fails the task.

        Raises:
            RejectedExecutionError: the thread takes no more mail.
        """


class CallTimer(Protocol):
    """A timer that has not fired."""

    def cancel(self) -> object: ...


class CallTimers(Protocol):
    """What an engine uses of a ProcessingTimeService. The timers fire on the engine's thread."""

    def current_processing_time(self) -> int:
        """Now, in ms."""

    def register_timer(self, timestamp_ms: int, callback: Callable[[int], Any]) -> CallTimer:
        """Call `callback(timestamp_ms)` once that millisecond has passed."""


class LoopTimer:
    """A timer of a LoopThread, whose lock guards it."""

    __slots__ = ("callback", "timestamp_ms")

    def __init__(self, timestamp_ms: int, callback: Callable[[int], Any]) -> None:
        self.timestamp_ms: int = timestamp_ms
        self.callback: Callable[[int], Any] | None = callback  # None: fired or cancelled

    def cancel(self) -> None:
        self.callback = None


class LoopThread:
    """Runs mail and timers on the thread of `loop`, each under `lock`, until it is closed.

    `on_failure` gets what a mail or a timer raises. `after_each` follows each of them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        on_failure: Callable[[BaseException], None],
        after_each: Callable[[], None],
    ) -> None:
        self.loop = loop  # never changes
        self._thread_id = thread.ident  # never changes
        self._on_failure = on_failure  # never changes
        self._after_each = after_each  # never changes
        self.lock: threading.Lock = threading.Lock()
        """Held by the thread that runs a mail or a timer."""
        self._is_closed = False  # guarded by the lock
        # A heap by time, in steady seconds, then by number. Guarded by the lock.
        self._timers: list[tuple[float, int, LoopTimer]] = []
        self._first_s = math.inf  # the time of the first; written under the lock, any thread reads
        self._numbers = itertools.count()  # guarded by the lock
        self._alarm: asyncio.TimerHandle | None = None  # for the first timer; the loop's thread only
        self._alarm_s = 0.0  # when it rings; the loop's thread only

    def current_processing_time(self) -> int:
        """Now, in ms: the Unix time at the import of this module, plus the steady time since."""
        return int(time.monotonic() * 1000 + _AHEAD_MS)

    def register_timer(self, timestamp_ms: int, callback: Callable[[int], Any]) -> LoopTimer:
        """Call `callback(timestamp_ms)` once that millisecond has passed. The caller holds the lock."""
        timer = LoopTimer(timestamp_ms, callback)
        heapq.heappush(self._timers, ((timestamp_ms + 1 - _AHEAD_MS) / 1000, next(self._numbers), timer))
        if self._timers[0][2] is timer:
            self._note_first()
            if threading.get_ident() == self._thread_id:
                self._set_alarm()
            else:
                self._call_soon(self._set_alarm_soon)
        return timer

    def execute(self, command: Callable[..., Any], description: str = "", *args: Any) -> None:
        """Run `command` soon, on the loop's thread. Any thread; does not block."""
        self._call_soon(self.run, command, *args)

    def run(self, command: Callable[..., Any], *args: Any) -> None:
        """Run a mail now. The loop's thread."""
        with self.lock:
            if self._is_closed:
                return
            try:
                command(*args)
                self._after_each()
            except BaseException as error:
                self._on_failure(error)

    def run_now_or_soon(self, command: Callable[[], Any]) -> None:
        """Run `command` under the lock. Any thread; on the loop's own it runs soon.

        The garbage collector may call this on the loop's thread during a mail, which holds the lock.
        """
        if threading.get_ident() != self._thread_id:
            with self.lock:
                command()
            return
        with suppress(RejectedExecutionError):
            self.execute(command)

    def seconds_late(self) -> float:
        """How late the first timer is; negative: how long until it is due. Any thread; may be outdated at once."""
        return time.monotonic() - self._first_s

    def run_due(self) -> None:
        """Run the timers that are due. The caller holds the lock."""
        now_s = time.monotonic()
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            timer = heapq.heappop(timers)[2]
            self._note_first()
            callback, timer.callback = timer.callback, None
            if callback is None:
                continue
            try:
                callback(timer.timestamp_ms)
                self._after_each()
            except BaseException as error:
                self._on_failure(error)

    def close(self) -> None:
        """Run nothing from now on. The caller holds the lock."""
        self._is_closed = True
        self._timers.clear()
        self._note_first()
        with suppress(RejectedExecutionError):
            self._call_soon(self._drop_alarm)

    def _call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        try:
            if threading.get_ident() == self._thread_id:
                self.loop.call_soon(callback, *args)
            else:
                self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            raise RejectedExecutionError("the loop has ended") from None

    def _note_first(self) -> None:
        """The heap has changed. The caller holds the lock."""
        self._first_s = self._timers[0][0] if self._timers else math.inf

    def _set_alarm_soon(self) -> None:
        with self.lock:
            self._set_alarm()

    def _set_alarm(self) -> None:
        """Have the loop wake for the first timer. The loop's thread, which holds the lock."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        self._note_first()
        if not timers or (self._alarm is not None and self._alarm_s <= timers[0][0]):
            return
        self._drop_alarm()
        self._alarm_s = timers[0][0]
        self._alarm = self.loop.call_at(self._alarm_s, self._ring)

    def _drop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        self._alarm = None
        with self.lock:
            self.run_due()
            self._set_alarm()


class OwnLoop:
    """A daemon thread with an asyncio loop of its own, for calls whose function has none."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        self.thread: threading.Thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # too many threads
            self.loop.close()
            raise

    def stop(self) -> None:
        """End the loop, and wait for its thread, unless it is the caller's."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop with precise timers, for I/O on any number of files: a wait of 10 ms takes 10.1 ms, not up to 11."""
    if hasattr(selectors, "EpollSelector"):
        return asyncio.SelectorEventLoop(_PreciseSelector())
    return asyncio.new_event_loop()


if hasattr(selectors, "EpollSelector"):

    class _PreciseSelector(selectors.EpollSelector):
        """Waits with select for the epoll's own file descriptor: epoll rounds waits up to whole milliseconds."""

        def select(self, timeout: float | None = None) -> Iterable[tuple[selectors.SelectorKey, int]]:  # type: ignore[override]
            fd = self.fileno()
            if timeout is not None and 0 < timeout < _COARSE_FROM_S and fd < _FD_SETSIZE:
                select.select((fd,), (), (), timeout)
                timeout = 0
            return super().select(timeout)
