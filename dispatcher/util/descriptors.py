"""File descriptors: a reserve for files that must be opened even when the process has none left, and eventfds."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable
from io import FileIO
from typing import Final, TypeVar

from dispatcher.util.forks import let_go_in_children, no_fork

if sys.platform == "linux":
    import resource

T = TypeVar("T")

NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
"""Error numbers of an `open` for which the process, or the system, has no descriptor left."""


class DescriptorReserve:
    """Holds up to `size` descriptors, and gives them up one by one to what cannot be opened otherwise.

    Another thread may take a descriptor that was given up for `run`; hence more than one. Any thread.
    """

    def __init__(self, size: int = 4) -> None:
        self._size = size  # read only
        self._lock = threading.Lock()  # leaf lock; replaced in a forked child
        self._held: list[int] = []  # guarded by _lock
        self._is_closed = False  # guarded by _lock
        let_go_in_children(self)
        self._fill()

    @property
    def held(self) -> int:
        """How many descriptors are in reserve."""
        return len(self._held)

    def run(self, action: Callable[[], T]) -> T:
        """Call `action`, again for each descriptor given up while it has none; then fill the reserve up, if possible.

        `action` opens files, and can be repeated after it has failed. Not called under a lock.

        Raises:
            OSError: raised by `action`: for lack of a descriptor only once the reserve is empty.
        """
        try:
            while True:
                try:
                    return action()
                except OSError as error:
                    if error.errno not in NO_DESCRIPTORS or not self._give_up_one():
                        raise
        finally:
            self._fill()

    def close(self) -> None:
        """Give the reserve up for good. Repeating it does nothing."""
        with self._lock:
            self._is_closed = True
        while self._give_up_one():
            pass

    def after_fork(self) -> None:
        """In a forked child, which opens nothing with it."""
        self._lock = threading.Lock()
        self.close()

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True

    def _fill(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # still none left: the next call tries again
            while len(self._held) < self._size and not self._is_closed:
                with no_fork():
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


class EventFile(FileIO):
    """An eventfd: a counter, at 0 first, for which threads wait without holding the GIL. Linux only.

    A write adds its 8 bytes to the counter. A read waits until the counter is not 0, and resets it; with `is_semaphore`
    it takes one off. The file is closed once nothing refers to this object, be it a bound method. Any thread.

    Its users can do without. So it leaves the upper half of the process's descriptors to the program.

    Raises:
        OSError: half of the descriptors that the process may have are open, or the system has no eventfd.
    """

    def __init__(self, *, is_semaphore: bool = False) -> None:
        if sys.platform != "linux":
            raise OSError("there is no eventfd")
        super().__init__(os.eventfd(0, os.EFD_CLOEXEC | (os.EFD_SEMAPHORE if is_semaphore else 0)), "r+b")
        # The system gives the lowest number that is free, so all below are open. The limit may change at any time.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY and self.fileno() >= limit // 2:
            self.close()
            raise OSError(errno.EMFILE, "half of the descriptors are open; the rest is for the program")

    def __del__(self) -> None:
        self.close()
