"""What the report's plots share: colours legible on light and dark backgrounds, time axes, labels.

Labels are escaped, because Plotly renders markup in them and the names come from the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go

Rows = Sequence[Mapping[str, Any]]

GRID = "rgba(123, 135, 148, 0.25)"
BLUE = "#3d85c6"
LIGHT_BLUE = "rgba(61, 133, 198, 0.20)"
GREEN = "#2f9e62"
RED = "#d64541"
AMBER = "#d9902f"
GREY = "#7b8794"
PALE = "rgba(123, 135, 148, 0.45)"
COLOURS = (BLUE, AMBER, GREEN, "#8a63b8", RED, "#35a7a7", GREY, "#b0703f", "#c06c9f", "#9aa53a")

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_FRAME_PX = 90
_ROW_PX = 30
_LONGEST_NAME = 36
_ENDS = 17
_TIME_UNITS = ((86400.0 * 2, 86400.0, "days"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))


class TimeAxis(NamedTuple):
    """Times since the start of the run, in a unit that fits its length."""

    start_at: int
    unit_s: float
    unit: str

    def place(self, at: int) -> float:
        """The position of a time (Unix ns) on the axis."""
        return (at - self.start_at) / 1e9 / self.unit_s

    def style(self, **more: Any) -> dict[str, Any]:
        return {"title_text": f"time since the start of the run ({self.unit})", **more}


def unit_of(span_s: float) -> tuple[float, str]:
    """The unit in which to show times up to `span_s`: its seconds and its name."""
    return next((unit_s, unit) for least, unit_s, unit in _TIME_UNITS if span_s >= least)


def time_axis(start_at: int | None, end_at: int | None) -> TimeAxis:
    """The axis for a run from `start_at` to `end_at` (Unix ns)."""
    start = start_at or 0
    return TimeAxis(start, *unit_of((max(end_at or 0, start) - start) / 1e9))


def style(figure: go.Figure, rows: int, legend: bool = False, row_px: int = _ROW_PX) -> go.Figure:
    """Apply the common style, with a height for `rows` rows of `row_px`."""
    figure.update_layout(
        template="none",
        height=_FRAME_PX + row_px * max(rows, 2) + (30 if legend else 0),
        margin={"l": 8, "r": 16, "t": 12, "b": 8},
        # The page's style sheet overrides the colours of texts and grid with its theme's.
        font={"family": _FONT, "size": 13, "color": GREY},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=legend,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        bargap=0.35,
        hoverlabel={"align": "left"},
    )
    axis = {"automargin": True, "gridcolor": GRID, "zeroline": False, "title_font_size": 13, "fixedrange": False}
    figure.update_annotations(font_size=14)
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis, ticklabelstandoff=6)
    return figure


def label(name: str | None) -> str:
    """A name from the journal, escaped for a plot."""
    # Plotly decodes the entities of <, > and &, but not of quotes, which need no escape in text.
    return escape(name, quote=False) if name is not None else "(unknown)"


def short(name: str | None) -> str:
    """As `label`, with the middle of a long name elided."""
    if name is None or len(name) <= _LONGEST_NAME:
        return label(name)
    return label(f"{name[:_ENDS]}\N{HORIZONTAL ELLIPSIS}{name[-_ENDS:]}")


def name_rows(figure: go.Figure, names: Sequence[str | None], **where: Any) -> None:
    """Name the rows of a horizontal plot, the first at the top; a long name is complete only on hover."""
    labels = [label(name) for name in names]
    # Without an explicit type, Plotly would put names that look like numbers or dates on a scale.
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=labels[::-1],
        tickvals=labels,
        ticktext=[short(name) for name in names],
        **where,
    )


def row_bars(names: Sequence[str | None], lengths: Sequence[float | None], hover: str, **more: Any) -> go.Bar:
    """Horizontal bars, one per name; `hover` follows the name."""
    hovertemplate = "%{y}: " + hover + "<extra></extra>"
    return go.Bar(x=lengths, y=[label(name) for name in names], orientation="h", hovertemplate=hovertemplate, **more)


def steps(rows: Rows, axis: TimeAxis, heights: Sequence[float], colour: str, hover: str, **more: Any) -> go.Scatter:
    """A line with a step at the start of each row's interval."""
    look = {"line_color": colour, "line_width": 1.5, "line_shape": "hv"} | more
    x = [axis.place(row["starts_at"]) for row in rows]
    return go.Scatter(x=x, y=heights, mode="lines", hovertemplate=f"{hover}<extra></extra>", **look)


def whole_numbers(most: float) -> dict[str, Any]:
    """An axis of counts; for small ones Plotly would add ticks at halves and label them 0, 1, 1, 2."""
    return {"tickformat": ",d", "rangemode": "tozero", **({"dtick": 1} if most < 6 else {})}


def event_name(row: Mapping[str, Any]) -> str:
    """Class and type of an event as one name."""
    return f"{row['event_class'].removesuffix('EventType')} {row['event_type']}"


def colours_of(names: Sequence[str], fixed: Mapping[str, str]) -> Callable[[str], str]:
    """A function from name to colour: the fixed one, or the next free one."""
    free = [colour for colour in COLOURS if colour not in fixed.values()] or list(COLOURS)
    others = [name for name in dict.fromkeys(names) if name not in fixed]
    chosen = {name: free[position % len(free)] for position, name in enumerate(others)}
    return lambda name: fixed.get(name) or chosen[name]
