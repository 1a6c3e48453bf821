"""Charts of lines and points: one or more panes, below each other or side by side."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup

from pipeline.report.plots.scales import Scale
from pipeline.report.plots.svg import AXIS_PX, LegendKey, below, legend, opening, percent, ticks, titled

_ACROSS, _DOWN = 2000, 1000  # units of a line's drawing, which is stretched to the pane
_LETTER_PX = 7.0


class Curve(NamedTuple):
    """`points`: x and y, of which each gets a dot. `is_step`: each y holds until the next x, without dots."""

    colour: str
    points: Sequence[tuple[float, float]]
    is_step: bool = False
    is_filled: bool = False
    is_dotted: bool = False


class ChartPoint(NamedTuple):
    x: float
    y: float
    colour: str
    about: str


class Hit(NamedTuple):
    """A part of the x axis with its tooltip."""

    low: float
    high: float
    about: str


class Pane(NamedTuple):
    """`y.title` is written above the pane, `x.title` below it. `limit`: the y of a warning line."""

    x: Scale
    y: Scale
    lines: Sequence[Curve] = ()
    points: Sequence[ChartPoint] = ()
    hits: Sequence[Hit] = ()
    limit: float | None = None
    height: int = 190


class PaneChart(NamedTuple):
    panes: Sequence[Pane]
    keys: Sequence[LegendKey] = ()
    is_side_by_side: bool = False

    def draw(self, label: str) -> Markup:
        """The chart as HTML with SVG. `label`: for screen readers."""
        letters = max(len(tick.text) for pane in self.panes for tick in pane.y.ticks)
        panes = "".join(_pane(pane, label, 10 + _LETTER_PX * letters) for pane in self.panes)
        side = f" of-{len(self.panes)}" if self.is_side_by_side else ""
        return Markup(f'<div class="chart">{legend(self.keys)}<div class="panes{side}">{panes}</div></div>')


def _pane(pane: Pane, label: str, left_px: float) -> str:
    title = f"<h4>{escape(pane.y.title)}</h4>" if pane.y.title else ""
    y_of = [(tick.text, pane.height * (1 - pane.y.share(tick.value))) for tick in pane.y.ticks]
    left = "".join(f'<text x="{left_px - 8:g}" y="{max(y, 8) + 4:g}">{escape(text)}</text>' for text, y in y_of)
    across = "".join(f'<line class="grid" x2="100%" y1="{y:g}" y2="{y:g}"/>' for _, y in y_of)
    drawn = opening(pane.height + AXIS_PX, f"{label}: {pane.y.title}" if pane.y.title else label)
    return (
        f'<div class="pane">{title}<div class="axes">'
        f'<svg class="left" width="{left_px:g}" height="{pane.height + AXIS_PX}" aria-hidden="true">{left}</svg>'
        f"<div>{drawn}{across}{ticks(pane.x, pane.height)}{_marks(pane)}</svg>{below(pane.x)}</div></div></div>"
    )


def _marks(pane: Pane) -> str:
    box = f'viewBox="0 0 {_ACROSS} {_DOWN}" preserveAspectRatio="none"'
    parts = [f'<svg class="lines" width="100%" height="{pane.height}" {box}>']
    parts += [_path(line, pane) for line in pane.lines if line.points]
    if pane.limit is not None:
        parts.append(f'<path class="limit" d="M0 {_down(pane, pane.limit)}H{_ACROSS}"/>')
    parts.append("</svg>")
    for point in pane.points:
        y = pane.height * (1 - pane.y.share(point.y))
        place = f'cx="{percent(pane.x.share(point.x))}" cy="{y:g}" r="4.5"'
        parts.append(f'<circle class="{point.colour}" {place}>{titled(point.about)}</circle>')
    for hit in pane.hits:
        start, end = pane.x.share(hit.low), pane.x.share(hit.high)
        place = f'x="{percent(start)}" width="{percent(end - start)}" height="{pane.height}"'
        parts.append(f'<rect class="hit" {place}>{titled(hit.about)}</rect>')
    return "".join(parts)


def _path(line: Curve, pane: Pane) -> str:
    places = [(round(_ACROSS * pane.x.share(x)), _down(pane, y)) for x, y in line.points]
    if line.is_step:
        path = f"M{places[0][0]} {places[0][1]}" + "".join(f"H{x}V{y}" for x, y in places[1:]) + f"H{_ACROSS}"
        last = _ACROSS
    else:
        path = "M" + "L".join(f"{x} {y}" for x, y in places)
        last = places[-1][0]
    under = f'<path class="under {line.colour}" d="{path}H{last}V{_DOWN}H{places[0][0]}z"/>' if line.is_filled else ""
    dotted = " dotted" if line.is_dotted else ""
    # A dot is a line without a length: only its round ends are drawn, which stretching the drawing leaves round.
    ends = "" if line.is_step else "".join(f"M{x} {y}h0" for x, y in places)
    dots = f'<path class="dots {line.colour}" d="{ends}"/>' if ends else ""
    return f'{under}<path class="line{dotted} {line.colour}" d="{path}"/>{dots}'


def _down(pane: Pane, y: float) -> int:
    return round(_DOWN * (1 - pane.y.share(y)))
