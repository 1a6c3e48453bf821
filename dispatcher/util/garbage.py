"""Garbage collection for a process that handles events all day.

Reference counting frees events and most of their contents. Python's cycle collector still runs every 700 objects, and
now and then over all objects of the process: entities, queues, routes. In a daemon that costs up to a fifth of the time
and finds next to nothing; with millions of objects, one such collection holds every thread for most of a second.

So what a collection leaves is frozen: no later collection looks at it, and the longest one is as long as what is new,
whatever the process holds. Reference counting frees frozen objects as before. Only a cycle that is dropped after it was
frozen stays. Few are, and once the process has grown to several times its size, one collection covers the frozen
objects too.

A collection starts once the objects made outnumber those freed by a threshold. A steady daemon makes as many as it
frees: an application comes and an old one is forgotten, a report replaces another. It would collect rarely, and look at
all that was made meanwhile. So a thread of a daemon also collects a few times a second.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from dispatcher.util.threads import start_or_postpone

YOUNG: Final = 15_000
"""A collection of the youngest generation starts after this many new objects, and is followed by a freeze: each object
is looked at once. With a lower threshold, more cycles are frozen that are still in use and dropped later."""
MIDDLE: Final = 0
"""While objects are not frozen, a collection of the middle generation follows the next one of the youngest."""
OLD: Final = 0
"""While objects are not frozen, one of the oldest generation follows the next one of the middle generation, and covers
all objects."""
EVERY_S: Final = 0.25
"""A daemon collects its new objects at least this often: tens of thousands of them at 35,000 events/s."""
GROWTH: Final = 4
"""All objects are collected again once the process has this many times the memory blocks of the last time."""
LOOK_EVERY: Final = 16
"""Freezes between two looks at the memory blocks: a look takes a millisecond or two in a large process."""
LEAST: Final = 2_000_000
"""A smaller process counts as one of this many blocks, because every process grows at its start."""


def tune_garbage_collection(*, regularly: bool = False) -> None:
    """Collect new objects only, and never among the objects that exist now.

    It affects the whole process, so only a main program should call it, once it is set up. `regularly`: a thread
    collects every `EVERY_S`, so that no collection of a daemon is a long one; it ends with the process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    freezer = next((each for each in gc.callbacks if isinstance(each, Freezer)), None)
    if freezer is None:
        freezer = Freezer()
        gc.callbacks.append(freezer)
    if regularly:
        freezer.collect_regularly()


class Freezer:
    """Freezes what a collection has left. The collector calls it, on the thread that it is on.

    A callback of the collector cannot begin a collection, but moves objects between the generations at no cost.
    """

    def __init__(self, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        """`blocks`: the memory blocks in use, as a measure of the objects; these cannot be counted quickly."""
        self._blocks = blocks
        # The thread that collects: there is one collection at a time. When all objects were looked at last:
        self._blocks_then = max(LEAST, blocks())
        self._covers_all = False  # the thread that collects, any reads it; the next one of the oldest generation does
        self._count = 0  # freezes; the thread that collects, any thread reads it
        # Set by the main program's thread, or by the one that starts what was postponed; the one set collects.
        self._thread: threading.Thread | None = None

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop":
            return
        if self._covers_all:
            if info["generation"] < 2:
                return
            self._covers_all, self._blocks_then = False, max(LEAST, self._blocks())
        elif self._count % LOOK_EVERY == 0 and self._blocks() > GROWTH * self._blocks_then:
            self._covers_all = True
            gc.unfreeze()
            return
        gc.freeze()
        self._count += 1

    def collect_regularly(self, wait: Callable[[float], object] = time.sleep) -> None:
        """Start a thread that collects whenever nothing else has for `EVERY_S`. Without effect if it runs.

        It ends once this object is removed from `gc.callbacks`. `wait` is called with seconds. If the system has no
        thread left, it starts later.
        """

        def start() -> None:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._collect, args=(wait,), name="garbage", daemon=True)
                try:
                    self._thread.start()
                except BaseException:  # no thread is left, or a signal handler has raised
                    self._thread = None  # the next call starts another; this one ends if it has begun
                    raise

        start_or_postpone("the regular garbage collection", start)

    def _collect(self, wait: Callable[[float], object]) -> None:
        while True:
            before = self._count
            wait(EVERY_S)
            if self not in gc.callbacks or self._thread is not threading.current_thread():
                return
            if self._count == before and gc.isenabled():
                gc.collect(2 if self._covers_all else 1)
