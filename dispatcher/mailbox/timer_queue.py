"""The waiting tasks of a time service, in the order in which they are due, and what services with such tasks share.

Exactly one of the queue, the thread that runs a task, and the thread that cancelled it owns the task. The queue's lock
decides which, so a cancelled task never runs, and a running task cannot be cancelled (of a periodic one, the later runs
can).
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from enum import Enum

from dispatcher.errors import DispatcherError, ForkedProcessError, InvalidValueError
from dispatcher.mailbox.time_service import ProcessingTimeService, TimerCallback, TimerFuture
from dispatcher.util.functions import require_plain

_SWEEP_FROM = 64
"""The number of entries of cancelled tasks that is not worth a sweep."""


class ServiceStatus(Enum):
    ALIVE = "ALIVE"
    QUIESCED = "QUIESCED"
    SHUTDOWN = "SHUTDOWN"
    FORKED = "FORKED"  # a copy in a child process, whose thread stayed with the parent


class _TaskStatus(Enum):
    WAITING = "WAITING"  # in the queue
    TAKEN = "TAKEN"  # by the thread that runs it; final unless periodic
    WITHDRAWN = "WITHDRAWN"  # cancelled, or dropped because the service ended; final


def _ignore(_: int) -> None:
    """Replaces the callback of a finished task, to release at once what that refers to."""


def _notify_if_cancelled(future: Future[None]) -> None:
    # Without this, concurrent.futures.wait never sees the cancelled future done. A second call would raise, but done
    # callbacks run only once.
    if future.cancelled():
        future.set_running_or_notify_cancel()


class NeverCompletingFuture(Future[None]):
    """The future that a quiesced service returns (Flink's NeverCompleteFuture). It can be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.add_done_callback(_notify_if_cancelled)


class SharedFuture(Future[None]):
    """One that all callers of a method share: none can cancel it. Any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()

    def complete(self) -> None:
        """Complete it, unless another call has done so."""
        with suppress(InvalidStateError):
            self.set_result(None)


class TimerTask(Future[None]):
    """A callback, its time, and the caller's future: one object, because two would form a cycle."""

    def __init__(
        self, callback: TimerCallback, timestamp_ms: int, period_ms: int = 0, fixed_delay: bool = False
    ) -> None:
        super().__init__()
        callback = require_plain(callback, "the callback of a timer", "takes the time")
        self.callback = callback  # written under the queue's lock, or by the thread that runs it, if not periodic
        self.timestamp_ms = timestamp_ms  # the scheduled time; written by the thread that runs the task
        self.due_ms: float = timestamp_ms  # set when the task is added; written by the thread that runs the task
        self.period_ms = period_ms  # 0: not periodic; never changes
        self.fixed_delay = fixed_delay  # never changes
        self.status = _TaskStatus.WAITING  # guarded by the queue's lock
        self.queue: TimerQueue | None = None  # set when the task is added, before other threads see it
        self.order = -1  # the key of a waiting task; guarded by the queue's lock
        self.add_done_callback(_notify_if_cancelled)

    def cancel(self) -> bool:
        """Prevent the run, or later runs, of the task; False if it is too late."""
        # Only a thread that withdrew the task may change the future's state; otherwise the thread that runs it does.
        return self.queue is not None and self.queue.withdraw(self) and super().cancel()


class TimerQueue:
    """The tasks of one service. Any thread may call; the caller holds `lock` only where a method says so.

    A task is due by `steady_ms`, a clock that is never set. The time that its callback gets is another one.
    """

    def __init__(self, name: str, steady_ms: Callable[[], float]) -> None:
        self._name = name  # never changes
        self._steady_ms = steady_ms  # never changes
        self.lock: threading.Lock = threading.Lock()  # leaf lock; replaced in a forked child
        # Notified under `lock` of a task that is due before the thread wakes, and of the end.
        self.changed: threading.Condition = threading.Condition(self.lock)
        self._waiting: dict[int, TimerTask] = {}  # the WAITING tasks by order of entry; guarded by lock
        # Due ms and order of entry, some of tasks that are gone; guarded by lock.
        self._heap: list[tuple[float, int]] = []
        # Written under lock, read by any thread; ALIVE -> QUIESCED -> SHUTDOWN, never back.
        self.status: ServiceStatus = ServiceStatus.ALIVE
        self._order = itertools.count()  # guarded by lock
        # When the service's thread wakes by itself; -inf while it is awake or does not exist. Guarded by lock.
        self.asleep_until_ms: float = -math.inf

    def add(self, task: TimerTask, due_ms: float) -> TimerFuture:
        """Queue a task until `due_ms`. Returns its future, or one that never completes if the service is quiesced.

        Raises:
            DispatcherError: the service is shut down.
            ForkedProcessError: the thread that would run the task is in the parent process.
        """
        with self.lock:
            if self.status is ServiceStatus.FORKED:
                raise ForkedProcessError(self._name)
            if self.status is ServiceStatus.SHUTDOWN:
                raise DispatcherError(
                    f"{self._name}: the timer service is shut down; register timers before, or make a new service"
                )
            if self.status is ServiceStatus.QUIESCED:
                return NeverCompletingFuture()
            task.queue = self
            task.due_ms = due_ms
            self._push(task)
            # The head may be an earlier task, whose own call was interrupted by a signal handler before it notified.
            if self._heap[0][0] < self.asleep_until_ms:
                self.changed.notify()
        return task

    def size(self) -> int:
        return len(self._waiting)

    def next_due_ms(self) -> float | None:
        """When the first task is due; None if none waits. The caller holds `lock`."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: float | None) -> TimerTask | None:
        """Take the first task for `run`, if it is due (`now_ms` None: in any case). The caller holds `lock`."""
        due_ms = self.next_due_ms()
        if due_ms is None or (now_ms is not None and due_ms > now_ms):
            return None
        task = self._waiting.pop(heapq.heappop(self._heap)[1])
        task.status = _TaskStatus.TAKEN
        return task

    def run(self, task: TimerTask, clock_ms: Callable[[], int]) -> None:
        """Call a task that was taken; a periodic one then waits again. Raises what the callback raises.

        `clock_ms` tells the time that callbacks get. The future also gets the error, unless the task is periodic: that
        continues.
        """
        if task.period_ms:
            try:
                task.callback(task.timestamp_ms)
            finally:
                self._repeat(task, clock_ms(), self._steady_ms())
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
        """Remove the task, so that no thread takes it; False if it has been taken for its only run."""
        callback = task.callback  # kept until the lock is released: freeing it may run other code
        with self.lock:
            if task.status is _TaskStatus.TAKEN and not task.period_ms:
                return False
            task.status = _TaskStatus.WITHDRAWN
            task.callback = _ignore
            self._waiting.pop(task.order, None)
            # Most timers are time-outs, cancelled long before their time. Two numbers of each stay in the heap until a
            # sweep, once they outnumber the waiting tasks. So a cancellation costs O(1) on average.
            if len(self._heap) > 2 * len(self._waiting) + _SWEEP_FROM:
                self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
                heapq.heapify(self._heap)
        del callback
        return True

    def end(self, status: ServiceStatus) -> None:
        """Leave ALIVE, and cancel all waiting tasks. Idempotent, even after an interrupted call."""
        with self.lock:
            if self.status is not ServiceStatus.SHUTDOWN:
                self.status = status
            self.changed.notify_all()
        while True:
            # One by one, so that after an interrupt each task is either in the queue or cancelled.
            with self.lock:
                if self.next_due_ms() is None:
                    return
                task = self._waiting[self._heap[0][1]]
            task.cancel()

    def after_fork(self, *, has_thread: bool) -> None:
        """In a forked child. `has_thread`: the parent's thread runs the tasks, which wait there alone."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        if has_thread:
            self.status = ServiceStatus.FORKED
            self._waiting, self._heap = {}, []

    def _repeat(self, task: TimerTask, now_ms: int, steady_ms: float) -> None:
        with self.lock:
            if task.status is _TaskStatus.TAKEN:
                if task.fixed_delay:
                    task.timestamp_ms, task.due_ms = now_ms, steady_ms
                task.timestamp_ms += task.period_ms
                task.due_ms += task.period_ms
                task.status = _TaskStatus.WAITING
                self._push(task)
            alive = self.status is ServiceStatus.ALIVE
        if not alive:  # end() may have gone through the queue while the task was not in it
            task.cancel()

    def _push(self, task: TimerTask) -> None:
        task.order = next(self._order)
        self._waiting[task.order] = task
        heapq.heappush(self._heap, (task.due_ms, task.order))


class TimerService(ProcessingTimeService):
    """A ProcessingTimeService with a TimerQueue, for its owner: ALIVE -> QUIESCED -> SHUTDOWN, never back. Any thread.

    No callback begins once a service is not ALIVE; the futures of pending and of periodic tasks are cancelled. A
    subclass runs the tasks.
    """

    def __init__(self, name: str) -> None:
        self._tasks = TimerQueue(name, self._steady_ms)  # has its own lock
        self._terminated = SharedFuture()  # thread-safe; completed once no callback runs, and none will

    @abstractmethod
    def shutdown(self, timeout: float | None = 1.0) -> bool:
        """Drop all tasks, reject new ones, and return whether a running callback ends within `timeout` seconds."""

    @abstractmethod
    def shutdown_uninterruptible(self, timeout: float) -> bool:
        """Shut down as `shutdown` does, but raise a KeyboardInterrupt during the wait only after it."""

    @abstractmethod
    def _steady_ms(self) -> float:
        """Now, in ms of the clock by which tasks are due. It is never set, so no interval changes its length."""

    @abstractmethod
    def _end(self, status: ServiceStatus) -> None:
        """Leave ALIVE, and complete `_terminated` if no callback runs."""

    def schedule_at_fixed_rate(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        return self._schedule(callback, initial_delay_ms, period_ms, fixed_delay=False)

    def schedule_with_fixed_delay(self, callback: TimerCallback, initial_delay_ms: int, period_ms: int) -> TimerFuture:
        return self._schedule(callback, initial_delay_ms, period_ms, fixed_delay=True)

    def quiesce(self) -> Future[None]:
        """Drop all tasks, and accept new ones that never run. Doesn't wait for a running callback.

        The future completes when that callback has ended and no other can begin. All calls return the same future,
        which can't be cancelled. A callback that waits for it waits forever.
        """
        self._end(ServiceStatus.QUIESCED)
        return self._terminated

    def is_terminated(self) -> bool:
        """Whether it's quiesced or shut down and no callback is running."""
        return self._terminated.done()

    def _schedule(
        self, callback: TimerCallback, initial_delay_ms: int, period_ms: int, *, fixed_delay: bool
    ) -> TimerFuture:
        if period_ms < 1:
            raise InvalidValueError(
                f"period_ms must be 1 or more, got {period_ms}; for a single call use register_timer"
            )
        task = TimerTask(callback, self.current_processing_time() + initial_delay_ms, period_ms, fixed_delay)
        return self._add(task, self._steady_ms() + initial_delay_ms)

    def _add(self, task: TimerTask, due_ms: float) -> TimerFuture:
        return self._tasks.add(task, due_ms)
