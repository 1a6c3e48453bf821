"""Where the mailbox thread waits while it has nothing to do, and how other threads wake it.

The mailbox thread announces its wait, looks for work a last time, and waits. Other threads bring their work first and
look for an announced wait afterwards. So one of the two sees the other, and no wake-up is lost.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable


class Parking:
    """The wait of one thread, which alone calls `announce` and `wait`. The rest is for any thread and never blocks."""

    __slots__ = ("duties", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held; the mailbox thread waits for it, and a thread that wakes it releases it
        self.lock.acquire()
        # Holds the release of `lock` while a wait is announced or under way. Popping it is atomic, and obliges the
        # thread that popped it to call it: each wait is ended once. A KeyboardInterrupt may cut that short; a thread
        # that is not sure whether it has released does so again, and the mailbox thread copes with a wait that ends
        # for nothing.
        self.duties: list[Callable[[], None]] = []  # the mailbox thread appends and clears; any thread pops

    def announce(self) -> None:
        """From now on `unpark` ends the wait that follows. Look for work once more after this, then `wait`."""
        self.duties.append(self.lock.release)

    def wait(self) -> None:
        """Wait until another thread ends the wait."""
        self.lock.acquire()
        if self.duties:
            self.duties.clear()  # of a wake-up that was not meant for this wait

    def withdraw(self) -> None:
        """The announced wait does not take place, or was interrupted."""
        self.duties.clear()

    def is_waiting(self) -> bool:
        """The mailbox thread waits, or is about to; a moment's truth."""
        return bool(self.duties)

    def unpark(self) -> None:
        """End the wait, if there is one."""
        try:
            self.duties.pop()
            self.lock.release()
        except IndexError:
            return
        except BaseException as error:  # KeyboardInterrupt, perhaps with the duty taken
            self.release_anyhow()
            if not isinstance(error, RuntimeError):  # raised by a release too many
                raise

    def release_anyhow(self) -> None:
        """End the wait, or else the next one at once."""
        with contextlib.suppress(RuntimeError):  # it is released already
            self.lock.release()
