"""Starting threads where the system may have none left; a thread that starts at its first use; a thread for one call;
which thread holds a lock.

`Thread.start` fails at a limit of threads or of memory, and from Python 3.12 on in an `atexit` hook. Work that needs no
thread goes on without one; a thread that is only useful is started later (invariant 13).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Final, Protocol, TypeVar

from dispatcher.util.foreign import describe, tell
from dispatcher.util.registry import Registry

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_THREAD: Final = (RuntimeError, MemoryError)
"""What `Thread.start` raises if no thread can be started."""
RETRY_S: Final = 1.0

postponed: Final[deque[Callable[[], object]]] = deque()
"""Starts that have failed. Any thread appends; while there are any, handler threads call `try_postponed` at intervals,
be they idle or not."""
watchers: Final[Registry[Watcher]] = Registry()
"""Idle handler threads, one of which has to try again. A dispatcher adds itself before its thread starts."""
_next_try_s = 0.0  # monotonic; any handler thread reads and writes it: two at one moment may both try


class Watcher(Protocol):
    """A handler thread, which may wait for an event."""

    def wake(self) -> None:
        """Have it look at `postponed`. Any thread; does not block."""


def try_to_start(thread: threading.Thread) -> bool:
    """Start the thread; False if the system has none left.

    Then try again with a new Thread: Python 3.13.0 does not start one whose start has failed.
    """
    try:
        thread.start()
    except RecursionError:  # a RuntimeError as well, but the caller's own
        raise
    except NO_THREAD:
        return False
    return True


class LazyThread:
    """A daemon thread that starts at its first use. Any thread.

    An exception of a signal handler, or a RecursionError, leaves it as not started, unless it has begun: the next use
    tries again.
    """

    def __init__(self, name: str) -> None:
        self._name = name  # never changes
        self._starting = threading.RLock()  # leaf lock
        # Set by any thread under _starting, and reset by it if the start fails.
        self.thread: threading.Thread | None = None
        self.is_lacking: bool = False
        """The system had no thread left when it was last started. Any thread writes and reads it."""

    def ensure(self, run: Callable[[], object]) -> bool:
        """Start it with `run`, unless it was started; False if the system has no thread left."""
        if self.thread is not None:
            return True
        # Of the thread, once it begins, or of this call, once its start has failed: whichever is first, and none waits.
        # A signal handler that interrupts the start may wait for what the thread does.
        turn = threading.RLock()
        thread = threading.Thread(target=self._run, args=(run, turn), name=self._name, daemon=True)
        try:
            with self._starting:
                if self.thread is None:  # no call, so no signal handler, between the look and the store
                    self.thread = thread
            if self.thread is thread:
                # `is_lacking` before `thread`: whoever finds no thread from here on tries again.
                self.is_lacking = not try_to_start(thread) and turn.acquire(blocking=False)
                if self.is_lacking:
                    self.thread = None
        except BaseException:
            if self.thread is thread and turn.acquire(blocking=False):
                self.thread = None
            raise
        return self.thread is not None

    @staticmethod
    def _run(run: Callable[[], object], turn: threading.RLock) -> None:
        if turn.acquire(blocking=False):  # otherwise its start was interrupted, and the next use starts another
            run()


def start_or_postpone(what: str, start: Callable[[], object]) -> None:
    """Call `start`, which starts a thread; if the system has none left, log this and call it again later.

    Any thread. `start` may be called again on any handler thread, so it must be short, and makes a new Thread in each
    call. `what` is for the log.
    """
    try:
        start()
    except NO_THREAD as error:
        postpone(what, start, error)


def postpone(what: str, start: Callable[[], object], error: BaseException) -> None:
    """`start` has failed with `error`, one of NO_THREAD: log this and call it later, as `start_or_postpone` does."""
    postponed.append(start)
    for watcher in watchers.all():
        watcher.wake()
    message = "%s: its thread could not be started (%s) and is tried again; raise the limit of threads or of memory"
    tell(log, logging.WARNING, message, what, describe(error))


def try_postponed() -> None:
    """Try the postponed starts again, at most once in RETRY_S. A handler thread, between two batches."""
    global _next_try_s
    now_s = time.monotonic()
    if now_s < _next_try_s:
        return
    _next_try_s = now_s + RETRY_S
    for _ in range(len(postponed)):
        try:
            start = postponed.popleft()
        except IndexError:  # another handler thread has taken it
            return
        try:
            start()
        except NO_THREAD:
            postponed.append(start)
            return
        except Exception as error:  # the service that was to start it has ended
            tell(log, logging.WARNING, "a thread that was postponed is not needed: %s", describe(error))


os.register_at_fork(after_in_child=postponed.clear)


def release_anyhow(lock: threading.Lock) -> None:
    """Release the lock, which may be released already. Any thread."""
    try:
        lock.release()
    except RecursionError:  # a RuntimeError as well, but the lock is still held
        raise
    except RuntimeError:
        pass


def is_owned(lock: threading.Condition | threading.RLock) -> bool:
    """Whether this thread holds the lock."""
    owner: Any = lock
    return bool(owner._is_owned())  # as threading.Condition does


async def in_own_thread(function: Callable[[], T], name: str) -> T:
    """Call the function on a thread of its own, in the caller's context, and return its result or raise its error.

    The loop's default executor has few threads, and a hung handler may hold all of them. If the waiting task is
    cancelled, the function goes on, and the interpreter waits for it before it exits. If no thread can be started, the
    function runs at once, and blocks the loop.
    """
    from asyncio import wrap_future

    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from now on, cancelling the task leaves the future alone
    context = copy_context()

    def run() -> None:
        try:
            result = context.run(function)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    if not try_to_start(threading.Thread(target=run, name=name, daemon=False)):
        run()
    return await wrap_future(future)
