"""What the time services share: the tasks that wait, in the order in which they are due, and the service's state.

A task is in the hands of exactly one of: the queue, who took it to run it, who cancelled it. Which one is decided under
the queue's lock, so a task that is cancelled never runs, and one that begins to run can no longer be cancelled (unless
it is periodic: that cancels the runs to come).
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum

from dispatcher.errors import DispatcherError
from dispatcher.mailbox.time_service import TimerCallback, TimerFuture

_SWEEP_FROM = 64
"""Fewer entries of cancelled tasks than this are not worth a sweep."""


class ServiceStatus(Enum):
    """Flink's names."""

    ALIVE = "ALIVE"
    QUIESCED = "QUIESCED"
    SHUTDOWN = "SHUTDOWN"


class _TaskStatus(Enum):
    WAITING = "WAITING"  # in the queue
    TAKEN = "TAKEN"  # by who runs it; for ever, if it is not periodic
    WITHDRAWN = "WITHDRAWN"  # by who cancelled it, or because the service ended; for ever


def _ignore(_: int) -> None:
    """Instead of the callback of a task that is over, so that what the callback holds is let go at once."""


def _notify_if_cancelled(future: Future[None]) -> None:
    # Nobody will try to run it, and without this concurrent.futures.wait never sees a cancelled future done.
    # A future runs its done callbacks once, so this cannot be the second time, which would raise.
    if future.cancelled():
        future.set_running_or_notify_cancel()


class NeverCompletingFuture(Future[None]):
    """What a quiesced service gives for a task (Flink's NeverCompleteFuture). It can be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.add_done_callback(_notify_if_cancelled)


class TimerTask(Future[None]):
    """A callback and when to call it, and the future that the caller gets: one object, so there is no cycle of two."""

    def __init__(
        self, callback: TimerCallback, timestamp_ms: int, period_ms: int = 0, fixed_delay: bool = False
    ) -> None:
        super().__init__()
        self.callback = callback  # written under the queue's lock, or by who has taken a task that is not periodic
        self.timestamp_ms = timestamp_ms  # the scheduled time; written by who has taken the task
        self.period_ms = period_ms  # 0: not periodic; never changes
        self.fixed_delay = fixed_delay  # never changes
        self.status = _TaskStatus.WAITING  # guarded by the queue's lock
        self.queue: TimerQueue | None = None  # set when it is added, before anybody else sees it
        self.order = -1  # its key among those that wait; guarded by the queue's lock
        self.add_done_callback(_notify_if_cancelled)

    def cancel(self) -> bool:
        """Keep the task from running, or from running again; False if it is too late for that."""
        # Who does not get it from the queue must not touch the future's state: the one who runs it does.
        return self.queue is not None and self.queue.withdraw(self) and super().cancel()


def periodic(callback: TimerCallback, first_ms: int, period_ms: int, *, fixed_delay: bool) -> TimerTask:
    if period_ms < 1:
        raise ValueError(f"period_ms must be 1 or more, got {period_ms}; for a single call use register_timer")
    return TimerTask(callback, first_ms, period_ms, fixed_delay)


class TimerQueue:
    """The tasks of one service. Any thread may call; `lock` is held by the caller only where it says so."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lock = threading.Lock()  # leaf lock
        self.changed = threading.Condition(self.lock)  # notified of a new head, and of the end
        self._waiting: dict[int, TimerTask] = {}  # by order of entry: all that are WAITING; guarded by lock
        self._heap: list[tuple[int, int]] = []  # due ms, order of entry: of all these, of some gone; guarded by lock
        self._status = ServiceStatus.ALIVE  # guarded by lock; ALIVE -> QUIESCED -> SHUTDOWN, never back
        self._order = itertools.count()  # guarded by lock

    @property
    def status(self) -> ServiceStatus:
        """Under `lock` it holds until that is released; else it may be out of date, but never goes back."""
        return self._status

    def add(self, task: TimerTask, due_ms: int) -> TimerFuture:
        """Keep a task until `due_ms`. Gives its future, or one that never completes if the service is quiesced.

        Raises:
            DispatcherError: the service is shut down.
        """
        with self.lock:
            if self._status is ServiceStatus.SHUTDOWN:
                raise DispatcherError(
                    f"{self._name}: the timer service is shut down; register timers before, or make a new service"
                )
            if self._status is ServiceStatus.QUIESCED:
                return NeverCompletingFuture()
            task.queue = self
            self._push(task, due_ms)
            if self._heap[0][1] == task.order:
                self.changed.notify()
        return task

    def size(self) -> int:
        """How many tasks wait."""
        return len(self._waiting)

    def next_due_ms(self) -> int | None:
        """When the first task is due, if there is one. The caller holds `lock`."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int | None) -> TimerTask | None:
        """The first task if it is due (None: in any case), to be given to `run`. The caller holds `lock`."""
        due_ms = self.next_due_ms()
        if due_ms is None or (now_ms is not None and due_ms > now_ms):
            return None
        task = self._waiting.pop(heapq.heappop(self._heap)[1])
        task.status = _TaskStatus.TAKEN
        return task

    def run(self, task: TimerTask, clock_ms: Callable[[], int]) -> None:
        """Call a task that was taken, and let it wait again if it is periodic. What the callback raises is raised.

        It is also given to the future, unless the task is periodic: that carries on.
        """
        if task.period_ms:
            try:
                task.callback(task.timestamp_ms)
            finally:
                self._repeat(task, clock_ms())
            return
        task.set_running_or_notify_cancel()
        try:
            task.callback(task.timestamp_ms)
        except BaseException as error:
            task.set_exception(error)
            raise
        finally:
            task.callback = _ignore
        task.set_result(None)

    def withdraw(self, task: TimerTask) -> bool:
        """Nobody will take the task from now on; says so, or False if it has been taken for its only run."""
        callback = task.callback  # kept until the lock is released: what goes with it may run code of its own
        with self.lock:
            if task.status is _TaskStatus.TAKEN and not task.period_ms:
                return False
            task.status = _TaskStatus.WITHDRAWN
            task.callback = _ignore
            self._waiting.pop(task.order, None)
            # Most timers are time-outs, and cancelled long before their time. Only two numbers of each are left, and
            # swept when they are the greater part: so there never are many, and a cancellation costs O(1) on average.
            if len(self._heap) > 2 * len(self._waiting) + _SWEEP_FROM:
                self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
                heapq.heapify(self._heap)
        del callback
        return True

    def end(self, status: ServiceStatus) -> None:
        """Leave ALIVE, and cancel all that waits. Any number of calls, also after one that was interrupted."""
        with self.lock:
            if self._status is not ServiceStatus.SHUTDOWN:
                self._status = status
            self.changed.notify_all()
        while True:
            # One by one, so that an interrupt leaves no task that is neither in the queue nor cancelled.
            with self.lock:
                if self.next_due_ms() is None:
                    return
                task = self._waiting[self._heap[0][1]]
            task.cancel()

    def _repeat(self, task: TimerTask, now_ms: int) -> None:
        with self.lock:
            if task.status is _TaskStatus.TAKEN:
                task.timestamp_ms = (now_ms if task.fixed_delay else task.timestamp_ms) + task.period_ms
                task.status = _TaskStatus.WAITING
                self._push(task, task.timestamp_ms)
            alive = self._status is ServiceStatus.ALIVE
        if not alive:  # end() may have gone through the queue while the task was not in it
            task.cancel()

    def _push(self, task: TimerTask, due_ms: int) -> None:
        task.order = next(self._order)
        self._waiting[task.order] = task
        heapq.heappush(self._heap, (due_ms, task.order))
