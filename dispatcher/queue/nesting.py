"""Whether a post has interrupted another one of its thread. Such a post must not wait for the other.

A signal handler, a `__del__` or a weakref callback may post while its thread is in the middle of a post. The thread's
frames tell, which costs the usual post nothing.
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
    """Note the functions that producers call."""
    _ENTRIES.update(getattr(post, "__func__", post).__code__ for post in posts)


def is_nested() -> bool:
    """Whether the post that calls this has interrupted another one, of any dispatcher, on this thread."""
    posts, frame = 0, sys._getframe()
    while frame.f_back is not None and posts < 2:
        frame = frame.f_back
        posts += frame.f_code in _ENTRIES
    return posts == 2
