"""Where another thread is."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress
from itertools import accumulate, chain, repeat
from types import FrameType
from typing import Any, Final

_IS_FREE_THREADED: Final = not getattr(sys, "_is_gil_enabled", lambda: True)()
CAN_READ_FRAMES: Final = not _IS_FREE_THREADED or sys.version_info >= (3, 14)
"""Free-threaded 3.13 may crash on the frames of a thread that runs meanwhile, as its documentation says."""
_THREAD: Final = re.compile(r"(?:Thread|Current thread) 0x([0-9a-f]+)")
_FRAME: Final = re.compile(r'  File "(.*)", line ([0-9]+) in (.*)')
_ESCAPED: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def stack_of(thread_id: int | None) -> traceback.StackSummary | None:
    """The frames of a thread, outermost first; None: it has none. Their lines of source are read when they are used."""
    if not CAN_READ_FRAMES:
        return _dumped_stack_of(thread_id or 0)
    frame = _innermost_of(thread_id or 0)
    if frame is None:
        return None
    frames: deque[Any] = deque()
    # With the GIL this is one call in C, during which the thread does not run. `traceback.walk_stack` lets it run
    # between two frames, and CPython 3.11.7 has crashed on the link from one to the next. Without the GIL the thread
    # runs meanwhile, which CPython allows from 3.14 on.
    with suppress(AttributeError):  # the outermost frame's f_back is None, which has no f_back
        frames.extend(accumulate(chain((frame,), repeat("f_back")), getattr))  # type: ignore[arg-type]
    found: list[FrameType] = [each for each in frames if each is not None]
    return traceback.StackSummary.extract(((each, each.f_lineno) for each in reversed(found)), lookup_lines=False)


_reading = threading.RLock()  # leaf lock, re-entrant for signal handlers; replaced in a forked child


def _innermost_of(thread_id: int) -> FrameType | None:
    """The innermost frame of a thread, or None if it has none.

    CPython 3.11 holds an internal lock while it reads all frames. If it collects garbage at that moment, another thread
    can run and wait for this lock with the GIL held, and the process hangs (python/cpython#106883).
    """
    if sys.version_info >= (3, 12):
        return sys._current_frames().get(thread_id)
    with _reading:
        was_enabled = gc.isenabled()
        try:
            gc.disable()
            return sys._current_frames().get(thread_id)
        finally:
            if was_enabled:
                gc.enable()


def _after_fork() -> None:
    global _reading
    _reading = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _dumped_stack_of(thread_id: int) -> traceback.StackSummary | None:
    """A thread's frames from a dump, for which CPython stops all threads. It has 100 threads, and 100 frames each."""
    import tempfile  # it imports much, and a dump is rare

    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        lines = file.read().decode("ascii", "replace").splitlines()
    return _parsed(lines, thread_id)


def _parsed(lines: list[str], thread_id: int) -> traceback.StackSummary | None:
    """The frames of the thread in the lines of a dump, outermost first; None: it is not there."""
    frames: list[traceback.FrameSummary] | None = None
    for line in lines:
        if thread := _THREAD.match(line):
            if frames is not None:
                break
            frames = [] if int(thread[1], 16) == thread_id else None
        elif frames is not None and (frame := _FRAME.fullmatch(line)):
            file, number, name = frame.groups()
            frames.append(traceback.FrameSummary(_plain(file), int(number), _plain(name), lookup_line=False))
    return traceback.StackSummary.from_list(frames[::-1]) if frames else None


def _plain(text: str) -> str:
    """A text of a dump, which is ASCII with escapes."""
    return _ESCAPED.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)
