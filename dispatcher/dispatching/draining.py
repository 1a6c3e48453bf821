"""Waiting until a dispatcher is drained: nothing is queued, and nothing is in the handler's hands."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from dispatcher.dispatching.progress import Progress
from dispatcher.queue.posting import EventQueue


class Drain:
    """The threads that wait for one dispatcher to be drained, and the end of its handler thread. Any thread."""

    def __init__(self, queue: EventQueue, progress: Progress) -> None:
        self._entries = queue.entries
        self._progress = progress
        self._lock = threading.Lock()  # leaf lock; another one in a forked child
        self.waiters: list[Future[bool]] = []  # guarded by _lock; looked at without by the handler thread
        self.finished = threading.Event()  # set by the handler thread as its last act; another one in a forked child

    def is_drained(self) -> bool:
        """The queue is empty and nothing is in the handler's hands: exactly so at one moment during this call.

        Where YARN-3878's flag could be wrong: `done` is read before the queue and `begun` after it; if they are equal,
        nothing was taken in between, so what the queue said holds for both.
        """
        done = self._progress.done
        return not self._entries and self._progress.begun == done

    def wait(self, timeout: float | None) -> bool:
        """Wait until drained, up to `timeout` seconds (None: for ever), and say whether it is."""
        drained = self.future()
        try:
            return drained.result(timeout)
        except FutureTimeoutError:
            return False
        finally:
            drained.cancel()

    def future(self) -> Future[bool]:
        """A future that is True once drained; False if the handler thread has ended without. Does not block."""
        drained: Future[bool] = Future()
        with self._lock:
            # Forget waiters that gave up: the queue may not run empty for long.
            self.waiters = [waiter for waiter in self.waiters if not waiter.cancelled()]
            # Before the look: the thread that empties the queue after it sees this one wait.
            self.waiters.append(drained)
        self.tell()
        return drained

    def tell(self) -> None:
        """Tell the waiters, unless a post has come meanwhile: then the handler thread comes here again."""
        with self._lock:
            # Looked at once all of them are known: one may have posted before it began to wait.
            finished, drained = self.finished.is_set(), self.is_drained()
            if not (drained or finished):
                return
            waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(drained)

    def finish(self) -> None:
        """The handler thread ends, or never ran."""
        self.finished.set()
        self.tell()

    def after_fork(self) -> None:
        """In a child process, which has no handler thread and no waiters."""
        self._lock = threading.Lock()
        self.finished = threading.Event()
        self.finished.set()
