"""The bound of an event queue: permits, and the policy for a producer that finds none.

A post takes a permit before it is queued, and whoever takes its event out of the queue returns one. A producer that has
to wait lines up, and looks for a permit once more; whoever returns one looks for producers that wait. The deque of
permits has a lock of its own, so for each return and each last look one comes first:

    producer   lines up, sets `is_crowded` (R1), then   takes a permit, the last look (R2)
    giver      appends the permit, then                 reads `is_crowded` (R3)

If the append came before the last look, that finds the permit, or another producer has. Otherwise R1 came before the
append, and so R3 sees it.

A waiting thread's turn is a lock, a waiting task's wakes the task on its event loop. A released turn lets its producer
look for a permit. It grants none, so a loop that has stopped keeps no permit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from dispatcher.errors import QueueFullError
from dispatcher.queue.entry import OWN, Entry
from dispatcher.util.foreign import cut_text

if TYPE_CHECKING:
    from dispatcher.config import DispatcherConfig

Answer = Literal["permit", "timeout", "shut", "reentrant"]

_LOOK_S: Final = 0.1
"""A producer that waits looks this often whether its own thread has the last permit."""


class ProducerTurn(Protocol):
    """A waiting producer's place in the line for room."""

    def release(self) -> bool | None:
        """Have the producer look again. Any thread; raises nothing. True: it may not look soon, so wake the next one
        as well."""


class RoomQueue(Protocol):
    """What the room needs of the inbox, which says what these are."""

    name: str
    entries: deque[Any]

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def is_open(self) -> bool: ...

    def is_idle(self) -> bool: ...

    def shut_reason(self) -> str: ...

    def drop_oldest(self, entry: Entry) -> bool: ...


class QueueRoom:
    """Permits for the events of one queue. Any thread.

    `is_inside()`: the caller is a handler, which never waits and is never refused (invariant 8). `on_size(size,
    remaining)` is called when the queue is full.
    """

    def __init__(
        self,
        inbox: RoomQueue,
        config: DispatcherConfig,
        is_inside: Callable[[], bool],
        on_size: Callable[[int, int | None], None],
    ) -> None:
        self._inbox = inbox
        self._name = inbox.name
        self.capacity: Final = config.queue_capacity
        self._full_policy: Final = config.queue_full_policy
        self._timeout_s: Final = config.queue_full_timeout_s
        self._warn_after_s: Final = config.handler_warn_after_s
        self._is_inside = is_inside
        self.on_size = on_size
        # Called by a producer, with its name, after each `handler_warn_after_s` of its wait, until it returns True. Set
        # before the start.
        self.on_long_wait: Callable[[str], bool] = _ignore
        self.has_started = False  # the handler thread has started, or is about to; the thread that starts it sets this
        self.permits: deque[None] = deque([None] * (self.capacity or 0))  # any thread appends and pops
        self._overdrawn = 0  # permits that handlers have taken, and that are not there; guarded by the inbox's lock
        self.waiters: deque[ProducerTurn] = deque()  # the longest wait first; guarded by that lock
        # Whoever returns a permit has to look at `_overdrawn` and `waiters`. Written under that lock, read without.
        self.is_crowded: bool = False

    def remaining(self) -> int | None:
        """The number of permits left; None: no bound. Any thread."""
        return None if self.capacity is None else len(self.permits)

    def is_full(self) -> bool:
        """The queue is at its capacity, or a producer still waits for room. Any thread."""
        return self.capacity is not None and (not self.permits or bool(self.waiters))

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, entry: Entry, wait: bool, is_nested: bool = False) -> str:
        """Give the entry a permit, if the queue is bounded. If none is left, apply the policy.

        `is_nested`: the post has interrupted another one of its thread, which may have the last permit, so it must not
        wait. Returns why the post is refused; empty: it is not.

        Raises:
            QueueFullError: the policy is to block, and the caller does not `wait`, or the dispatcher is not started.
        """
        if self.capacity is None or entry.permit or self.try_take(entry):
            return ""
        return self._make(entry, wait, is_nested)

    def try_take(self, entry: Entry) -> bool:
        """Give the entry a permit if there is one. Never blocks."""
        try:
            self.permits.popleft()
        except BaseException as error:
            if error.__class__ is IndexError:
                return False
            traceback = error.__traceback__
            entry.permit = traceback is None or traceback.tb_next is not None or error.__class__ not in OWN
            raise
        entry.permit = True
        return True

    def _make(self, entry: Entry, wait: bool, is_nested: bool = False) -> str:
        if self._is_inside():
            self._overdraw(entry)
            return ""
        self.on_size(len(self._inbox.entries), 0)
        if self._full_policy == "reject":
            return "full"
        if self._full_policy != "drop_oldest" and not wait:
            raise QueueFullError(self._name, self.capacity or 0)
        if self._full_policy == "drop_oldest":
            answer = self._drop_oldest(entry)
        else:
            answer = self._wait_and_take(entry) if not is_nested else "reentrant"
        if answer == "permit":
            return ""
        return self._inbox.shut_reason() if answer == "shut" else answer

    def take_or_overdraw(self, entry: Entry) -> None:
        """Give the entry a permit, be there one or not. Any thread."""
        if self.capacity is not None and not entry.permit and not self.try_take(entry):
            self._overdraw(entry)

    def take_for_accepted(self, entry: Entry) -> bool:
        """Take a permit for an event that was accepted before, so it is never refused; False: it waits for room."""
        if self.capacity is None or entry.permit or self.try_take(entry):
            return True
        return (self._full_policy == "drop_oldest" or self._is_inside()) and not self._make(entry, False)

    def refusal(self) -> str:
        """Why `take` refuses an event of a queue that is not shut."""
        if self._full_policy == "reject":
            return "full"
        return "timeout" if self._full_policy == "block" and self._timeout_s is not None else "reentrant"

    def _overdraw(self, entry: Entry) -> None:
        """Let the entry have, in advance, the next permit that is returned."""
        with self._inbox.lock:
            self._overdrawn, entry.permit, self.is_crowded = self._overdrawn + 1, True, True
            self._pay_back()  # with a permit that was returned meanwhile

    def advance(self) -> None:
        """Under the lock: return, in advance, the permit of a place whose event was withdrawn."""
        self._overdrawn, self.is_crowded = self._overdrawn + 1, True
        self.permits.append(None)

    # -- giving back ---------------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Return the permit of a place that has left the queue. Any thread."""
        self.permits.append(None)
        if self.is_crowded:  # R3
            self.relieve()

    def take_back(self, entry: Entry) -> None:
        """Return the permit of an entry that is not queued. Any thread."""
        try:
            self.permits.append(None)
        except BaseException as error:
            traceback = error.__traceback__
            entry.permit = traceback is not None and traceback.tb_next is None and error.__class__ in OWN
            raise
        entry.permit = False
        if self.is_crowded:  # R3
            self.relieve()

    def relieve(self) -> None:
        """After returning a permit to a crowded queue: pay back an overdraft, or wake a producer. Any thread."""
        with self._inbox.lock:
            self._pay_back()
            turn = self.waiters.popleft() if self.waiters and self.permits else None
            self.is_crowded = bool(self._overdrawn or self.waiters)
        if turn is not None and turn.release():
            self.wake_one()

    def _pay_back(self) -> None:
        """Under the lock: pay back one permit of the overdraft. Others may have been returned for withdrawn events.

        Counted before it is taken: the post of a signal handler may come between, on this thread, and pay back as well.
        """
        if self._overdrawn > 0 and self.permits:
            self._overdrawn -= 1
            try:
                self.permits.popleft()
            except IndexError:  # a producer was faster
                self._overdrawn += 1

    def wake_one(self) -> None:
        """Let the producer that has waited longest look for a permit. Any thread; call it after returning one."""
        while True:
            with self._inbox.lock:
                turn = self.waiters.popleft() if self.waiters else None
            if turn is None or not turn.release():
                return

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

    # -- waiting -------------------------------------------------------------------------------------------------------

    def enter(self, turn: ProducerTurn) -> None:
        """Line up. The producer looks for a permit after this, waits, and looks again; then it calls `leave`.

        Raises:
            QueueFullError: no thread makes room, because the dispatcher is not started.
        """
        inbox = self._inbox
        if not self.has_started and inbox.is_open():
            raise QueueFullError(self._name, self.capacity or 0, is_started=False)
        with inbox.lock:
            self.waiters.append(turn)
            self.is_crowded = True  # R1

    def leave(self, turn: ProducerTurn) -> None:
        """This producer no longer waits for its turn. If it was woken meanwhile, another one may need that."""
        with self._inbox.lock:
            try:
                self.waiters.remove(turn)
                return
            except ValueError:
                pass
        if self.permits:
            self.wake_one()

    def _wait_and_take(self, entry: Entry) -> Answer:
        inbox, looks = self._inbox, 0
        patience = self.patience(_this_thread) if self._timeout_s is not None else None
        while True:
            turn = threading.Lock()
            turn.acquire()
            try:
                self.enter(turn)
                if not inbox.is_open():
                    return "shut"
                if self.try_take(entry):  # R2
                    return "permit"
                while not turn.acquire(timeout=_LOOK_S if patience is None else min(patience.step_s(), _LOOK_S)):
                    if patience is None:  # most waits end sooner, and do without
                        patience = self.patience(_this_thread)
                    looks = looks + 1 if inbox.is_idle() and not self.permits else 0
                    if looks > 1:  # the last permit is in a post that this one has interrupted
                        return "reentrant"
                    if patience.is_over():
                        return "permit" if self.try_take(entry) else "timeout"
                if inbox.is_open() and self.try_take(entry):
                    return "permit"
            finally:  # after a KeyboardInterrupt, too
                self.leave(turn)

    def patience(self, producer: Callable[[], str]) -> Patience:
        """How long a producer that begins to wait now does so. `producer()` tells which one, for the log."""
        return Patience(self._timeout_s, self._warn_after_s, producer, self.on_long_wait)

    def _drop_oldest(self, entry: Entry) -> Answer:
        """Take a permit, or discard the oldest event and take over its permit."""
        inbox, looks = self._inbox, 0
        while not self.try_take(entry):
            if not inbox.is_open():  # no thread may be left to return a permit
                return "shut"
            if inbox.drop_oldest(entry):
                break
            looks += 1
            if looks > 1000:  # a post that this one has interrupted has the last permit
                return "reentrant"
            sleep(0)  # another thread has the permit: it is about to append, or to return it
        return "permit"


class Patience:
    """The wait of one producer for room: until its timeout, in steps after which it may log what it waits for."""

    def __init__(
        self,
        timeout_s: float | None,
        warn_after_s: float | None,
        producer: Callable[[], str],
        on_long_wait: Callable[[str], bool],
    ) -> None:
        now_s = monotonic()
        self._deadline = now_s + timeout_s if timeout_s is not None else None  # never changes
        self._warn_after_s = warn_after_s  # None: no warning, or no other one; the producer, which owns this
        self._warn_at = now_s + warn_after_s if warn_after_s is not None else None  # the producer
        self._producer = producer  # never changes
        self._on_long_wait = on_long_wait  # never changes

    def step_s(self) -> float:
        """How long to wait before `is_over` is to be asked."""
        ends = [each for each in (self._deadline, self._warn_at) if each is not None]
        return max(0.0, min(ends) - monotonic()) if ends else threading.TIMEOUT_MAX

    def is_over(self) -> bool:
        """After a step in which the producer was not woken: whether its time is over."""
        now_s = monotonic()
        if self._deadline is not None and now_s >= self._deadline:
            return True
        if self._warn_at is not None and self._warn_after_s is not None and now_s >= self._warn_at:
            self._warn_at = None if self._on_long_wait(cut_text(self._producer)) else now_s + self._warn_after_s
        return False


def _ignore(_: str) -> bool:
    return True


def _this_thread() -> str:
    return f"thread {threading.current_thread().name}"
