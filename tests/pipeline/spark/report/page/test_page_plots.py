"""The plots: which rows become which marks, in which units."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.spark.report.plots import plots, plots_over_time
from pipeline.spark.report.plots.plot_style import event_name, label, short, time_axis

from .page_rows import SECOND, small_tables

MINUTES = time_axis(0, 600 * SECOND)


@pytest.mark.parametrize(
    ("span_s", "place", "unit"),
    [(0, 60.0, "s"), (119, 60.0, "s"), (120, 1.0, "min"), (7_200, 1 / 60, "h"), (172_800, 1 / 1440, "days")],
)
def test_times_are_in_a_unit_that_suits_the_run(span_s: int, place: float, unit: str) -> None:
    axis = time_axis(5 * SECOND, (5 + span_s) * SECOND)

    assert (axis.unit, axis.place(65 * SECOND)) == (unit, pytest.approx(place))


def test_a_long_name_is_elided_in_the_middle_and_a_missing_name_reads_unknown() -> None:
    assert short("a" * 20 + "b" * 20) == "a" * 17 + "\u2026" + "b" * 17
    assert short("<b>") == "&lt;b&gt;"
    assert label(None) == "(unknown)"


def test_an_events_name_is_its_class_and_type() -> None:
    assert event_name({"event_class": "RMAppEventType", "event_type": "KILL"}) == "RMApp KILL"


def test_the_time_line_has_a_bar_per_stay_and_open_ones_go_to_the_end() -> None:
    stays = [
        {"application": "b", "seq": 3, "state": "RUNNING", "from_at": 120 * SECOND, "to_at": 180 * SECOND},
        {"application": "a", "seq": 4, "state": "RUNNING", "from_at": 300 * SECOND, "to_at": None},
        {"application": "b", "seq": 1, "state": "ACCEPTED", "from_at": 60 * SECOND, "to_at": 120 * SECOND},
    ]

    figure = plots_over_time.timeline_plot(stays, MINUTES, 600 * SECOND)

    assert [(bar.name, bar.y, bar.base, bar.x) for bar in figure.data] == [
        ("ACCEPTED", ("b",), (1.0,), (1.0,)),
        ("RUNNING", ("b", "a"), (2.0, 5.0), (1.0, 5.0)),
    ]
    assert figure.data[1].customdata[1][0] == "5 min, not ended"
    # The first one to be submitted at the top.
    assert figure.layout.yaxis.categoryarray == ("a", "b")
    assert figure.layout.xaxis.range == (0, 10.0)


def test_critical_paths_leave_out_the_phases_that_took_no_time() -> None:
    figure = plots_over_time.critical_paths_plot(small_tables()["critical_paths"])

    assert [(bar.name, bar.x, bar.customdata) for bar in figure.data] == [
        ("scheduling", (10.0,), ("10 s",)),
        ("running", (60.0,), ("1 min",)),
    ]
    assert figure.layout.xaxis.title.text == "time from submission to the end (s)"


def test_queue_depth_has_its_rates_below_it() -> None:
    figure = plots_over_time.queue_depth_plot(small_tables()["queue_depth"], MINUTES)

    assert [(line.name, line.y) for line in figure.data] == [
        ("maximum", (7, 6)),
        ("at the end of each interval", (6, 0)),
        ("arrivals per second", (10.0, 0.0)),
        ("starts per second", (4.0, 6.0)),
    ]


def test_queue_depth_leaves_out_the_plot_of_an_always_empty_queue() -> None:
    buckets = [row | {"depth": 0, "greatest_depth": 0} for row in small_tables()["queue_depth"]]

    figure = plots_over_time.queue_depth_plot(buckets, MINUTES)

    assert [line.name for line in figure.data] == ["arrivals per second", "starts per second"]


def test_latencies_are_on_a_scale_of_whole_powers_of_ten() -> None:
    figure = plots_over_time.latency_plot(small_tables()["event_times"], MINUTES)

    assert [(line.name, line.y, line.showlegend) for line in figure.data] == [
        ("ATypex GOx", (10.0,), True),
        ("ATypex GOx", (10.0,), False),
        ("ATypex GOx", (2000.0,), False),
        ("ATypex GOx", (2000.0,), False),
    ]
    assert figure.layout.yaxis.ticktext == ("10 \u00b5s", "100 \u00b5s")
    assert figure.layout.yaxis2.ticktext == ("1 ms", "10 ms")


def test_a_heat_map_has_a_row_per_node_and_a_map_per_known_resource() -> None:
    shares = [
        share("n1", 0, memory_share=1.0, gpu_share=None),
        share("n1", 1, memory_share=0.25, gpu_share=None),
        share("n2", 1, memory_share=1.5, gpu_share=0.125),
    ]

    figure = plots_over_time.heat_plot(shares, MINUTES, "node")

    assert [(heat.y, heat.z) for heat in figure.data] == [
        (("n1", "n2"), ([100.0, 25.0], [None, 150.0])),
        (("n1", "n2"), ([None, None], [None, 12.5])),
    ]
    assert [heat.zmax for heat in figure.data] == [200.0, 200.0]
    assert [title.text for title in figure.layout.annotations] == ["Memory", "GPUs"]


def test_unknown_capacities_give_no_heat_map() -> None:
    assert plots_over_time.heat_plot([share("n1", 0, memory_share=None, gpu_share=None)], MINUTES, "node") is None
    assert plots_over_time.cluster_plot([], MINUTES) is None


def share(node: str, bucket: int, **shares: float | None) -> dict[str, Any]:
    return {"node": node, "bucket": bucket, "starts_at": bucket * SECOND, "vcores_share": None, **shares}


def test_slow_handlers_of_rare_classes_share_a_colour() -> None:
    rows = [
        {"seq": n, "event_class": f"C{n}", "event_type": "T", "entity": None, "handling_ms": 1.0, "at": 0}
        for n in range(9)
    ]

    figure = plots_over_time.slowest_plot(rows, MINUTES)

    assert [dots.name for dots in figure.data] == ["C0", "C1", "C2", "C3", "C4", "C5", "C6", "others"]
    assert figure.data[-1].customdata[1][:3] == ["C8 T", "(unknown)", "1 ms"]


def test_unchanged_figures_are_not_drawn_as_changes() -> None:
    metrics = [
        {"subject": "run", "metric": name, "change": change}
        for name, change in (("a", 0.0), ("b", None), ("c", -0.25), ("d", 2.0))
    ]

    figure = plots.changes_plot(metrics)

    assert (figure.data[0].y, figure.data[0].text) == (("run: d", "run: c"), ("+200 %", "-25 %"))
    assert plots.changes_plot(metrics[:2]) is None
