"""Pauses for long work in Python beside threads that need the interpreter, such as the handler thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_SHORTEST_S: Final = 0.000_05
"""A wait that is long enough for another thread to take the interpreter over."""


class Pace:
    """Waits once `piece_s` of processor time have passed, with `wait(seconds)`.

    `share` says before each wait how long, as a multiple of that time; other threads always get a chance to run. One
    thread: the one that does the work and calls `pause` after each small piece of it.
    """

    def __init__(
        self,
        piece_s: float,
        share: Callable[[], float] = lambda: 0.0,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._piece_s = piece_s  # read only, like the next two fields
        self._share = share
        self._wait = wait
        self._since_s = time.thread_time()  # of the last wait; that thread only
        self._look_at_s = time.perf_counter() + piece_s  # when to ask for it again; that thread only
        self.longest_s = 0.0  # that thread only
        """The most processor time between two waits."""

    def pause(self) -> None:
        """Wait if it is time to."""
        now_s = time.perf_counter()
        if now_s < self._look_at_s:
            return  # the thread's own time, which costs more to ask for, cannot have passed faster
        spent_s = time.thread_time() - self._since_s
        if spent_s < self._piece_s:
            self._look_at_s = now_s + self._piece_s - spent_s
            return
        self.longest_s = max(self.longest_s, spent_s)
        self._wait(max(_SHORTEST_S, spent_s * self._share()))
        self._since_s = time.thread_time()
        self._look_at_s = time.perf_counter() + self._piece_s
