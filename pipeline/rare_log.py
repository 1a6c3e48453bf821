"""Warnings that repeat: one line a minute, with the number of those left out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from dispatcher.util.foreign import tell

_EVERY_S: Final = 60.0


class RareLog:
    """Logs a warning at once, and those that follow within a minute as a number in the next line. Any thread.

    A logging handler that raises does not raise here.
    """

    def __init__(self, log: logging.Logger, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log  # never changes
        self._clock_s = clock_s  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._next_s = float("-inf")  # guarded by _lock; no line before this time
        self._left_out = 0  # guarded by _lock; warnings since the last line

    def warning(self, message: str) -> None:
        with self._lock:
            now_s = self._clock_s()
            if now_s < self._next_s:
                self._left_out += 1
                return
            self._next_s = now_s + _EVERY_S
            left_out, self._left_out = self._left_out, 0
        more = f" ({left_out} more since the last line)" if left_out else ""
        tell(self._log, logging.WARNING, "%s%s", message, more)
