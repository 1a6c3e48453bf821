"""What a forked child lets go of: copies of the parent's descriptors, and locks that a thread of the parent may hold.

A child that keeps a descriptor keeps the lock on its file, too, even after the parent has ended: both processes share
it. Closing the child's copy does not release the parent's lock; unlocking it would.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from dispatcher.util.registry import Registry


class LetsGo(Protocol):
    """What has something to let go of in a forked child."""

    def after_fork(self) -> None:
        """In a forked child, on its only thread. Raises nothing, takes no lock, and touches no file."""


_things: Registry[LetsGo] = Registry()
# Held while a descriptor is opened and noted, and during a fork. A leaf lock; re-entrant, because a signal handler may
# fork during an open. Replaced in a forked child.
_opening = threading.RLock()


def let_go_in_children(thing: LetsGo) -> None:
    """Call `thing.after_fork()` in every child that is forked from now on, as long as `thing` exists. Any thread."""
    _things.add(thing)


def no_fork() -> threading.RLock:
    """A context in which other threads do not fork: for opening a descriptor and noting it in one step.

    Otherwise a child could inherit a descriptor that nothing knows of. Forks wait meanwhile, so keep it short.
    """
    return _opening


class OfParent:
    """Stands in a forked child for a part of its parent's: whatever is done with it raises `error()`."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self.__dict__["raises"] = error

    def _refuse(self, *_: Any) -> NoReturn:
        raise self.__dict__["raises"]()

    if not TYPE_CHECKING:  # as the type of what it stands in for
        __getattr__ = __setattr__ = _refuse
        __bool__ = __len__ = __iter__ = __getitem__ = __setitem__ = __enter__ = __exit__ = _refuse


def _before_fork() -> None:
    _opening.acquire()


def _after_in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # a KeyboardInterrupt has ended the wait for it
        _opening.release()


def _after_in_child() -> None:
    global _opening
    _opening = threading.RLock()
    for thing in _things.all():
        thing.after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
