"""Draws a state machine as SVG: its declared graph, and the graph of the transitions that were made.

The layout is layered: the initial state at the top, each state below its predecessors, back edges drawn upwards. Both
drawings share one layout, for comparison side by side. Colours come from the shared style sheet, and there are no style
attributes, which the policy of the pages forbids. Needs markupsafe, which comes with Jinja2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from dispatcher.pages.drawing.graph_layout import LONGEST_LABEL, Layout, Point, lay_out

STATES_DRAWN = 40
EDGES_DRAWN = 200
"""Most states and edges of one machine, by frequency: a foreign log can hold any number of names."""

_NODE_HEIGHT = 26.0
_MARGIN = 16.0
_LOOP = 13.0
_ARROW = 6.0
_LABEL_HEIGHT = 13.0
_CHARACTER = 6.4
_EVENTS_LISTED = 12


class _Edge(NamedTuple):
    """All transitions from one state to another. Undeclared and refused transitions make the edge wrong."""

    events: Mapping[str, int]
    taken: int
    is_declared: bool
    is_wrong: bool


class GraphDrawing(NamedTuple):
    """Two drawings of one machine, of equal size, and the number of states that both leave out."""

    declared: Markup
    taken: Markup
    states_left_out: int


def draw_graph(transitions: Sequence[Mapping[str, Any]], present: str | None = None) -> GraphDrawing:
    """Draw one machine from its transitions, declared or made, at least one.

    Each is a row of the report's `mined_graph`, or a mapping with its columns from_state, event_type, to_state, count,
    valid and declared. `present`: the state that is marked as the present one in the drawing of those made.
    """
    edges, left_out = _edges(transitions)
    states = list(dict.fromkeys(state for pair in edges for state in pair))
    layout = lay_out(states, [pair for pair in edges if pair[0] != pair[1]])
    declared = _draw(layout, edges, None, as_declared=True)
    return GraphDrawing(declared, _draw(layout, edges, present, as_declared=False), left_out)


def draw_population(
    declared: Sequence[tuple[str, str, str]], counts: Mapping[str, int], address: Callable[[str], str]
) -> Markup:
    """Draw one machine as it is declared, with the number of its entities at each state, as a link to `address(state)`.

    `declared`: from_state, event_type and to_state of each transition, at least one.
    """
    edges, layout = _laid_out(tuple(declared))
    lines = [
        _line(layout, pair, layout.routes.get(pair) or [], edge, "edge declared", True) for pair, edge in edges.items()
    ]
    nodes = [
        Markup('<a href="{}">{}{}</a>').format(
            address(state),
            Markup(_node(layout, state, "state taken" if counts.get(state) else "state vacant")),
            Markup(_population(layout, state, counts[state])) if counts.get(state) else "",
        )
        for state in layout.placed
    ]
    return _svg(layout, "".join([*lines, *nodes]), "State machine with the number of entities in each state")


@lru_cache(maxsize=64)
def _laid_out(declared: tuple[tuple[str, str, str], ...]) -> tuple[Mapping[tuple[str, str], _Edge], Layout]:
    rows = [
        {"from_state": each[0], "event_type": each[1], "to_state": each[2], "count": 0, "valid": True, "declared": True}
        for each in declared
    ]
    edges, _ = _edges(rows)
    states = list(dict.fromkeys(state for pair in edges for state in pair))
    return edges, lay_out(states, [pair for pair in edges if pair[0] != pair[1]])


def _population(layout: Layout, state: str, count: int) -> str:
    """A count at the corner of a state."""
    node, text = layout.placed[state], f"{count:,}"
    width = _CHARACTER * len(text) + 12
    x, y = node.x + node.width / 2 - 4, node.y - _NODE_HEIGHT / 2 - 5  # above the name
    return (
        f'<g class="population"><rect x="{x - width / 2:.1f}" y="{y - 9:.1f}" width="{width:.1f}" height="18" rx="9">'
        f'</rect><text x="{x:.1f}" y="{y + 4:.1f}">{text}</text></g>'
    )


def _edges(transitions: Iterable[Mapping[str, Any]]) -> tuple[dict[tuple[str, str], _Edge], int]:
    """Edges by source and target, in the order of the rows, and the number of states left out."""
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in transitions:
        rows.setdefault((row["from_state"], row["to_state"]), []).append(row)
    kept: dict[str, None] = {}
    every: dict[str, None] = {}
    by_weight = sorted(rows, key=lambda pair: -sum(row["count"] for row in rows[pair]))
    for pair in by_weight:
        every |= dict.fromkeys(pair)
        if len(kept | dict.fromkeys(pair)) <= STATES_DRAWN:
            kept |= dict.fromkeys(pair)
    drawn = set([pair for pair in by_weight if pair[0] in kept and pair[1] in kept][:EDGES_DRAWN])
    edges = {pair: _merged(rows[pair]) for pair in rows if pair in drawn}
    return edges, len(every) - len(kept)


def _merged(rows: Sequence[Mapping[str, Any]]) -> _Edge:
    events: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: (-row["count"], row["event_type"])):
        events[row["event_type"]] = events.get(row["event_type"], 0) + row["count"]
    return _Edge(
        events,
        taken=sum(events.values()),
        is_declared=any(row["declared"] for row in rows),
        is_wrong=any(row["count"] and not (row["declared"] and row["valid"] is not False) for row in rows),
    )


def _draw(layout: Layout, edges: Mapping[tuple[str, str], _Edge], present: str | None, *, as_declared: bool) -> Markup:
    shown = {pair: edge for pair, edge in edges.items() if edge.is_declared or not as_declared}
    lines, labels = [], []
    occupied = [_box(*node, _NODE_HEIGHT) for node in layout.placed.values()]
    for pair, edge in sorted(shown.items(), key=lambda item: item[1].taken):
        style = _style(edge, as_declared)
        points = layout.routes.get(pair) or []
        lines.append(_line(layout, pair, points, edge, style, as_declared))
        if edge.taken and not as_declared:
            labels.append((pair, points, edge, style))
    # Most frequent first, so that they get the best places.
    texts = [_edge_label(layout, *label, occupied) for label in reversed(labels)]
    visited = {state for pair, edge in edges.items() if edge.taken for state in pair}
    declared = {state for pair, edge in edges.items() if edge.is_declared for state in pair}
    nodes = [
        _node(layout, state, "state now" if state == present else _node_style(state, visited, declared, as_declared))
        for state in layout.placed
        if state in declared or not as_declared
    ]
    label = f"State machine, now in {present}" if present is not None else "State machine"
    return _svg(layout, "".join([*lines, *nodes, *texts]), label)


def _svg(layout: Layout, drawn: str, label: str) -> Markup:
    width, height = layout.width + 2 * _MARGIN + 2 * _LOOP, layout.height + 2 * _MARGIN + _NODE_HEIGHT
    box = f"{-_MARGIN} {-_MARGIN - _NODE_HEIGHT / 2} {width:.0f} {height:.0f}"
    label = escape(label)
    return Markup(
        f'<svg class="graph" viewBox="{box}" width="{width:.0f}" role="img" aria-label="{label}">{drawn}</svg>'
    )


def _style(edge: _Edge, as_declared: bool) -> str:
    if as_declared:
        return "edge declared"
    if edge.is_wrong:
        return "edge wrong"
    return "edge taken" if edge.taken else "edge never"


def _node_style(state: str, visited: set[str], declared: set[str], as_declared: bool) -> str:
    if as_declared:
        return "state declared"
    if state not in visited:
        return "state never"
    return "state taken" if state in declared else "state wrong"


def _node(layout: Layout, state: str, style: str) -> str:
    node = layout.placed[state]
    x, y = node.x - node.width / 2, node.y - _NODE_HEIGHT / 2
    return (
        f'<g class="{style}"><rect x="{x:.1f}" y="{y:.1f}" width="{node.width:.1f}" height="{_NODE_HEIGHT}" rx="6">'
        f'</rect><text x="{node.x:.1f}" y="{node.y + 4:.1f}">{escape(_short(state))}</text>'
        f"<title>{escape(state)}</title></g>"
    )


def _line(
    layout: Layout, pair: tuple[str, str], points: Sequence[Point], edge: _Edge, style: str, as_declared: bool
) -> str:
    source, target = pair
    listed = list(edge.events.items())[:_EVENTS_LISTED]
    names = ", ".join(name if as_declared or not number else f"{name} {number:,}" for name, number in listed)
    more = f" and {len(edge.events) - len(listed)} more" if len(edge.events) > len(listed) else ""
    title = escape(f"{source} \N{RIGHTWARDS ARROW} {target}: {names}{more}")
    # The width grows with each power of ten.
    width = 1.2 if as_declared or not edge.taken else 1.2 + 0.55 * math.log10(edge.taken)
    path, head = _loop(layout, source) if source == target else _curve(points)
    return (
        f'<g class="{style}"><path d="{path}" stroke-width="{width:.1f}"></path><path class="head" d="{head}"></path>'
        f"<title>{title}</title></g>"
    )


def _curve(points: Sequence[Point]) -> tuple[str, str]:
    """The path through the points, vertical at both ends, and its arrow head."""
    start, *_, end = points
    sign = 1 if end.y > start.y else -1
    first = Point(start.x, start.y + sign * _NODE_HEIGHT / 2)
    last = Point(end.x, end.y - sign * (_NODE_HEIGHT / 2 + _ARROW))
    path, here = [f"M{first.x:.1f},{first.y:.1f}"], first
    for point in [*points[1:-1], last]:
        middle = (here.y + point.y) / 2
        path.append(f"C{here.x:.1f},{middle:.1f} {point.x:.1f},{middle:.1f} {point.x:.1f},{point.y:.1f}")
        here = point
    return " ".join(path), _head(Point(end.x, end.y - sign * _NODE_HEIGHT / 2), sign)


def _loop(layout: Layout, state: str) -> tuple[str, str]:
    node = layout.placed[state]
    side, top, bottom = node.x + node.width / 2, node.y - 6, node.y + 6
    far = side + _LOOP * 1.5
    path = f"M{side:.1f},{top:.1f} C{far:.1f},{top - 4:.1f} {far:.1f},{bottom + 4:.1f} {side + _ARROW:.1f},{bottom:.1f}"
    tip, back = f"{side:.1f},{bottom:.1f}", side + _ARROW
    return path, f"M{tip} L{back:.1f},{bottom - 3:.1f} L{back:.1f},{bottom + 3:.1f} Z"


def _head(tip: Point, sign: int) -> str:
    back = tip.y - sign * _ARROW
    return f"M{tip.x:.1f},{tip.y:.1f} L{tip.x - 3.2:.1f},{back:.1f} L{tip.x + 3.2:.1f},{back:.1f} Z"


_Box = tuple[float, float, float, float]


def _edge_label(
    layout: Layout, pair: tuple[str, str], points: Sequence[Point], edge: _Edge, style: str, occupied: list[_Box]
) -> str:
    """The count, on its line where there is room. Adds its box to `occupied`."""
    text = f"{edge.taken:,}"
    if pair[0] == pair[1]:
        node = layout.placed[pair[0]]
        places = [Point(node.x + node.width / 2 + _LOOP + _CHARACTER * len(text) / 2 + 7, node.y)]
    else:
        places = [_on_line(points, share) for share in (0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78)]
    boxes = {place: _box(*place, _CHARACTER * len(text) + 2, _LABEL_HEIGHT) for place in places}
    free = (place for place, box in boxes.items() if not any(_overlap(box, other) for other in occupied))
    place = next(free, places[0])
    occupied.append(boxes[place])
    return f'<text class="{style.replace("edge", "number")}" x="{place.x:.1f}" y="{place.y + 4:.1f}">{text}</text>'


def _on_line(points: Sequence[Point], share: float) -> Point:
    """The point of `_curve` at this share of its height."""
    y = points[0].y + share * (points[-1].y - points[0].y)
    for here, there in itertools.pairwise(points):
        low, high = sorted((here.y, there.y))
        if low <= y <= high:
            along = (y - here.y) / (there.y - here.y)
            eased = along * along * (3 - 2 * along)
            return Point(here.x + eased * (there.x - here.x), y)
    return points[-1]


def _box(x: float, y: float, width: float, height: float) -> _Box:
    """The edges around a middle."""
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _short(state: str) -> str:
    return state if len(state) <= LONGEST_LABEL else f"{state[:11]}\N{HORIZONTAL ELLIPSIS}{state[-9:]}"
