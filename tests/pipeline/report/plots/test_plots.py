"""The plots: which rows become which marks, in which units."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("duckdb")


from pipeline.report.plots import plots, plots_over_time
from pipeline.report.plots.plot_style import event_name, time_axis

from ..page.page_rows import SECOND, small_tables

MINUTES = time_axis(0, 600 * SECOND)


def facet(chart: Any) -> Any:
    """The only facet of a chart with a row for each name."""
    [only] = chart.facets
    return only


def bars(chart: Any) -> list[tuple[int, float, float, str]]:
    return [(bar.row, bar.low, bar.high, bar.colour) for bar in facet(chart).bars]


def colours_by_key(chart: Any) -> dict[str, str]:
    return {key.name: key.colour for key in chart.keys}


@pytest.mark.parametrize(
    ("span_s", "place", "unit"),
    [(0, 60.0, "s"), (119, 60.0, "s"), (120, 1.0, "min"), (7_200, 1 / 60, "h"), (172_800, 1 / 1440, "days")],
)
def test_times_are_in_a_unit_that_suits_the_run(span_s: int, place: float, unit: str) -> None:
    axis = time_axis(5 * SECOND, (5 + span_s) * SECOND)

    assert (axis.unit, axis.place(65 * SECOND)) == (unit, pytest.approx(place))
    assert axis.scale().title == f"time since the start of the run ({unit})"


def test_an_events_name_is_its_class_and_type() -> None:
    assert event_name({"event_class": "RMAppEventType", "event_type": "KILL"}) == "RMApp KILL"


def test_applications_are_sorted_by_number_and_carry_it() -> None:
    states = [{"final_state": "FAILED", "applications": 3}, {"final_state": "FINISHED", "applications": 1200}]

    chart = plots.applications_plot(states)

    assert chart.names == ["FINISHED", "FAILED"]
    assert bars(chart) == [(0, 0, 1200, "green"), (1, 0, 3, "red")]
    assert [bar.text for bar in facet(chart).bars] == ["1,200", "3"]


def test_waits_of_queues_without_a_placed_application_are_not_drawn() -> None:
    known = small_tables()["waiting_by_queue"][0]
    unplaced = known | {"queue": None, "p50_s": None, "p95_s": None, "max_s": None}

    chart = plots.waiting_plot([known | {"p50_s": 0.0}, unplaced])

    assert chart.names == ["qx"]
    # A logarithmic scale cannot show 0.
    assert [(dot.at, dot.is_end) for dot in facet(chart).dots] == [(0.001, False), (90.0, False), (90.5, True)]
    assert facet(chart).dots[0].about == "qx: median 0 s"
    assert plots.waiting_plot([unplaced]) is None


def test_each_machine_has_a_plot_of_its_states_and_all_have_the_same_scale() -> None:
    stay = small_tables()["time_in_state"][0]

    charts = plots.state_plots([stay, stay | {"state": "NEW", "p50_s": 2.0}, stay | {"machine": "A", "max_s": 500.0}])

    assert {machine: chart.names for machine, chart in charts.items()} == {
        "A": ["SAVINGx"],
        "RMAppx": ["NEW", "SAVINGx"],
    }
    assert facet(charts["A"]).scale == facet(charts["RMAppx"]).scale


def test_the_time_line_has_a_bar_per_stay_and_open_ones_go_to_the_end() -> None:
    stays = [
        {"application": "b", "seq": 3, "state": "RUNNING", "from_at": 120 * SECOND, "to_at": 180 * SECOND},
        {"application": "a", "seq": 4, "state": "RUNNING", "from_at": 300 * SECOND, "to_at": None},
        {"application": "b", "seq": 1, "state": "ACCEPTED", "from_at": 60 * SECOND, "to_at": 120 * SECOND},
    ]

    chart = plots_over_time.timeline_plot(stays, MINUTES, 600 * SECOND)

    # The first one to be submitted at the top.
    assert chart.names == ["b", "a"]
    assert bars(chart) == [(0, 2.0, 3.0, "blue"), (1, 5.0, 10.0, "blue"), (0, 1.0, 2.0, "amber")]
    assert colours_by_key(chart) == {"ACCEPTED": "amber", "RUNNING": "blue"}
    assert facet(chart).bars[1].about == "a: RUNNING for 5 min, not ended, from 1970-01-01 00:05:00 UTC"
    assert (facet(chart).scale.low, facet(chart).scale.high) == (0, 10.0)


def test_critical_paths_leave_out_the_phases_that_took_no_time() -> None:
    chart = plots_over_time.critical_paths_plot(small_tables()["critical_paths"])

    assert list(colours_by_key(chart)) == ["scheduling", "running"]
    assert bars(chart) == [(0, 0.0, 10.0, "amber"), (0, 10.0, 70.0, "blue")]
    assert [bar.about for bar in facet(chart).bars] == ["appx: scheduling 10 s", "appx: running 1 min"]
    assert facet(chart).scale.title == "time from submission to the end (s)"


def test_containers_hold_until_the_next_interval() -> None:
    buckets = [{"starts_at": at * SECOND, "containers": held} for at, held in ((0, 3), (300, 1))]

    chart = plots_over_time.containers_plot(buckets, MINUTES)

    [pane] = chart.panes
    [line] = pane.lines
    assert (line.points, line.is_step) == ([(0.0, 3), (5.0, 1)], True)
    assert [(hit.low, hit.high, hit.about) for hit in pane.hits] == [
        (0.0, 5.0, "3 at once, after 0 min"),
        (5.0, 10.0, "1 at once, after 5 min"),
    ]


def test_queue_depth_has_its_rates_below_it() -> None:
    chart = plots_over_time.queue_depth_plot(small_tables()["queue_depth"], MINUTES)

    assert [[[y for _, y in line.points] for line in pane.lines] for pane in chart.panes] == [
        [[7, 6], [6, 0]],
        [[10.0, 0.0], [4.0, 6.0]],
    ]
    assert [pane.y.title for pane in chart.panes] == ["events waiting", "events per second"]
    assert list(colours_by_key(chart)) == [
        "most at once",
        "at the end of each interval",
        "arrivals per second",
        "starts per second",
    ]


def test_queue_depth_leaves_out_the_plot_of_an_always_empty_queue() -> None:
    buckets = [row | {"depth": 0, "greatest_depth": 0} for row in small_tables()["queue_depth"]]

    chart = plots_over_time.queue_depth_plot(buckets, MINUTES)

    assert [pane.y.title for pane in chart.panes] == ["events per second"]
    assert list(colours_by_key(chart)) == ["arrivals per second", "starts per second"]


def test_latencies_have_a_solid_line_for_the_99th_percentile_and_a_dotted_one_for_the_median() -> None:
    chart = plots_over_time.latency_plot(small_tables()["event_times"], MINUTES)

    assert [[(line.points, line.is_dotted) for line in pane.lines] for pane in chart.panes] == [
        [([(0.0, 1e-5)], False), ([(0.0, 1e-5)], True)],
        [([(0.0, 2e-3)], False), ([(0.0, 2e-3)], True)],
    ]
    assert [(pane.y.ticks[0].text, pane.y.ticks[-1].text) for pane in chart.panes] == [
        ("10 \u00b5s", "100 \u00b5s"),
        ("1 ms", "10 ms"),
    ]
    assert list(colours_by_key(chart)) == ["ATypex GOx"]
    assert chart.panes[1].hits[0].about == (
        "in handlers, after 0 min\nATypex GOx: 99 % within 2 ms, half within 2 ms (4 events)"
    )


def test_a_heat_map_has_a_row_per_node_and_a_map_per_known_resource() -> None:
    shares = [
        share("n1", 0, memory_share=1.0, gpu_share=None),
        share("n1", 1, memory_share=0.25, gpu_share=None),
        share("n2", 1, memory_share=1.5, gpu_share=0.125),
    ]

    chart = plots_over_time.heat_plot(shares, MINUTES, "node")

    assert chart.names == ["n1", "n2"]
    memory, gpus = chart.facets
    assert [(each.title, each.cells, each.most) for each in chart.facets] == [
        ("Memory", [[100.0, 25.0], [None, 150.0]], 100.0),
        ("GPUs", [[None, None], [None, 12.5]], 100.0),
    ]
    assert memory.about == [
        "n1, Memory: 62.5 % on average, up to 100 %",
        "n2, Memory: 150 % on average, up to 150 %",
    ]
    assert gpus.about[0] == "n1, GPUs: unknown"
    assert "above 100 %" in colours_by_key(chart)


def test_the_scale_of_a_heat_map_fits_low_shares() -> None:
    chart = plots_over_time.heat_plot([share("n1", 0, memory_share=0.0042, gpu_share=None)], MINUTES, "node")

    assert chart.heat_end == "0.5 %"
    assert chart.keys == []


def test_unknown_capacities_give_no_heat_map() -> None:
    assert plots_over_time.heat_plot([share("n1", 0, memory_share=None, gpu_share=None)], MINUTES, "node") is None
    assert plots_over_time.cluster_plot([], MINUTES) is None


def test_the_cluster_has_a_line_per_known_resource() -> None:
    chart = plots_over_time.cluster_plot([share("", 0, memory_share=0.5, gpu_share=None)], MINUTES)

    assert list(colours_by_key(chart)) == ["Memory"]
    assert chart.panes[0].lines[0].points == [(0.0, 50.0)]


def share(node: str, bucket: int, **shares: float | None) -> dict[str, Any]:
    return {"node": node, "bucket": bucket, "starts_at": bucket * SECOND, "vcores_share": None, **shares}


def test_few_nodes_have_a_bar_each_and_red_ones_are_oversubscribed() -> None:
    node = small_tables()["node_peaks"][0]

    half = {"memory_mb": 2048, "peak_memory_mb": 1024, "vcores_milli": None}
    odd = {"memory_mb": None, "vcores_milli": 2000, "peak_vcores_milli": 1150}

    chart = plots.nodes_plot([node, node | {"node": "n2"} | half, node | {"node": "n3"} | odd])

    memory, vcores = chart.facets
    assert [(bar.row, bar.high, bar.colour) for bar in memory.bars] == [(0, 200.0, "red"), (1, 50.0, "blue")]
    assert [(bar.row, bar.high) for bar in vcores.bars] == [(0, 100.0), (2, 57.5)]
    assert memory.bars[0].about == "nx: 2 GiB of 1 GiB (200 %)"
    assert vcores.bars[1].about == "n3: 1.15 of 2 (58 %)"
    assert memory.limit == 100.0


def test_many_nodes_are_a_curve_from_the_fullest_to_the_emptiest() -> None:
    node = small_tables()["node_peaks"][0] | {"vcores_milli": None}
    peaks = [node | {"node": f"n{number}", "peak_memory_mb": 512 if number < 20 else 256} for number in range(41)]

    chart = plots.nodes_plot(peaks)

    [pane] = chart.panes
    assert pane.lines[0].points == [(0, 50.0), (20, 25.0)]
    assert len(pane.hits) == 41
    assert pane.hits[20].about == "n20: 25 %, number 21 of 41 from the fullest"
    assert pane.limit is None


def test_slow_handlers_of_rare_classes_share_a_colour() -> None:
    rows = [
        {"seq": n, "event_class": f"C{n}", "event_type": "T", "entity": None, "handling_ms": 1.0, "at": 0}
        for n in range(9)
    ]

    chart = plots_over_time.slowest_plot(rows, MINUTES)

    assert list(colours_by_key(chart)) == ["C0", "C1", "C2", "C3", "C4", "C5", "C6", "others"]
    points = chart.panes[0].points
    assert points[-1].colour == points[-2].colour == colours_by_key(chart)["others"]
    assert points[-1].about == "C8 T of (unknown): 1 ms (seq 8), after 0 min"


def test_event_types_are_sorted_by_their_time_in_handlers_and_coloured_by_class() -> None:
    row = small_tables()["events_by_type"][0]

    chart = plots.events_plot([row, row | {"event_class": "B", "handling_total_ms": 9.0}])

    assert chart.names == ["B GOx", "ATypex GOx"]
    assert bars(chart) == [(0, 0, 9.0, "amber"), (1, 0, 8.0, "blue")]
    assert facet(chart).bars[1].about == "ATypex GOx: 8 ms in total, 4 events, mean 2 ms, 99 % below 4 ms"


def test_unchanged_figures_are_not_drawn_as_changes() -> None:
    metrics = [
        {"subject": "run", "metric": name, "change": change}
        for name, change in (("a", 0.0), ("b", None), ("c", -0.25), ("d", 2.0))
    ]

    chart = plots.changes_plot(metrics)

    assert chart.names == ["run: d", "run: c"]
    assert [(bar.high, bar.text, bar.colour) for bar in facet(chart).bars] == [
        (200.0, "+200 %", "amber"),
        (-25.0, "-25 %", "blue"),
    ]
    assert plots.changes_plot(metrics[:2]) is None
