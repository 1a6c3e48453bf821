"""Pauses in long work, so that other threads, such as the handler thread, get the interpreter."""

from __future__ import annotations

import time
from typing import Final

_WAIT_S: Final = 0.000_05
"""Long enough for another thread to take the interpreter."""


class ReadingPace:
    """Waits after every `piece_s` of the thread's processor time.

    Used by one thread, which calls `pause` after each small piece of its work.
    """

    def __init__(self, piece_s: float) -> None:
        self._piece_s = piece_s  # read only
        self._since_s = time.thread_time()  # of the last wait; that thread only
        self._look_at_s = time.perf_counter() + piece_s  # when to look at the processor time again; that thread only
        self.longest_s: float = 0.0  # that thread only
        """The most processor time between two waits."""

    def pause(self) -> None:
        now_s = time.perf_counter()
        if now_s < self._look_at_s:
            return  # processor time is slower to ask for, and cannot have passed faster
        spent_s = time.thread_time() - self._since_s
        if spent_s < self._piece_s:
            self._look_at_s = now_s + self._piece_s - spent_s
            return
        self.longest_s = max(self.longest_s, spent_s)
        time.sleep(_WAIT_S)
        self._since_s = time.thread_time()
        self._look_at_s = time.perf_counter() + self._piece_s
