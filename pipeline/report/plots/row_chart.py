"""Charts with a row for each name: bars, dots and lines beside the names, on one axis or on several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup

from pipeline.report.plots.plot_style import PALE
from pipeline.report.plots.scales import Scale
from pipeline.report.plots.svg import AXIS_PX, LegendKey, below, legend, opening, percent, ticks, titled

_FILLED = 0.64  # of a row's height
_TAIL = 10
_SHORT = 20
_LEVELS = 10
_FULL = 100.0


class RowBar(NamedTuple):
    """A bar of a row. `about`: its tooltip. `text`: written behind its end. `lane`: which of the row's bars it is."""

    row: int
    low: float
    high: float
    colour: str
    about: str
    text: str = ""
    lane: int = 0


class Dot(NamedTuple):
    """A mark in a row; with `is_end` a short upright line instead of a dot."""

    row: int
    at: float
    colour: str
    about: str
    radius: float = 5.0
    is_end: bool = False


class Span(NamedTuple):
    """A thin line in a row."""

    row: int
    low: float
    high: float


class Facet(NamedTuple):
    """A plot beside the names, on an axis of its own. `limit`: the value of a warning line."""

    scale: Scale
    bars: Sequence[RowBar] = ()
    dots: Sequence[Dot] = ()
    spans: Sequence[Span] = ()
    title: str = ""
    limit: float | None = None


class HeatFacet(NamedTuple):
    """A heat map: `cells` has a value, or None, for each row and each of the intervals that divide the axis evenly.

    A cell is as dark as its share of `most`, and red above 100. `about`: of each row, its tooltip.
    """

    scale: Scale
    cells: Sequence[Sequence[float | None]]
    most: float
    about: Sequence[str]
    title: str = ""


class RowChart(NamedTuple):
    """`row_px`: height of a row. `lanes`: bars that a row has room for, one below the other."""

    names: Sequence[str]
    facets: Sequence[Facet | HeatFacet]
    keys: Sequence[LegendKey] = ()
    row_px: int = 30
    lanes: int = 1
    heat_end: str = ""
    """What the darkest colour of a heat map stands for; empty without one."""

    def draw(self, label: str) -> Markup:
        """The chart as HTML with SVG. `label`: for screen readers."""
        title = '<h4 aria-hidden="true">\N{NO-BREAK SPACE}</h4>' if any(facet.title for facet in self.facets) else ""
        names = "".join(f"<li>{_name(name)}</li>" for name in self.names)
        column = f'<div class="names" aria-hidden="true">{title}<ul class="rows-{self.row_px}">{names}</ul></div>'
        facets = "".join(column + self._facet(facet, label) for facet in self.facets)
        heat = _heat_legend(self.heat_end) if self.heat_end else ""
        inner = f'<div class="facets of-{len(self.facets)}">{facets}</div>'
        return Markup(f'<div class="chart">{legend(self.keys)}{heat}{inner}</div>')

    def _facet(self, facet: Facet | HeatFacet, label: str) -> str:
        height = self.row_px * len(self.names)
        title = f"<h4>{escape(facet.title)}</h4>" if facet.title else ""
        axis = ticks(facet.scale, height, with_lines=isinstance(facet, Facet))
        marks = self._cells(facet) if isinstance(facet, HeatFacet) else self._marks(facet)
        drawn = opening(height + AXIS_PX, f"{label}: {facet.title}" if facet.title else label)
        return f'<div class="facet">{title}{drawn}{axis}{marks}</svg>{below(facet.scale)}</div>'

    def _marks(self, facet: Facet) -> str:
        parts = [self._span(facet.scale, span) for span in facet.spans]
        parts += [self._bar(facet.scale, bar) for bar in facet.bars]
        parts += [self._dot(facet.scale, dot) for dot in facet.dots]
        if facet.limit is not None:
            x = percent(facet.scale.share(facet.limit))
            parts.append(f'<line class="limit" x1="{x}" x2="{x}" y2="{self.row_px * len(self.names)}"/>')
        return "".join(parts)

    def _span(self, scale: Scale, span: Span) -> str:
        start, end = percent(scale.share(span.low)), percent(scale.share(span.high))
        y = self.row_px * (span.row + 0.5)
        return f'<line class="span {PALE}" x1="{start}" x2="{end}" y1="{y:g}" y2="{y:g}"/>'

    def _bar(self, scale: Scale, bar: RowBar) -> str:
        height = _FILLED * self.row_px if self.lanes == 1 else (self.row_px - 6) / self.lanes
        y = self.row_px * (bar.row + 0.5) + height * (bar.lane - self.lanes / 2)
        start, end = sorted((scale.share(bar.low), scale.share(bar.high)))
        place = f'x="{percent(start)}" y="{y:g}" width="{percent(end - start)}" height="{height:g}"'
        drawn = f'<rect class="{bar.colour}" {place}>{titled(bar.about)}</rect>'
        if not bar.text:
            return drawn
        side, x = ("before", start) if bar.high < bar.low else ("behind", end)
        return f'{drawn}<text class="{side}" x="{percent(x)}" y="{y + height / 2 + 4:g}">{escape(bar.text)}</text>'

    def _dot(self, scale: Scale, dot: Dot) -> str:
        x, y = percent(scale.share(dot.at)), self.row_px * (dot.row + 0.5)
        if dot.is_end:
            place = f'x1="{x}" x2="{x}" y1="{y - 6:g}" y2="{y + 6:g}"'
            return f'<line class="end {dot.colour}" {place}>{titled(dot.about)}</line>'
        return f'<circle class="{dot.colour}" cx="{x}" cy="{y:g}" r="{dot.radius:g}">{titled(dot.about)}</circle>'

    def _cells(self, facet: HeatFacet) -> str:
        columns = max((len(row) for row in facet.cells), default=0)
        height = self.row_px * len(self.names)
        by_colour: dict[str, list[str]] = {}
        for at_row, row in enumerate(facet.cells):
            begun, colour = 0, ""
            for position in range(columns + 1):
                found = _heat(row[position], facet) if position < columns else ""
                if found != colour:
                    if colour:
                        run = f"M{begun} {at_row}h{position - begun}v1H{begun}z"
                        by_colour.setdefault(colour, []).append(run)
                    begun, colour = position, found
        paths = "".join(f'<path class="{colour}" d="{"".join(runs)}"/>' for colour, runs in sorted(by_colour.items()))
        # One path per colour, stretched to the width: thousands of cells as elements of their own would be slow.
        box = f'viewBox="0 0 {columns} {len(facet.cells)}" preserveAspectRatio="none"'
        cells = f'<svg class="cells" width="100%" height="{height}" {box}>{paths}</svg>'
        rows = (self._heat_row(at_row, row, facet) for at_row, row in enumerate(facet.cells))
        return cells + "".join(rows)

    def _heat_row(self, at_row: int, row: Sequence[float | None], facet: HeatFacet) -> str:
        values = " ".join("-" if cell is None else f"{cell:.3g}" for cell in row)
        place = f'width="100%" y="{self.row_px * at_row}" height="{self.row_px}"'
        return f'<rect class="hit" {place} data-cells="{values}">{titled(facet.about[at_row])}</rect>'


def _heat(cell: float | None, facet: HeatFacet) -> str:
    if not cell:
        return ""
    if cell > _FULL:
        return "over"
    return f"heat-{min(int(_LEVELS * cell / facet.most), _LEVELS - 1)}"


def _heat_legend(most: str) -> str:
    shades = "".join(
        f'<rect class="heat-{level}" x="{14 * level}" width="14" height="12"/>' for level in range(_LEVELS)
    )
    return f'<ul class="keys"><li>0 %<svg width="{14 * _LEVELS}" height="12">{shades}</svg>{escape(most)}</li></ul>'


def _name(name: str) -> str:
    """A name that loses its middle where there is too little room: names of a kind often differ at their ends."""
    if len(name) <= _SHORT:
        return f'<span title="{escape(name)}">{escape(name)}</span>'
    head, tail = escape(name[:-_TAIL]), escape(name[-_TAIL:])
    return f'<span title="{escape(name)}">{head}</span><span>{tail}</span>'
