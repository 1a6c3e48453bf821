"""State graphs: where their nodes and edges lie, and what is drawn of a machine."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from dispatcher.pages.drawing.graph_layout import lay_out
from dispatcher.pages.drawing.state_graph import EDGES_DRAWN, STATES_DRAWN, draw_graph


def row(transition: str, count: int, *, valid: bool = True, declared: bool = True) -> dict[str, Any]:
    """A row of `mined_graph`, written as `FROM EVENT TO`."""
    from_state, event_type, to_state = transition.split()
    return {
        "machine": "M",
        "from_state": from_state,
        "event_type": event_type,
        "to_state": to_state,
        "count": count,
        "valid": valid,
        "declared": declared,
    }


def layers(*edges: str) -> dict[float, set[str]]:
    """The nodes by their height in the drawing; an edge is written as `FROM TO`."""
    pairs = [(edge.split()[0], edge.split()[1]) for edge in edges]
    found: dict[float, set[str]] = {}
    for name, node in lay_out(list(dict.fromkeys(end for pair in pairs for end in pair)), pairs).placed.items():
        found.setdefault(node.y, set()).add(name)
    return dict(sorted(found.items()))


def test_each_node_stands_below_all_that_lead_to_it_and_the_initial_state_at_the_top() -> None:
    assert list(layers("NEW A", "A B", "NEW B", "B C", "NEW C").values()) == [{"NEW"}, {"A"}, {"B"}, {"C"}]
    assert list(layers("A NEW", "NEW A", "A B").values()) == [{"NEW"}, {"A"}, {"B"}]


def test_an_edge_that_leads_back_is_drawn_upwards_and_changes_no_layer() -> None:
    pairs = [("NEW", "A"), ("A", "B"), ("B", "A")]

    layout = lay_out(["NEW", "A", "B"], pairs)

    assert [layout.placed[name].y for name in ("NEW", "A", "B")] == [0.0, 72.0, 144.0]
    assert [point.y for point in layout.routes["B", "A"]] == [144.0, 72.0]
    # Not on the edge that leads down.
    assert layout.routes["B", "A"][0].x > layout.routes["A", "B"][0].x


def test_an_edge_over_several_layers_passes_beside_the_nodes_between() -> None:
    pairs = [("NEW", "A"), ("A", "B"), ("B", "C"), ("NEW", "C")]

    layout = lay_out(["NEW", "A", "B", "C"], pairs)

    route = layout.routes["NEW", "C"]
    assert [point.y for point in route] == [0.0, 72.0, 144.0, 216.0]
    for point, name in ((route[1], "A"), (route[2], "B")):
        assert abs(point.x - layout.placed[name].x) > layout.placed[name].width / 2


def test_nodes_of_one_layer_do_not_touch() -> None:
    names = [f"STATE_{number}" for number in range(12)]

    layout = lay_out(["NEW", *names], [("NEW", name) for name in names])

    nodes = sorted((node for name, node in layout.placed.items() if name != "NEW"), key=lambda node: node.x)
    for left, right in itertools.pairwise(nodes):
        assert right.x - right.width / 2 > left.x + left.width / 2
    assert nodes[0].x - nodes[0].width / 2 == pytest.approx(0.0)
    assert nodes[-1].x + nodes[-1].width / 2 == pytest.approx(layout.width)


def test_circles_without_an_initial_state_and_nodes_without_edges_have_a_place_too() -> None:
    layout = lay_out(["A", "B", "C", "ALONE"], [("A", "B"), ("B", "C"), ("C", "A")])

    assert {name: node.y for name, node in layout.placed.items()} == {"A": 0.0, "B": 72.0, "C": 144.0, "ALONE": 0.0}


def test_the_declared_drawing_has_the_declared_edges_and_the_other_all_edges() -> None:
    drawing = draw_graph([row("NEW START A", 3), row("A END B", 0), row("A ODD C", 2, declared=False)])

    assert re.findall(r">([A-Z]+)</text>", drawing.declared) == ["NEW", "A", "B"]
    assert styles(drawing.declared) == ["edge declared", "edge declared"]
    assert re.findall(r">([A-Z]+)</text>", drawing.taken) == ["NEW", "A", "B", "C"]
    assert styles(drawing.taken) == ["edge never", "edge wrong", "edge taken"]
    assert drawing.states_left_out == 0


def test_an_edge_shows_its_count_and_lists_the_counts_of_its_events() -> None:
    drawing = draw_graph([row("NEW START A", 1200), row("NEW RECOVER A", 34), row("NEW KILL A", 0)])

    assert re.findall(r'<text class="number taken"[^>]*>([^<]*)<', drawing.taken) == ["1,234"]
    assert "<title>NEW \u2192 A: START 1,200, RECOVER 34, KILL</title>" in drawing.taken
    assert "<title>NEW \u2192 A: START, RECOVER, KILL</title>" in drawing.declared


def test_states_and_edges_are_drawn_by_what_has_happened() -> None:
    refused = draw_graph([row("NEW START A", 1), row("A START A", 1, valid=False)])  # though it is declared
    never = draw_graph([row("NEW START A", 1), row("A END B", 0)])
    present = draw_graph([row("NEW GO DONE", 1), row("NEW STAY NEW", 1000)], "DONE")

    assert styles(refused.taken) == ["edge taken", "edge wrong"]
    assert re.findall(r'<g class="(state \w+)">', never.taken) == ["state taken", "state taken", "state never"]
    assert re.findall(r'<g class="(state \w+)">', present.taken) == ["state taken", "state now"]
    assert "now" not in present.declared
    assert "style=" not in present.declared + present.taken, "the policy of the pages forbids them"


def test_names_are_text_and_not_markup() -> None:
    nasty = '"><script>alert(1)</script>'
    drawing = draw_graph([row("NEW START A", 1) | {"to_state": nasty, "event_type": nasty}])

    for svg in drawing[:2]:
        assert "<script" not in svg
        assert "&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in svg


def test_a_machine_with_too_many_states_is_drawn_with_the_most_frequent() -> None:
    rows = [row(f"S{number} E S{number + 1}", number) for number in range(500)]

    drawing = draw_graph(rows)

    assert drawing.taken.count('<g class="state') == STATES_DRAWN
    assert drawing.taken.count('<g class="edge') <= EDGES_DRAWN
    assert "S500<" in drawing.taken
    assert drawing.states_left_out == 501 - STATES_DRAWN


def styles(svg: str) -> list[str]:
    return re.findall(r'<g class="(edge \w+)">', svg)
