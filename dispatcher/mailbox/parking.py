"""Where the idle mailbox thread waits, and how other threads wake it.

The mailbox thread announces its wait, looks for work once more, and waits. Another thread adds its work first, and then
looks for an announced wait. So at least one of the two sees the other, and no wake-up is lost.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from dispatcher.util.descriptors import EventFile
from dispatcher.util.threads import release_anyhow

SIGNAL: Final = (1).to_bytes(8, sys.byteorder)
"""What an eventfd is to add."""


class WaitLock(Protocol):
    """A lock that is held: `acquire` waits for a `release` by another thread."""

    def acquire(self) -> Any: ...

    def release(self) -> Any: ...


class DescriptorLock:
    """A WaitLock whose `release` lets go of the GIL while it wakes the other thread. Linux only.

    A thread that a plain lock wakes has to wait for the GIL. On one core it may even preempt the thread that woke it,
    only to find the GIL taken, and the two switch back and forth. `release` may be called twice: `acquire` returns once
    for both, or once for each.

    Raises:
        OSError: half of the descriptors that the process may have are open, or the system has no eventfd.
    """

    __slots__ = ("acquire", "release", "write")

    def __init__(self) -> None:
        file = EventFile()
        # These never change. Each keeps the file open, so a late release goes to no other file.
        self.acquire: Callable[[], Any] = partial(file.read, len(SIGNAL))
        self.release: Callable[[], Any] = partial(file.write, SIGNAL)
        self.write: Callable[[bytes], Any] = file.write


class Parking:
    """The wait of one thread, which alone calls `announce` and `wait`. Any thread calls the rest; it never blocks."""

    __slots__ = ("duties", "knock", "lock", "take_duty")

    def __init__(self) -> None:
        # Held; the mailbox thread waits for it, a waking thread releases it. Replaced before the first wait and after
        # the last one only.
        self.lock: WaitLock
        # `knock(SIGNAL)` is `lock.release()` in one call, in C. It works at each depth of the stack at which an append
        # to a deque works, so also where `unpark` meets the limit of recursion. Replaced with the lock.
        self.knock: Callable[[bytes], Any]
        self.retire()
        # One entry while a wait is announced or under way. The thread that pops it, which is atomic, must release
        # `lock`, so each wait is ended once. If a KeyboardInterrupt leaves a thread unsure whether it has released, it
        # releases again: the mailbox thread tolerates a wait that ends without work.
        self.duties: list[Callable[[], None]] = []  # the mailbox thread appends and clears; any thread pops
        # Pops one. It needs as much of the stack as a release, so whoever has got the duty can do it. Never changes.
        self.take_duty: Callable[[], Callable[[], None]] = partial(self.duties.pop)

    def wake_sooner(self) -> None:
        """Wait for a descriptor from now on, if enough are left. Before the first wait, in its process."""
        with contextlib.suppress(OSError):
            lock = DescriptorLock()
            self.lock, self.knock = lock, lock.write

    def retire(self) -> None:
        """Do without the descriptor again. The mailbox thread, at its end."""
        lock = threading.Lock()
        lock.acquire()
        self.lock = lock
        self.knock = lock.__exit__  # type: ignore[assignment]  # it takes whatever it is given

    def after_fork(self) -> None:
        """In a forked child, which shares the descriptor with its parent: a release would wake the parent's thread."""
        self.duties.clear()
        self.retire()

    def announce(self) -> None:
        """Let `unpark` end the wait that follows. Afterwards look for work once more, then `wait`."""
        self.duties.append(self.lock.release)

    def wait(self) -> None:
        """Wait until another thread ends the wait."""
        self.lock.acquire()
        if self.duties:
            self.duties.clear()  # a second release ended this wait, so its duty is still there

    def withdraw(self) -> None:
        """Cancel an announced wait, or clean up after an interrupted one."""
        self.duties.clear()

    def is_waiting(self) -> bool:
        """The mailbox thread waits or is about to wait; a snapshot."""
        return bool(self.duties)

    def unpark(self) -> None:
        """End the wait, if one is announced or under way."""
        try:
            self.take_duty()
            self.lock.release()
        except IndexError:
            return
        except RecursionError:  # the duty was not taken
            raise
        except BaseException as error:  # a KeyboardInterrupt, perhaps after the duty was taken
            self.release_anyhow()
            if not isinstance(error, RuntimeError):  # raised by releasing twice
                raise

    def release_anyhow(self) -> None:
        """End the current wait; without one, the next wait ends at once."""
        release_anyhow(self.lock)
