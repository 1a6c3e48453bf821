"""The clock of a journal's rows: Unix time that is cheap to read and never goes back by itself.

A row's time is a reading of `perf_counter_ns`, which the dispatcher takes anyway, plus `offset_ns`. The two clocks of
the system run at the same rate, so the offset is constant until the system clock is set, or the machine was suspended.
"""

from __future__ import annotations

import time
from typing import Final

_BACK_NS: Final = 10_000_000
"""A smaller step back is left alone: rows go on at most this far ahead of the system clock."""
_READ_NS: Final = 1_000_000
"""A look that took longer is not trusted: another thread ran between its two readings."""


class RowClock:
    """Follows the system clock. One thread at a time: the handler thread, once it runs."""

    def __init__(self) -> None:
        self.offset_ns = time.time_ns() - time.perf_counter_ns()

    def follow(self) -> bool:
        """Take over a step forward of the system clock; returns whether it was set back.

        Set back, this clock goes on from where it is, so that no row is earlier than the one before, until `go_back`.
        """
        # In this order, an interruption between the two makes the system clock look late, never early.
        offset_ns = time.time_ns() - time.perf_counter_ns()
        if offset_ns > self.offset_ns:
            self.offset_ns = offset_ns
            return False
        if offset_ns >= self.offset_ns - _BACK_NS:
            return False
        offset_ns, took_ns = self._look()
        return took_ns < _READ_NS and offset_ns < self.offset_ns - _BACK_NS

    def go_back(self) -> None:
        """Take over a step back. Between two segments only: within one, rows never go back."""
        offset_ns, took_ns = self._look()
        if took_ns < _READ_NS:
            self.offset_ns = offset_ns

    def _look(self) -> tuple[int, int]:
        """The present offset, and how long it took to read."""
        before_ns = time.perf_counter_ns()
        now_ns = time.time_ns()
        after_ns = time.perf_counter_ns()
        return now_ns - after_ns, after_ns - before_ns
