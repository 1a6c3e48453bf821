"""The clock of a journal's rows: Unix time that is cheap to read and never goes back by itself.

A row's time is a reading of `perf_counter_ns`, which the dispatcher takes anyway, plus `offset_ns`. The two clocks of
the system run at the same rate, so the offset is constant until the system clock is set, or the machine was suspended.
"""

from __future__ import annotations

import time
from typing import Final

_LOOK_EVERY_NS: Final = 10_000_000
"""Looks at the system clock are this far apart, because a batch may be one event."""
_BACK_NS: Final = 10_000_000
"""A smaller step back is left alone: rows go on at most this far ahead of the system clock."""
_LOOKS: Final = 3


class RowClock:
    """Follows the system clock. One thread at a time: the handler thread, once it runs."""

    def __init__(self) -> None:
        self.offset_ns = time.time_ns() - time.perf_counter_ns()
        self.due_ns = 0  # of perf_counter_ns: when to follow the system clock again

    def follow(self, now_ns: int) -> bool:
        """Take over a step forward of the system clock; returns whether it was set back.

        `now_ns`: perf_counter_ns. Set back, this clock goes on from where it is, so that no row is earlier than the one
        before, and stays due until `go_back`.
        """
        # In this order, an interruption between the two makes the system clock look late, never early.
        offset_ns = time.time_ns() - time.perf_counter_ns()
        if offset_ns > self.offset_ns:
            self.offset_ns = offset_ns
        if offset_ns >= self.offset_ns - _BACK_NS or self._measure() >= self.offset_ns - _BACK_NS:
            self.due_ns = now_ns + _LOOK_EVERY_NS
            return False
        return True

    def go_back(self) -> None:
        """Take over a step back. Between two segments only: within one, rows never go back."""
        self.offset_ns = self._measure()

    def _measure(self) -> int:
        """The present offset. An interruption makes one of the looks too low, hardly all of them."""
        return max(time.time_ns() - time.perf_counter_ns() for _ in range(_LOOKS))
