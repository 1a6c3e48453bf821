"""Garbage collection for a process that handles events all day.

Reference counting frees events and most of their contents. Python's cycle collector still runs every 700 objects, and
now and then over all objects of the process: entities, queues, routes. In a daemon that costs up to a fifth of the time
and finds next to nothing; with millions of objects, one such collection holds every thread for most of a second.

So objects that have survived three collections are frozen: no later collection looks at them, and the longest one is as
long as what is new, whatever the process holds. Reference counting frees frozen objects as before. Only a cycle that is
dropped after it was frozen stays. Few are, and once the process has grown to several times its size, one collection
covers the frozen objects too.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Final

YOUNG: Final = 10_000
"""A collection of the youngest generation starts after this many new objects."""
MIDDLE: Final = 2
"""A collection of the middle generation starts after this many of the youngest."""
OLD: Final = 2
"""A collection of the oldest generation starts after this many of the middle one, and covers about 100,000 objects.
Lower thresholds take more time in all, because each collection walks the large new mappings again."""
GROWTH: Final = 4
"""All objects are collected again once the process has this many times the memory blocks of the last time."""
LEAST: Final = 2_000_000
"""A smaller process counts as one of this many blocks, because every process grows at its start."""


def tune_garbage_collection() -> None:
    """Collect new objects only, and never among the objects that exist now.

    It affects the whole process, so only a main program should call it, once it is set up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    if not any(isinstance(each, Freezer) for each in gc.callbacks):
        gc.callbacks.append(Freezer())


class Freezer:
    """Freezes what a collection of the oldest generation has left. The collector calls it, on the thread that it is on.

    A callback of the collector cannot begin a collection, but moves objects between the generations at no cost.
    """

    def __init__(self, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        """`blocks`: the memory blocks in use, as a measure of the objects; these cannot be counted quickly."""
        self._blocks = blocks
        self._blocks_then = max(LEAST, blocks())  # when all objects were looked at last
        self._covers_all = False  # the next collection of the oldest generation does

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] != 2:
            return
        blocks = self._blocks()
        if self._covers_all:
            self._covers_all, self._blocks_then = False, max(LEAST, blocks)
        elif blocks > GROWTH * self._blocks_then:
            self._covers_all = True
            gc.unfreeze()
            return
        gc.freeze()
