"""What all charts are drawn with: places, texts, legends, axes.

Places from left to right are percentages and places from top to bottom are pixels, so that a chart fills any width
while its texts keep their size, without a script. Everything that comes from a journal passes `escape`. There are no
style attributes: the page's policy forbids them.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from pipeline.report.plots.scales import Scale

AXIS_PX = 20
"""Height of the labels below a plot."""

_LEAST_SHARE = 0.03
_FEW_TICKS = 4


class LegendKey(NamedTuple):
    name: str
    colour: str


def percent(share: float) -> str:
    """A share of the width as an SVG length."""
    return f"{100 * share:.4g}%"


def titled(text: str) -> str:
    """A tooltip for the enclosing element."""
    return f"<title>{escape(text, quote=False)}</title>"


def legend(keys: Sequence[LegendKey]) -> str:
    if not keys:
        return ""
    entries = (
        f'<li><svg width="12" height="12" class="{key.colour}"><rect width="12" height="12" rx="2"/></svg>'
        f"{escape(key.name)}</li>"
        for key in keys
    )
    return f'<ul class="keys">{"".join(entries)}</ul>'


def opening(height: float, label: str) -> str:
    """The start tag of a drawing as wide as its container. `height`: in pixels; `label`: for screen readers."""
    return f'<svg width="100%" height="{height:g}" role="img" aria-label="{escape(label)}">'


def ticks(scale: Scale, height: float, *, with_lines: bool = True) -> str:
    """The labels of the axis below a plot of this height, and a line upwards from each."""
    parts = []
    for position, tick in enumerate(scale.ticks):
        share = scale.share(tick.value)
        x = percent(share)
        # A label at an end stays inside; every other one disappears where there is little room.
        side = "tick first" if share < _LEAST_SHARE else "tick last" if share > 1 - _LEAST_SHARE else "tick"
        hidden = " odd" if position % 2 and len(scale.ticks) > _FEW_TICKS else ""
        top = 0 if with_lines else height
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top:g}" y2="{height + 3:g}"/>')
        parts.append(f'<text class="{side}{hidden}" x="{x}" y="{height + 15:g}">{escape(tick.text)}</text>')
    return "".join(parts)


def below(scale: Scale) -> str:
    """The title of an axis, below its plot."""
    return f'<p class="unit">{escape(scale.title)}</p>' if scale.title else ""
