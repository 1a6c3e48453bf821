"""Charts as SVG: where marks are drawn, and that names stay text. Axes: places and ticks."""

from __future__ import annotations

import re

import pytest

from pipeline.report.plots.pane_chart import ChartPoint, Curve, Hit, Pane, PaneChart
from pipeline.report.plots.row_chart import Dot, Facet, HeatFacet, RowBar, RowChart, Span
from pipeline.report.plots.scales import Scale, durations, linear, powers_of_ten
from pipeline.report.plots.svg import LegendKey

TEN = linear(0, 10, "size")
NASTY = '</title><script>alert("1")</script>\''


def attributes(drawn: str, tag: str, style: str) -> list[dict[str, str]]:
    """The attributes of the elements with this tag and class."""
    found = re.findall(rf'<{tag} class="{style}"([^>]*)>', drawn)
    return [dict(re.findall(r'([\w-]+)="([^"]*)"', each)) for each in found]


def test_a_bar_is_placed_in_percent_of_the_width_and_pixels_of_the_height() -> None:
    bars = [RowBar(0, 0, 5, "blue", "a: 5", "5"), RowBar(1, 2.5, 10, "red", "b")]

    drawn = RowChart(["a", "b"], [Facet(TEN, bars)], row_px=30).draw("Sizes")

    [blue], [red] = attributes(drawn, "rect", "blue"), attributes(drawn, "rect", "red")
    assert (blue["x"], blue["width"], blue["y"], blue["height"]) == ("0%", "50%", "5.4", "19.2")
    assert (red["x"], red["width"], red["y"]) == ("25%", "75%", "35.4")
    assert "<title>a: 5</title>" in drawn
    assert re.search(r'<text class="behind" x="50%" y="[^"]*">5</text>', drawn)
    assert 'role="img" aria-label="Sizes"' in drawn
    assert '<p class="unit">size</p>' in drawn


def test_a_bar_to_the_left_has_its_text_on_the_left() -> None:
    bars = [RowBar(0, 0, -5, "blue", "", "-5")]

    drawn = RowChart(["a"], [Facet(linear(-10, 10), bars)]).draw("")

    assert attributes(drawn, "rect", "blue")[0]["x"] == "25%"
    assert re.search(r'<text class="before" x="25%"', drawn)


def test_bars_of_one_row_share_its_height() -> None:
    bars = [RowBar(0, 0, 5, "blue", "", lane=0), RowBar(0, 0, 5, "red", "", lane=1)]

    drawn = RowChart(["a"], [Facet(TEN, bars)], row_px=42, lanes=2).draw("")

    [blue], [red] = attributes(drawn, "rect", "blue"), attributes(drawn, "rect", "red")
    assert [(each["y"], each["height"]) for each in (blue, red)] == [("3", "18"), ("21", "18")]


def test_dots_and_lines_are_in_the_middle_of_their_row() -> None:
    facet = Facet(
        TEN, dots=[Dot(1, 5, "blue", "x"), Dot(0, 10, "grey", "y", is_end=True)], spans=[Span(1, 0, 10)], limit=5
    )

    drawn = RowChart(["a", "b"], [facet], row_px=20).draw("")

    assert [(dot["cx"], dot["cy"]) for dot in attributes(drawn, "circle", "blue")] == [("50%", "30")]
    assert attributes(drawn, "line", "end grey")[0]["x1"] == "100%"
    assert attributes(drawn, "line", "span pale")[0]["y1"] == "30"
    assert attributes(drawn, "line", "limit") == [{"x1": "50%", "x2": "50%", "y2": "40"}]


def test_several_faces_have_titles_and_names_of_their_own_for_narrow_screens() -> None:
    drawn = RowChart(["a"], [Facet(TEN, title="Memory"), Facet(TEN, title="Cores")]).draw("Use")

    assert drawn.count('class="names"') == 2
    assert re.findall(r"<h4>(.*?)</h4>", drawn) == ["Memory", "Cores"]
    assert re.findall(r'aria-label="(.*?)"', drawn) == ["Use: Memory", "Use: Cores"]


def test_a_long_name_is_in_two_parts_of_which_the_first_may_be_cut() -> None:
    drawn = RowChart(["application_1795400951332_0401"], [Facet(TEN)]).draw("")

    assert '<span title="application_1795400951332_0401">application_17954009</span><span>51332_0401</span>' in drawn


def test_equal_cells_of_a_map_are_one_run_of_one_colour() -> None:
    facet = HeatFacet(TEN, [[5.0, 5.0, None, 40.0], [120.0, 0.0, 100.0, 100.0]], 100.0, ["first", "second"])

    drawn = RowChart(["a", "b"], [facet], row_px=15, heat_end="100 %").draw("")

    paths = {
        style: path["d"]
        for style in ("heat-0", "heat-4", "heat-9", "over")
        for path in attributes(drawn, "path", style)
    }
    assert paths == {"heat-0": "M0 0h2v1H0z", "heat-4": "M3 0h1v1H3z", "heat-9": "M2 1h2v1H2z", "over": "M0 1h1v1H0z"}
    assert [row["data-cells"] for row in attributes(drawn, "rect", "hit")] == ["5 5 - 40", "120 0 100 100"]
    assert "<title>second</title>" in drawn


def test_a_step_holds_until_the_next_one_and_the_last_until_the_end() -> None:
    line = Curve("blue", [(0, 10), (5, 0)], is_step=True, is_filled=True)

    drawn = PaneChart([Pane(TEN, TEN, [line])]).draw("")

    assert attributes(drawn, "path", "line blue") == [{"d": "M0 0H1000V1000H2000"}]
    assert attributes(drawn, "path", "under blue") == [{"d": "M0 0H1000V1000H2000H2000V1000H0z"}]


@pytest.mark.parametrize(("points", "path"), [([(0, 0), (10, 10)], "M0 1000L2000 0"), ([(5, 5)], "M1000 500")])
def test_a_line_goes_from_point_to_point_and_each_point_has_a_dot(points: list[tuple[float, float]], path: str) -> None:
    drawn = PaneChart([Pane(TEN, TEN, [Curve("red", points, is_dotted=True)])]).draw("")

    assert attributes(drawn, "path", "line dotted red") == [{"d": path}]
    assert attributes(drawn, "path", "dots red")[0]["d"].count("h0") == len(points)


def test_points_and_hits_carry_their_tooltips() -> None:
    pane = Pane(TEN, TEN, points=[ChartPoint(5, 10, "teal", "late")], hits=[Hit(0, 2.5, "a\nb")], limit=5, height=100)

    drawn = PaneChart([pane]).draw("")

    assert attributes(drawn, "circle", "teal") == [{"cx": "50%", "cy": "0", "r": "4.5"}]
    assert re.search(r'<rect class="hit" x="0%" width="25%" height="100"><title>a\nb</title></rect>', drawn)
    assert attributes(drawn, "path", "limit") == [{"d": "M0 500H2000"}]


def test_panes_have_left_margins_of_the_same_width() -> None:
    drawn = PaneChart([Pane(TEN, linear(0, 5000, "large")), Pane(TEN, TEN)]).draw("")

    assert len({each["width"] for each in attributes(drawn, "svg", "left")}) == 1


def test_names_are_never_markup_and_no_element_has_a_style_of_its_own() -> None:
    facet = Facet(
        TEN._replace(title=NASTY), [RowBar(0, 0, 1, "blue", NASTY, NASTY)], [Dot(0, 1, "red", NASTY)], title=NASTY
    )
    pane = Pane(TEN, TEN._replace(title=NASTY), points=[ChartPoint(1, 1, "red", NASTY)], hits=[Hit(0, 1, NASTY)])
    keys = [LegendKey(NASTY, "blue")]

    for drawn in (RowChart([NASTY], [facet], keys).draw(NASTY), PaneChart([pane], keys).draw(NASTY)):
        assert "<script" not in drawn
        assert drawn.count("</title>") == drawn.count("<title>")
        assert "style=" not in drawn


# -- axes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (linear(0, 7), "0 | 2 | 4 | 6 | 8"),
        (linear(0, 0.31), "0.0 | 0.1 | 0.2 | 0.3 | 0.4"),
        (linear(0, 1452), "0 | 500 | 1,000 | 1,500"),
        (linear(0, 0.0084), "0.000 | 0.002 | 0.004 | 0.006 | 0.008 | 0.010"),
        (linear(0, 2.4, to_ticks=False), "0.0 | 0.5 | 1.0 | 1.5 | 2.0"),
        (linear(0, 2, is_whole=True), "0 | 1 | 2"),
        (linear(-50, 100, unit=" %"), "-50 % | 0 % | 50 % | 100 %"),
        (durations(1e-3, 150.0), "\u2264 1 ms | 10 ms | 100 ms | 1 s | 10 s | 1 min"),
        (powers_of_ten(3e-6, 4e-3), "1 \u00b5s | 10 \u00b5s | 100 \u00b5s | 1 ms | 10 ms"),
        (powers_of_ten(2e-3, 4e-3), "1 ms | 2 ms | 5 ms | 10 ms"),
    ],
)
def test_ticks_are_at_round_numbers(scale: Scale, ticks: str) -> None:
    assert " | ".join(tick.text for tick in scale.ticks) == ticks


@pytest.mark.parametrize(
    ("scale", "value", "share"),
    [
        (linear(0, 7), 8, 1),  # it ends at a tick
        (linear(0, 2.4, to_ticks=False), 2.4, 1),
        (linear(-50, 100, unit=" %"), 0, pytest.approx(1 / 3)),
        (linear(0, 10), -1, 0),
        (linear(0, 10), 5, 0.5),
        (linear(0, 10), 11, 1),
        (durations(1e-3, 150.0), 0.0, 0),
        (powers_of_ten(1e-6, 8e-5), 1e-5, pytest.approx(0.5)),
    ],
)
def test_a_value_has_its_share_of_the_axis_and_one_outside_goes_to_an_end(
    scale: Scale, value: float, share: float
) -> None:
    assert scale.share(value) == share


def test_durations_have_room_on_both_sides() -> None:
    scale = durations(1e-3, 150.0)

    assert 0 < scale.share(1e-3) < scale.share(0.1) < scale.share(150.0) < 1


@pytest.mark.parametrize("high", [0, 7, 0.31, 1452, 0.0084])
def test_an_axis_has_a_length_and_room_for_the_greatest_value(high: float) -> None:
    assert linear(0, high).high >= max(high, 1e-9)
