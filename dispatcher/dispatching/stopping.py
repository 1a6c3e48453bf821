"""How dispatching ends: a queue that is drained, a stop that waits for it.

`Drain` tells waiters when the queue is empty and no event is in hand (invariant 3). `StopWait` is a stop's wait for
that, within its timeout, whatever a handler or a coroutine does (invariant 7).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from time import monotonic
from typing import Final, Protocol

from dispatcher.dispatching.times import BatchProgress
from dispatcher.errors import DeadlockError
from dispatcher.queue.flags import ABANDONED
from dispatcher.queue.inbox import Inbox
from dispatcher.util.figures import counted
from dispatcher.util.foreign import tell

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

GRACE_S: Final = 0.5
"""The longest wait for a handler that is about to return."""


def check_may_wait(name: str, *, is_handler: bool, is_on_loop: bool) -> None:
    """Raises RuntimeError: the caller waits for a drain that waits for its handler, or blocks the event loop of one."""
    if is_handler:
        raise DeadlockError(f"{name}: a handler cannot wait until its own dispatcher is drained")
    if is_on_loop:
        raise DeadlockError(f"{name}: this blocks its event loop; use `await aio.await_drained(dispatcher)`")


class Drain:
    """The waiters for one dispatcher to be drained, and the end of its handler thread. Any thread."""

    def __init__(self, queue: Inbox, progress: BatchProgress) -> None:
        self._queue = queue
        self._progress = progress
        self._lock = threading.Lock()  # leaf lock; replaced in a forked child
        self.waiters: list[Future[bool]] = []  # guarded by _lock; the handler thread reads it without
        # Set by the handler thread as its last act; replaced in a forked child.
        self.finished: threading.Event = threading.Event()

    def is_drained(self) -> bool:
        """The queue is empty and no event is in hand: both hold at one moment during this call.

        `done` is read before the queue and `begun` after it. If they are equal, the handler thread took nothing in
        between, so no event was in hand when the queue was empty. (The flag of YARN-3878 could be wrong here.)

        An event moves to those that are retrying before its batch counts as done, and from there straight into the
        queue. So if none is there after the look at `done`, none was at the look at the queue.

        An event of `post_later` leaves `under_way` only once it is queued. That is read first, so no such post that
        returned before this call is still on its way.
        """
        queue = self._queue
        if queue.shutdown.under_way:
            return False
        done = self._progress.done
        return not queue.has_events() and self._progress.begun == done

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
        self.finished.set()
        self.notify()

    def after_fork(self) -> None:
        """In a child process, which has no handler thread and no waiters."""
        self._lock = threading.Lock()
        self.finished = threading.Event()
        self.finished.set()


def grace_s(drain_timeout_s: float) -> float:
    """The part of the drain timeout that a stop keeps for a handler that is about to return."""
    return min(GRACE_S, drain_timeout_s / 2)


class OpenCoroutines(Protocol):
    """The coroutines of one dispatcher's handlers that have not ended."""

    count: int

    def describe(self) -> str: ...

    def give_up_soon(self) -> None:
        """Cancel them. Any thread."""


class StopWait:
    """Waits for one dispatcher's handler thread to end. Any thread that the drain does not need.

    `drain_for(seconds)` tells the schedule how long the drain may take, `nudge()` makes that thread look at the queue's
    phase, `describe()` tells what it is doing. `end_asks()` tells the callers of asks that no answer comes.
    """

    def __init__(
        self,
        name: str,
        queue: Inbox,
        drain: Drain,
        coroutines: OpenCoroutines,
        drain_for: Callable[[float], None],
        nudge: Callable[[], None],
        describe: Callable[[], str],
        end_asks: Callable[[], None],
    ) -> None:
        self._name = name
        self._queue = queue
        self._drain = drain
        self._coroutines = coroutines
        self._drain_for = drain_for
        self._nudge = nudge
        self._describe = describe
        self._end_asks = end_asks
        self._has_given_up = False  # a wait has ended, and the thread had not; any thread sets it

    @staticmethod
    def wait_for_all(waits: Sequence[StopWait], timeout_s: float) -> None:
        """Wait until all is handled and the threads have ended; after the timeout, discard and report what is left.

        A thread that an earlier wait has given up on is not waited for.
        """
        waits = [each for each in waits if not each._has_given_up]
        started, grace, late = monotonic(), grace_s(timeout_s), waits
        for each in waits:
            each.begin(timeout_s - grace)
        try:
            late = _wait(waits, timeout_s - grace)
        finally:  # a KeyboardInterrupt also ends the wait
            for each in late:
                each._abandon()
            left_s = started + timeout_s - monotonic()  # to discard a long queue takes time
            _give_up(late, started, max(0.0, min(grace, left_s)))

    def begin(self, timeout_s: float) -> None:
        """The drain may take so long: have the thread look at the queue's phase."""
        self._drain_for(timeout_s)
        self._nudge()

    def _abandon(self) -> None:
        self._queue.shutdown.shut(ABANDONED)
        self._queue.shutdown.discard()
        self._nudge()

    def _give_up_on_coroutines(self, waited_s: float) -> None:
        message = "%s: stop gave up after %.3g s and cancels the coroutines of %s:\n%s"
        count, what = self._coroutines.count, self._coroutines.describe()
        self._coroutines.give_up_soon()
        fields = {"dispatcher": self._name, "seconds": waited_s, "count": count}
        tell(log, logging.ERROR, message, self._name, waited_s, counted(count, "event"), what, extra=fields)

    def _give_up_on_handler(self, waited_s: float) -> None:
        """Log where the handler hangs, and leave it."""
        self._has_given_up = True
        message = "%s: stop gave up after %.3g s: a handler is still %s"
        fields = {"dispatcher": self._name, "seconds": waited_s}
        tell(log, logging.ERROR, message, self._name, waited_s, self._describe(), extra=fields)
        self._end_asks()


def _wait(waits: Sequence[StopWait], timeout_s: float) -> list[StopWait]:
    """Wait for the threads; returns those that have not ended."""
    left_s, deadline = timeout_s, monotonic() + timeout_s
    for each in waits:
        each._drain.finished.wait(left_s)
        left_s = max(0.0, deadline - monotonic())
    return [each for each in waits if not each._drain.finished.is_set()]


def _give_up(late: Sequence[StopWait], started: float, grace: float) -> None:
    """Wait for coroutines and handlers that are about to end, and report the others."""
    if any(each._coroutines.count for each in late):
        grace /= 2  # one half for coroutines that are about to end, one for the threads that give up on the others
        late = _wait(late, grace)
        for each in late:
            if each._coroutines.count:
                each._give_up_on_coroutines(monotonic() - started)
    for each in _wait(late, grace):
        each._give_up_on_handler(monotonic() - started)
