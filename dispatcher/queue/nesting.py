"""Whether a post has interrupted another one of its thread. Such a post must not wait for the other.

A signal handler, a `__del__` or a weakref callback may post while its thread is in the middle of a post. The thread's
frames tell, which costs the usual post nothing. Compiled functions have no frames: their slow paths, in which foreign
code can run, are called through a function of this module, which is never compiled. Their fast paths run none between
taking a permit and the append.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

_ENTRIES: Final[set[CodeType]] = set()
"""Code objects of the post functions. Every post has exactly one of them on its stack, so a stack that holds two is a
nested post. Any thread adds; all queues add the same ones."""


def entries(*posts: Callable[..., Any]) -> None:
    """Note the functions that producers call, unless they are compiled."""
    _ENTRIES.update(code for code in map(_code, posts) if code is not None)


def slow_path(post: Callable[..., bool]) -> Callable[..., bool]:
    """The slow path of a post as an entry is to call it: itself, or, if it is compiled, a function with a frame."""
    if _code(post) is not None:
        return post

    def framed(*arguments: Any) -> bool:
        return post(*arguments)

    entries(framed)
    return framed


def is_nested() -> bool:
    """Whether the post that calls this has interrupted another one, of any dispatcher, on this thread."""
    posts, frame = 0, sys._getframe()
    while frame.f_back is not None and posts < 2:
        frame = frame.f_back
        posts += frame.f_code in _ENTRIES
    return posts == 2


def _code(function: Any) -> CodeType | None:
    return getattr(getattr(function, "__func__", function), "__code__", None)
