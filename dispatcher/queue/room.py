"""The bound of an event queue: permits, and the policy for a producer that finds none.

A producer takes a permit before it appends, and the handler thread returns one for each entry that it takes. Both are
atomic steps on a list, so the bound is strict without a lock. A producer that has to wait queues a turn of its own, and
looks for a permit once more before it waits. The handler thread returns a permit first, and then looks for a turn to
release. So at least one of the two sees the other, and no wake-up is lost.

A signal handler may raise behind any call that a producer makes. So a permit goes from one list to another, the
producer's `held`, in one call of a function in C: it is always in one of the two. A producer that fails gives back what
it holds.

A waiting thread's turn is a lock, a waiting task's wakes the task on its event loop. A released turn lets its producer
look for a permit. It grants none, so a loop that has stopped keeps no permit.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Final, Literal, Protocol

from dispatcher.config import DispatcherConfig
from dispatcher.errors import QueueFullError
from dispatcher.queue.coalescing import Coalescing
from dispatcher.queue.entries import RUNNING, QueuedEvent, QueueState
from dispatcher.util.foreign import cut_text

LAST: Final = (-1,)
"""The arguments of a `pop`, for `map`."""
Answer = Literal["permit", "timeout", "shut", "reentrant"]


class Turn(Protocol):
    """A waiting producer's place in the queue for room."""

    def release(self) -> bool | None:
        """Have the producer look again. Any thread; raises nothing. True: it may not look soon, so wake the next one
        as well."""


class QueueRoom:
    """Permits for the entries of one queue. Any thread may take one; the handler thread returns them.

    `is_inside()`: the caller is a handler, which never waits and is never refused (invariant 8). `is_nested()`: the
    post has interrupted another one of its thread, which may hold the last permit, so it must not wait. `on_size(size,
    remaining)` is called when the queue is full.
    """

    def __init__(
        self,
        name: str,
        config: DispatcherConfig,
        state: QueueState,
        coalescing: Coalescing,
        is_inside: Callable[[], bool],
        is_nested: Callable[[], bool],
        on_size: Callable[[int, int | None], None],
    ) -> None:
        self._name = name
        self.capacity: Final = config.queue_capacity
        self._full_policy: Final = config.queue_full_policy
        self._timeout_s: Final = config.queue_full_timeout_s
        self._warn_after_s: Final = config.handler_warn_after_s
        self._step_s: Final = threading.TIMEOUT_MAX if self._warn_after_s is None else self._warn_after_s
        self._state = state
        self._coalescing = coalescing
        self._is_inside = is_inside
        self._is_nested = is_nested
        self.on_size = on_size
        # Called by a producer, with its name, after each `handler_warn_after_s` of its wait, until it returns True. Set
        # before the start.
        self.on_long_wait: Callable[[str], bool] = _ignore
        self.has_started = False  # the handler thread has started, or is about to; the thread that starts it sets this
        self.permits: list[None] = [None] * (self.capacity or 0)  # any thread, in single steps
        self.overdrafts: list[None] = []  # an item for each entry that holds no permit; any thread, in single steps
        self.waiters: deque[Turn] = deque()  # of waiting producers, the longest wait first; any thread, in single steps
        # Whether the handler thread has to look at `overdrafts` and `waiters`; faster to read than the two lists.
        # Any thread sets it after adding to them; the handler thread resets it, and then looks at them once more.
        self.is_crowded = False

    def remaining(self) -> int | None:
        """The number of permits left; None: no bound. Any thread."""
        return None if self.capacity is None else len(self.permits)

    def is_full(self) -> bool:
        """The queue is at its capacity, or a producer still waits for room. Any thread."""
        return self.capacity is not None and (not self.permits or bool(self.waiters))

    def take(self, wait: bool, held: list[Any]) -> bool:
        """Move a permit into `held`, if the queue is bounded. If none is left, apply the policy; False: the post is
        refused.

        Raises:
            QueueFullError: the policy is to block, and the caller does not `wait`, or the dispatcher is not started.
        """
        return self.capacity is None or self.try_take(held) or self.make(wait, held)

    def try_take(self, held: list[Any]) -> bool:
        """Move a permit into `held` if there is one. Never blocks."""
        try:
            held.extend(map(self.permits.pop, LAST))
        except IndexError:
            if held:  # raised by a signal handler
                raise
            return False
        return True

    def make(self, wait: bool, held: list[Any]) -> bool:
        """As `take`, when no permit is left."""
        if self._is_inside():
            self.overdraw(held)
            return True
        self.on_size(len(self._state.entries), 0)
        if self._full_policy == "reject":
            return self._state.reject("full")
        if self._full_policy != "drop_oldest" and not wait:
            raise QueueFullError(self._name, self.capacity or 0)
        answer = self._drop_oldest(held) if self._full_policy == "drop_oldest" else self._wait_and_take(held)
        if answer == "permit":
            return True
        return self._state.reject_shut() if answer == "shut" else self._state.reject(answer)

    def take_or_overdraw(self) -> None:
        """Take a permit if the queue is bounded and one is left; never refuses. Any thread."""
        if self.capacity is not None and not self.try_take([]):
            self.overdraw([])

    def take_for_accepted(self) -> bool:
        """Take a permit for an event that was accepted before, so it is never refused; False: it waits for room."""
        if self.capacity is None or self.try_take([]):
            return True
        return (self._full_policy == "drop_oldest" or self._is_inside()) and self.make(False, [])

    def refusal(self) -> str:
        """Why `take` refuses an event of a queue that is not shut."""
        if self._full_policy == "reject":
            return "full"
        return "timeout" if self._full_policy == "block" and self._timeout_s is not None else "reentrant"

    def overdraw(self, held: list[Any]) -> None:
        """Count an entry that holds no permit; `held` gets what stands for one."""
        held.extend(map(self.overdrafts.append, (None,)))
        self.is_crowded = True

    def undo(self, held: list[Any]) -> None:
        """Return the permit, if any, of a post that appends no entry. Any thread."""
        if held and self.capacity is not None:
            held.clear()
            self.give_back()

    def give_back(self) -> None:
        """Return the permit of an entry, or cancel an overdraft if there is one. Any thread."""
        try:
            if self.overdrafts:
                self.overdrafts.pop()
                return
        except IndexError:  # another thread was faster
            pass
        self.permits.append(None)
        if self.waiters:
            self.wake_one()

    def serve(self) -> None:
        """As `give_back`, and reset `is_crowded` if no overdraft or waiting producer is left. Handler thread."""
        self.give_back()
        self.is_crowded = False
        # A thread that added to these before the reset is seen here; a later one sets the flag itself.
        if self.overdrafts or self.waiters:
            self.is_crowded = True

    def wake_one(self) -> None:
        """Let the producer that has waited longest look for a permit. Any thread; call it after returning one."""
        with contextlib.suppress(IndexError):  # none waits
            while self.waiters.popleft().release():
                pass

    def wake_all(self) -> None:
        """Let all waiting producers look at the queue's phase. Any thread."""
        while self.waiters:
            self.wake_one()

    def wake_if_room(self) -> None:
        """Wake a producer for each permit that is left. Any thread, at intervals.

        An event loop may stop after a wake-up has reached it. The producers behind its task need not wait for it.
        """
        for _ in range(min(len(self.permits), len(self.waiters))):
            self.wake_one()

    def _wait_and_take(self, held: list[Any]) -> Answer:
        if self._is_nested():
            return "reentrant"
        step_s, patience = self._step_s, self.patience(_this_thread) if self._timeout_s is not None else None
        while True:
            turn = threading.Lock()
            turn.acquire()
            try:
                self.enter(turn)
                if self._state.flags.phase != RUNNING:
                    return "shut"
                if self.try_take(held):
                    return "permit"
                while not turn.acquire(timeout=step_s if patience is None else patience.step_s()):
                    if patience is None:  # most waits end sooner, and do without
                        patience = self.patience(_this_thread)
                    if patience.is_over():
                        return "permit" if self.try_take(held) else "timeout"
                if self._state.flags.phase == RUNNING and self.try_take(held):
                    return "permit"
            finally:  # after a KeyboardInterrupt, too
                self.leave(turn)

    def patience(self, producer: Callable[[], str]) -> Patience:
        """How long a producer that begins to wait now does so. `producer()` tells which one, for the log."""
        return Patience(self._timeout_s, self._warn_after_s, producer, self.on_long_wait)

    def enter(self, turn: Turn) -> None:
        """Queue the turn. The producer looks for a permit after this, waits, and looks again; then it calls `leave`.

        Raises:
            QueueFullError: no thread makes room, because the dispatcher is not started.
        """
        if not self.has_started and self._state.flags.phase == RUNNING:
            raise QueueFullError(self._name, self.capacity or 0, is_started=False)
        self.waiters.append(turn)
        self.is_crowded = True

    def leave(self, turn: Turn) -> None:
        """This producer no longer waits for its turn. If it was woken meanwhile, another one may need that."""
        try:
            self.waiters.remove(turn)
        except ValueError:
            if self.permits:
                self.wake_one()

    def _drop_oldest(self, held: list[Any]) -> Answer:
        """Take a permit, or discard the oldest event and take over its permit: its entry stands for that in `held`."""
        while not self.try_take(held):
            if self._state.flags.phase != RUNNING:  # no thread may be left to return a permit
                return "permit"
            try:
                self._state.take_dropped("drop_oldest", held)
                self._end_dropped(held[0])
                break
            except BaseException as error:
                if held:  # raised by a signal handler: the event was taken, so it has to end, and may do so twice
                    self._end_dropped(held[0])
                if held or not isinstance(error, IndexError):
                    raise
            if self._is_nested():
                return "reentrant"
            sleep(0)  # another thread holds the permit: it is about to append, or to return it
        return "permit"

    def _end_dropped(self, entry: Any) -> None:
        if type(entry) is QueuedEvent:
            if entry.key is not None:
                self._coalescing.close(entry)
            self._state.settle(entry.accepted_seq)
            if entry.delivery is not None:
                entry.delivery.discard("drop_oldest")


class Patience:
    """The wait of one producer for room: until its timeout, in steps after which it may log what it waits for."""

    def __init__(
        self,
        timeout_s: float | None,
        warn_after_s: float | None,
        producer: Callable[[], str],
        on_long_wait: Callable[[str], bool],
    ) -> None:
        self._deadline = monotonic() + timeout_s if timeout_s is not None else None  # never changes
        self._warn_after_s = warn_after_s  # None: no warning, or no other one; the producer, which owns this
        self._producer = producer  # never changes
        self._on_long_wait = on_long_wait  # never changes

    def step_s(self) -> float:
        """How long to wait before `is_over` is to be asked."""
        step_s = threading.TIMEOUT_MAX if self._warn_after_s is None else self._warn_after_s
        return step_s if self._deadline is None else min(step_s, max(0.0, self._deadline - monotonic()))

    def is_over(self) -> bool:
        """After a step in which the producer was not woken: whether its time is over."""
        if self._deadline is not None and monotonic() >= self._deadline:
            return True
        if self._warn_after_s is not None and self._on_long_wait(cut_text(self._producer)):
            self._warn_after_s = None
        return False


def _ignore(_: str) -> bool:
    return True


def _this_thread() -> str:
    return f"thread {threading.current_thread().name}"
