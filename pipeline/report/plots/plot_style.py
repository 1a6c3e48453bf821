"""What the report's plots share: time axes, names, and which colour means what.

A colour is the name of a class of the style sheet, which has one shade of it for light pages and one for dark ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.report.plots.scales import Scale, linear

Rows = Sequence[Mapping[str, Any]]

COLOURS = ("blue", "amber", "green", "purple", "red", "teal", "grey", "brown", "pink", "olive")
PALE = "pale"

_TIME_UNITS = ((86400.0 * 2, 86400.0, "days"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))


class TimeAxis(NamedTuple):
    """Times since the start of the run, in a unit that fits its length."""

    start_at: int
    unit_s: float
    unit: str
    length: float
    """Of the run, in the unit."""

    def place(self, at: int) -> float:
        """The position of a time (Unix ns) on the axis."""
        return (at - self.start_at) / 1e9 / self.unit_s

    def scale(self) -> Scale:
        return linear(0.0, self.length, f"time since the start of the run ({self.unit})", to_ticks=False)

    def after(self, place: float) -> str:
        """How a tooltip names a position; one before the run's start is where its first interval begins."""
        return f"after {max(place, 0.0):.4g} {self.unit}"


def unit_of(span_s: float) -> tuple[float, str]:
    """The unit in which to show times up to `span_s`: its seconds and its name."""
    return next((unit_s, unit) for least, unit_s, unit in _TIME_UNITS if span_s >= least)


def time_axis(start_at: int | None, end_at: int | None) -> TimeAxis:
    """The axis for a run from `start_at` to `end_at` (Unix ns)."""
    start = start_at or 0
    span_s = (max(end_at or 0, start) - start) / 1e9
    unit_s, unit = unit_of(span_s)
    return TimeAxis(start, unit_s, unit, span_s / unit_s)


def label(name: str | None) -> str:
    """A name from the journal, which may lack it."""
    return "(unknown)" if name is None else name


def event_name(row: Mapping[str, Any]) -> str:
    return f"{row['event_class'].removesuffix('EventType')} {row['event_type']}"


def colours_of(names: Sequence[str], fixed: Mapping[str, str]) -> Callable[[str], str]:
    """A function from name to colour: the fixed one, or the next free one."""
    free = [colour for colour in COLOURS if colour not in fixed.values()] or list(COLOURS)
    others = [name for name in dict.fromkeys(names) if name not in fixed]
    chosen = {name: free[position % len(free)] for position, name in enumerate(others)}
    return lambda name: fixed.get(name) or chosen[name]
