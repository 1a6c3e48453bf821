"""Waiting until a dispatcher is drained: its queue is empty, and no event is in hand."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from dispatcher.dispatching.progress import Progress
from dispatcher.queue.posting import EventQueue


class Drain:
    """The waiters for one dispatcher to be drained, and the end of its handler thread. Any thread."""

    def __init__(self, queue: EventQueue, progress: Progress) -> None:
        self._under_way = queue.shutdown.under_way
        self._entries = queue.entries
        self._progress = progress
        self._lock = threading.Lock()  # leaf lock; replaced in a forked child
        self.waiters: list[Future[bool]] = []  # guarded by _lock; the handler thread reads it without
        self.finished = threading.Event()  # set by the handler thread as its last act; replaced in a forked child

    def is_drained(self) -> bool:
        """The queue is empty and no event is in hand: both hold at one moment during this call.

        `done` is read before the queue and `begun` after it. If they are equal, the handler thread took nothing in
        between, so no event was in hand when the queue was empty. (The flag of YARN-3878 could be wrong here.)

        An event of `post_later` leaves `under_way` only once it is queued. That is read first, so no such post that
        returned before this call is still on its way.
        """
        if self._under_way:
            return False
        done = self._progress.done
        return not self._entries and self._progress.begun == done

    def wait(self, timeout: float | None) -> bool:
        """Wait until drained, up to `timeout` seconds (None: for ever); returns whether it is."""
        drained = self.future()
        try:
            return drained.result(timeout)
        except FutureTimeoutError:
            return False
        finally:
            drained.cancel()

    def future(self) -> Future[bool]:
        """A future: True once drained, False if the handler thread ends first. Does not block."""
        drained: Future[bool] = Future()
        with self._lock:
            # Forget waiters that gave up: it may be long until the queue is empty.
            self.waiters = [waiter for waiter in self.waiters if not waiter.cancelled()]
            # Append before the look at the queue: a thread that empties it after the look sees this waiter.
            self.waiters.append(drained)
        self.notify()
        return drained

    def notify(self) -> None:
        """Complete the futures if drained or ended. After a post meanwhile, the handler thread calls this again."""
        with self._lock:
            # Look under the lock that waiters register under: a waiter may have posted before it began to wait.
            finished, drained = self.finished.is_set(), self.is_drained()
            if not (drained or finished):
                return
            waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(drained)

    def finish(self) -> None:
        """The handler thread ends, or never started."""
        self.finished.set()
        self.notify()

    def after_fork(self) -> None:
        """In a child process, which has no handler thread and no waiters."""
        self._lock = threading.Lock()
        self.finished = threading.Event()
        self.finished.set()
