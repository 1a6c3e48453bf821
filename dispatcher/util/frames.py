"""Where another thread is."""

from __future__ import annotations

import sys
import traceback
from collections import deque
from contextlib import suppress
from itertools import accumulate, chain, repeat
from types import FrameType
from typing import Any


def stack_of(thread_id: int | None) -> traceback.StackSummary | None:
    """The frames of a thread, outermost first; None: it has none. Their lines of source are read when they are used."""
    frame = sys._current_frames().get(thread_id or 0)
    if frame is None:
        return None
    frames: deque[Any] = deque()
    # One call in C, during which the thread does not run. `traceback.walk_stack` lets it run between two frames, and
    # CPython 3.11.7 has crashed on the link from one to the next.
    with suppress(AttributeError):  # the outermost frame's f_back is None, which has no f_back
        frames.extend(accumulate(chain((frame,), repeat("f_back")), getattr))  # type: ignore[arg-type]
    found: list[FrameType] = [each for each in frames if each is not None]
    return traceback.StackSummary.extract(((each, each.f_lineno) for each in reversed(found)), lookup_lines=False)
