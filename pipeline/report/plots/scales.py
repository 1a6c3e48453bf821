"""Axes of the report's plots: where a value is, and which ticks are labelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dispatcher.util.figures import duration

_TICKS = 6
_ROUND_S = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 10 * 86400.0, 100 * 86400.0)


class Tick(NamedTuple):
    value: float
    text: str


class Scale(NamedTuple):
    """An axis from `low` to `high`, which differ. `title`: what it measures, with its unit."""

    low: float
    high: float
    ticks: Sequence[Tick] = ()
    title: str = ""
    is_log: bool = False

    def share(self, value: float) -> float:
        """Where a value is: 0 at the low end, 1 at the high end. A value outside goes to the nearer end."""
        inside = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)


def linear(
    low: float, high: float, title: str = "", unit: str = "", *, is_whole: bool = False, to_ticks: bool = True
) -> Scale:
    """An axis with ticks at round numbers. `is_whole`: only at whole ones. `to_ticks`: it begins and ends at a tick."""
    if high <= low:
        high = low + 1.0
    step = _round_up((high - low) / _TICKS)
    if is_whole:
        step = max(step, 1.0)
    first, last = low / step, high / step
    numbers = (
        range(math.floor(first + 1e-9), math.ceil(last - 1e-9) + 1)
        if to_ticks
        else range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
    )
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = [Tick(number * step, f"{number * step:,.{digits}f}{unit}") for number in numbers]
    return Scale(ticks[0].value, ticks[-1].value, ticks, title) if to_ticks else Scale(low, high, ticks, title)


def durations(floor_s: float, longest_s: float) -> Scale:
    """A logarithmic axis of seconds with ticks at common durations. Its first tick stands for `floor_s` and less.

    A logarithmic scale cannot show 0, and virtual time has many stays of 0 s.
    """
    longest = 1.8 * max(longest_s, 1.0)
    ticks = [
        Tick(tick, f"\N{LESS-THAN OR EQUAL TO} {duration(tick)}" if tick == floor_s else duration(tick))
        for tick in _ROUND_S
        if floor_s <= tick <= longest
    ]
    return Scale(floor_s / 1.4, longest, ticks, is_log=True)


def powers_of_ten(least_s: float, most_s: float, title: str = "") -> Scale:
    """A logarithmic axis of seconds from a power of ten to another, with a tick at each, and more if it is short."""
    low, high = math.floor(math.log10(least_s) + 1e-9), math.ceil(math.log10(most_s) + 0.05)
    high = max(high, low + 1)
    between = (1, 2, 5) if high - low == 1 else (1,)
    values = [*(digit * 10.0**power for power in range(low, high) for digit in between), 10.0**high]
    ticks = [Tick(value, duration(value)) for value in values]
    return Scale(ticks[0].value, ticks[-1].value, ticks, title, is_log=True)


def _round_up(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * (1 - 1e-9))
