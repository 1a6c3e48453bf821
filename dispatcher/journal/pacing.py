"""Pauses in long work, so that other threads, such as the handler thread, get the interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_SHORTEST_S: Final = 0.000_05
"""A wait long enough for another thread to take the interpreter."""


class Pace:
    """Calls `wait(seconds)` after every `piece_s` of the thread's processor time.

    `share()` gives the length of the wait as a multiple of the time worked; even 0 lets other threads run. Used by one
    thread, which calls `pause` after each small piece of its work.
    """

    def __init__(
        self,
        piece_s: float,
        share: Callable[[], float] = lambda: 0.0,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._piece_s = piece_s  # read only
        self._share = share  # read only
        self._wait = wait  # read only
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
        self._wait(max(_SHORTEST_S, spent_s * self._share()))
        self._since_s = time.thread_time()
        self._look_at_s = time.perf_counter() + self._piece_s
