"""What threads add to and read meanwhile, without a lock: a registry of live objects, and copies of a deque.

A WeakSet has no promise for that. A list, a dict or a set has one for each single call, `copy` included, both with and
without a global interpreter lock. A deque has one as well, but not for its `copy` or for an iteration: without that
lock other threads change the deque meanwhile, and it raises, however often it is tried.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from typing import Final, Generic, TypeVar
from weakref import ref

T = TypeVar("T")

_TRIES: Final = 3


class Registry(Generic[T]):
    """Objects that are listed as long as something else refers to them, in the order in which they came. Any thread."""

    def __init__(self) -> None:
        # By id. An object's reference is removed before its memory, and so its id, goes to another one.
        self._references: dict[int, ref[T]] = {}  # any thread adds, removes and copies, each with one call

    def add(self, thing: T) -> None:
        """List it. Adding it again changes nothing."""
        key, references = id(thing), self._references
        references[key] = ref(thing, lambda _: references.pop(key, None))

    def discard(self, thing: T) -> None:
        """List it no longer."""
        self._references.pop(id(thing), None)

    def all(self) -> list[T]:
        """Those that are there now."""
        found = [reference() for reference in self._references.copy().values()]
        return [thing for thing in found if thing is not None]


class Numbers:
    """Gives each caller the next number, from 1 on. Any thread. Make one for a module: it is never released."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # any thread; a leaf, re-entrant for signal handlers; replaced in a child
        self._last = 0  # guarded by the lock; no call between its reading and its store
        os.register_at_fork(after_in_child=self._after_fork)

    def next(self) -> int:
        """Return a new number, greater than all numbers returned so far."""
        with self._lock:
            self._last = number = self._last + 1
        return number

    def _after_fork(self) -> None:
        self._lock = threading.RLock()


def each_of(queue: deque[T]) -> Iterator[T]:
    """The items of a deque from the left, each read by itself.

    Other threads may append meanwhile. If they take from the left, some items are passed over.
    """
    with suppress(IndexError):  # there are no more
        for place in count():
            yield queue[place]


def copy_of(queue: deque[T]) -> list[T]:
    """The items of a deque that other threads change meanwhile.

    If they take from the left in a flood, some items may be passed over that others have moved up to the place of.
    """
    for _ in range(_TRIES):
        try:
            return list(queue)
        except RecursionError:  # a RuntimeError as well; to try again would not help
            raise
        except RuntimeError:  # "deque mutated during iteration"
            continue
    return list(islice(each_of(queue), len(queue)))
