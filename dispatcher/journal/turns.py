"""Events on their way into the write-ahead log, the gates at which their producers wait, and a leader's wait for them.

The leader of a batch opens one gate for all its producers. A lock for each would cost two more changes of threads for
each event: a thread that a lock wakes has to wait for the GIL, which the leader holds while it wakes the next one. To
open a `DescriptorGate` is one write to an eventfd, during which the leader lets go of the GIL.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Final

from dispatcher.errors import JournalError
from dispatcher.util.descriptors import EventFile
from dispatcher.util.threads import release_anyhow

_MANY: Final = (1 << 40).to_bytes(8, sys.byteorder)
"""Written to an eventfd to open it. Each wait takes one off, so this many threads may pass."""
_MOST_BATCHES_SKIPPED: Final = 64
_MOST_HALF_SYNCS: Final = 4


class ReentrantAppendError(JournalError):
    """An append interrupted its own thread, which uses the file. It was refused, and may be tried again later."""


class TurnGate:
    """Closed at first, and opened once for all: those that wait, and those that come later. Any thread."""

    def __init__(self) -> None:
        self.is_open: bool = False  # set before threads can pass, by any thread, and never reset
        self._lock = threading.Lock()  # held until the gate is open; each thread that passes lets the next one pass
        self._lock.acquire()

    def wait(self) -> None:
        self._lock.acquire()
        release_anyhow(self._lock)  # `open` may have been repeated meanwhile, and have released it

    def open(self) -> None:
        """Let all pass. Repeating it does no harm."""
        self.is_open = True
        release_anyhow(self._lock)  # it may be open, and no thread be passing


class DescriptorGate(TurnGate):
    """A gate that lets all pass at once. Linux only.

    Raises:
        OSError: half of the descriptors that the process may have are open, or the system has no eventfd.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._file = EventFile(is_semaphore=True)  # never changes

    def wait(self) -> None:
        self._file.read(len(_MANY))

    def open(self) -> None:
        self.is_open: bool = True
        self._file.write(_MANY)


def shared_gate() -> TurnGate:
    """A gate for many threads, the best that the process can have."""
    try:
        return DescriptorGate()
    except OSError:
        return TurnGate()


class Append:
    """An event on its way into the log."""

    is_later = False

    def __init__(self, line: bytes) -> None:
        self.line = line  # never changes
        self.seq = 0  # its accepted seq, once it is in the file; written by the leader
        self.error: JournalError | None = None  # why it is not accepted; written by the leader before `is_done`
        self.is_done: bool = False  # written by the leader, before it reads `place`
        self.is_withdrawn = False  # its producer was interrupted and has gone; written by that producer
        # Where its producer waits to look at it again; None: nowhere yet. Written by that producer, which looks at
        # `is_done` once more before it waits there.
        self.place: TurnGate | None = None

    def begin(self) -> bool:
        """The leader calls this before it writes the event. False: the event is to be left out."""
        return not self.is_withdrawn

    def end(self) -> None:
        """The leader calls this once the event is in the log, or `error` is set; then it wakes the producer."""
        self.is_done = True

    def wake(self) -> None:
        """Let its producer look. Any thread."""
        place = self.place
        if place is not None:
            place.open()


class LaterAppend(Append):
    """An event that no thread waits for. The writer calls its methods, in the order of the posts.

    `end` may be foreign code; the leadership is held. `tell` comes after it, with no lock held.
    """

    is_later = True
    is_sent = False  # the writer ends it, even if `append_later` has raised; written by its producer

    def tell(self) -> None: ...


class Gathering:
    """How long a leader waits for producers that are about to post again. The leader calls all but `arrived`."""

    def __init__(self) -> None:
        self.is_on: bool = False  # the leader waits; written by it, read by any thread
        self._wanted = 0  # how many are to be pending; written by the leader, read by any thread
        self._complete = threading.Lock()  # held while the leader waits; any thread releases it
        self._complete.acquire()
        self._sync_s = 0.0  # what an fsync takes; written by the leader
        self._misses = 0  # how often the leader has waited in vain, since it last did not; written by the leader
        self._skips = 0  # batches for which it does not wait; written by the leader

    def synced(self, took_s: float, producers: int) -> None:
        """Note that a batch was synced, and that `producers` wait for it or for the next batch."""
        # The shortest counts: a thread that waits for the interpreter seems to wait for the disk.
        self._sync_s = min(took_s, 1.1 * self._sync_s or took_s)
        self._wanted = producers

    def wait(self, pending: deque[Append]) -> None:
        """Wait until as many are pending as there were producers, if more of them come in each half of an fsync.

        Up to two fsyncs: without the wait, two groups would take turns, each in the time of one.
        """
        if len(pending) >= self._wanted:
            return
        if self._skips:
            self._skips -= 1
            return
        self._complete.acquire(False)  # it may have been released too late for the last wait
        try:
            self.is_on = True
            if self._is_complete(pending):
                self._misses = 0
            else:
                self._misses += 1
                self._skips = min(1 << self._misses, _MOST_BATCHES_SKIPPED)
        finally:
            self.is_on = False

    def _is_complete(self, pending: deque[Append]) -> bool:
        before = 0
        for _ in range(_MOST_HALF_SYNCS):
            # Look only after setting `is_on`: a producer that appended before did not see it.
            count = len(pending)
            if count >= self._wanted:
                return True
            if count == before:
                return False
            if self._complete.acquire(timeout=self._sync_s / 2):
                return True
            before = count
        return False

    def arrived(self, pending: int) -> None:
        """One more is pending. Any thread."""
        if pending >= self._wanted:
            release_anyhow(self._complete)  # another one may have released it
