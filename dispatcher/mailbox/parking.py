"""Where the idle mailbox thread waits, and how other threads wake it.

The mailbox thread announces its wait, looks for work once more, and waits. Another thread adds its work first, and then
looks for an announced wait. So at least one of the two sees the other, and no wake-up is lost.
"""

from __future__ import annotations

import contextlib
import math
import select
import sys
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Any, Final, Protocol

from dispatcher.util.descriptors import EventFile

SIGNAL: Final = (1).to_bytes(8, sys.byteorder)
"""What an eventfd is to add."""
NEVER: Final = 1 << 62
"""A time that does not come, in ns. An int: loops compare it with readings of the clock."""
_LONGEST_S: Final = 86_400.0
"""A wait for the alarm of another day ends, and begins again."""


class PlainLock:
    """`acquire` waits for a `release` by another thread; `acquire_within` returns False if none has come in time.

    `release` may be called twice: `acquire` returns once for both, or once for each. `knock(SIGNAL)` is `release()` in
    one call, in C.
    """

    __slots__ = ("_released", "acquire", "knock", "release")

    def __init__(self) -> None:
        # These never change.
        self._released: SimpleQueue[object] = SimpleQueue()
        self.acquire: Callable[[], Any] = self._released.get
        self.release: Callable[[], Any] = partial(self._released.put, None)
        self.knock: Callable[[bytes], Any] = self._released.put

    def acquire_within(self, seconds: float) -> bool:
        try:
            self._released.get(timeout=seconds)
        except Empty:
            return False
        return True


class WaitAlarm(Protocol):
    """What ends a wait in time."""

    next_ns: int
    """When, by perf_counter_ns; NEVER: it does not."""

    def fire(self) -> None:
        """It is time. The mailbox thread."""


class DescriptorLock:
    """A PlainLock whose `release` lets go of the GIL while it wakes the other thread. Linux only.

    A thread that a plain lock wakes has to wait for the GIL. On one core it may even preempt the thread that woke it,
    only to find the GIL taken, and the two switch back and forth.

    Raises:
        OSError: half of the descriptors that the process may have are open, or the system has no eventfd.
    """

    __slots__ = ("_file", "acquire", "knock", "release")

    def __init__(self) -> None:
        self._file = file = EventFile()
        # These never change. Each keeps the file open, so a late release goes to no other file.
        self.acquire: Callable[[], Any] = partial(file.read, len(SIGNAL))
        self.release: Callable[[], Any] = partial(file.write, SIGNAL)
        self.knock: Callable[[bytes], Any] = file.write

    def acquire_within(self, seconds: float) -> bool:
        waiting = select.poll()
        waiting.register(self._file, select.POLLIN)
        if not waiting.poll(math.ceil(seconds * 1000)):
            return False
        self.acquire()
        return True


class Parking:
    """The wait of one thread, which alone calls `announce` and `wait`. Any thread calls the rest; it never blocks."""

    __slots__ = ("alarm", "duties", "knock", "lock", "take_duty")

    def __init__(self) -> None:
        # Held; the mailbox thread waits for it, a waking thread releases it. Replaced before the first wait and after
        # the last one only.
        self.lock: PlainLock | DescriptorLock
        # The lock's. It works at each depth of the stack at which an append to a deque works, so also where `unpark`
        # meets the limit of recursion. Replaced with the lock.
        self.knock: Callable[[bytes], Any]
        self.retire()
        # One entry while a wait is announced or in progress. One thread pops it, and must release
        # `lock`, so each wait is ended once. If a KeyboardInterrupt leaves a thread unsure whether it has released, it
        # releases again: the mailbox thread tolerates a wait that ends without work.
        self.duties: list[Callable[[], None]] = []  # the mailbox thread appends and clears; any thread pops
        self.alarm: WaitAlarm | None = None  # ends a wait in time; set before the first one
        # Pops one. It needs as much of the stack as a release, so whoever has got the duty can do it. Never changes.
        self.take_duty: Callable[[], Callable[[], None]] = partial(self.duties.pop)

    def wake_sooner(self) -> None:
        """Wait for a descriptor from now on, if enough are left. Before the first wait, in its process."""
        with contextlib.suppress(OSError):
            self.lock = DescriptorLock()
            self.knock = self.lock.knock

    def retire(self) -> None:
        """Do without the descriptor again. The mailbox thread, at its end."""
        self.lock = PlainLock()
        self.knock = self.lock.knock

    def after_fork(self) -> None:
        """In a forked child, which shares the descriptor with its parent: a release would wake the parent's thread."""
        self.duties.clear()
        self.retire()

    def announce(self) -> None:
        """Let `unpark` end the wait that follows. Afterwards look for work once more, then `wait`."""
        self.duties.append(self.lock.release)

    def wait(self) -> None:
        """Wait until another thread ends the wait, and fire the alarm if it is time."""
        if not self.wait_in_time() and self.alarm is not None:
            self.alarm.fire()
        if self.duties:
            self.duties.clear()  # a second release ended this wait, so its duty is still there

    def wait_in_time(self) -> bool:
        """Wait until another thread ends the wait; False: it is time for the alarm."""
        next_ns = self.alarm.next_ns if self.alarm is not None else NEVER
        if next_ns == NEVER:
            self.lock.acquire()
            return True
        left_s = min(max(0.0, (next_ns - perf_counter_ns()) / 1e9), _LONGEST_S)
        return self.lock.acquire_within(left_s)

    def withdraw(self) -> None:
        """Cancel an announced wait, or clean up after an interrupted one."""
        self.duties.clear()

    def is_waiting(self) -> bool:
        """The mailbox thread waits or is about to wait; a snapshot."""
        return bool(self.duties)

    def unpark(self) -> None:
        """End the wait, if one is announced or in progress."""
        try:
            self.take_duty()
            self.lock.release()
        except IndexError:
            return
        except RecursionError:  # the duty was not taken
            raise
        except BaseException:  # a KeyboardInterrupt, perhaps after the duty was taken
            self.lock.release()  # without a wait, the next one ends at once
            raise
