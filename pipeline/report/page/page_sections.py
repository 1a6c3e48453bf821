"""The report's page: its head, and its sections with their plots, tables and explanatory texts."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.util.figures import NOTHING, count, duration, gibibytes, moment, thousandths
from pipeline.report.page import event_sections
from pipeline.report.page.columns import (
    TableColumn,
    TableRow,
    columns,
    count_column,
    duration_column,
    elapsed_column,
    flag_column,
    problem_count_column,
    text_column,
)
from pipeline.report.page.event_sections import P95
from pipeline.report.page.headlines import headlines
from pipeline.report.page.page_data import PageData
from pipeline.report.page.page_views import ROWS_SHOWN, PlotView, Section, configuration, plot, table
from pipeline.report.page.rendering import render
from pipeline.report.phases import PHASES
from pipeline.report.plots import plots, plots_over_time
from pipeline.report.plots.plot_style import time_axis

APPLICATIONS_DRAWN = 30
"""Most applications in a plot with a row for each."""

NODES_DRAWN = 5000
"""Most nodes in the plot of their highest use. Fetch one more, so that the page can report that there are more."""

_DAMAGE_SHOWN = 20
_RELOAD_S = 5
_REAL_FROM_NS = 31_536_000_000_000_000  # an earlier time (before 1971) comes from a virtual clock, which starts at 0


def render_page(data: PageData) -> str:
    """Render the page as text, to be written in UTF-8. Deterministic."""
    left_out = len(data.damage) - _DAMAGE_SHOWN
    return render(
        title="Resource manager report",
        subtitle=_subtitle(data),
        figures=headlines(data),
        sections=sections_of(data),
        damage=data.damage[:_DAMAGE_SHOWN],
        damage_left_out=count(left_out) if left_out > 0 else "",
        reload_s=_RELOAD_S if data.is_live else None,
    )


def _subtitle(data: PageData) -> str:
    if data.first_at is None or data.last_at is None:
        return f"Journal {data.journal}, which is empty."
    compared = f" Compared with {data.compared_with}." if data.compared_with else ""
    if data.first_at < _REAL_FROM_NS:
        covered = f"{duration(data.span_s)} of virtual time"
    else:
        covered = f"from {moment(data.first_at)} to {moment(data.last_at)} in the clock of the run"
    return f"Journal {data.journal}, {covered}.{compared}"


def sections_of(data: PageData) -> list[Section]:
    """All sections, in the page's order."""
    sections = [event_sections.problems, _applications, _cluster, event_sections.events, event_sections.machines]
    if data.compared_with is not None:
        sections.insert(0, event_sections.comparison)
    last = [] if data.config is None else [configuration(data.config)]
    return [*(section(data) for section in sections), *last]


_WAITS = [
    count_column("Applications", "applications"),
    *columns(duration_column, {"Median wait": "p50_s", P95: "p95_s", "Longest": "max_s"}),
    problem_count_column("Never placed", "never_placed"),
]
_PATHS = [
    *columns(text_column, {"Application": "application", "Final state": "final_state"}),
    duration_column("Total", "total_s"),
    *(duration_column(phase.capitalize(), f"{phase}_s") for phase in PHASES),
    text_column("Longest phase", "longest_phase"),
]


def _applications(data: PageData) -> Section:
    names = {"Application": "id", "Name": "name", "User": "user", "Queue": "queue", "Final state": "final_state"}
    times = {
        "Submitted after": "submitted_at",
        "First container after": "first_container_at",
        "Ended after": "ended_at",
    }
    shown = [
        *columns(text_column, names),
        *columns(elapsed_column, times, data.first_at),
        duration_column("Wait", "wait_s"),
    ]
    queue, user = text_column("Queue", "queue"), text_column("User", "user")
    is_excerpt = any(row["begun_earlier"] for row in data.of("waiting_by_queue"))
    waits = [*_WAITS, count_column("Begun earlier", "begun_earlier")] if is_excerpt else _WAITS
    longest_waits = (
        "Applications that never got a container, then those that waited longest for their first one, then those whose "
        "submission is not in the journal. "
        "Times count from the start of the run."
    )
    longest = "The applications that took the longest; unfinished ones are counted up to the end of the journal."
    tables = [
        table("Waiting per queue", "", [queue, *waits], data.of("waiting_by_queue"), "waiting_by_queue"),
        table("Waiting per user", "", [user, queue, *waits], data.of("waiting_by_user"), "waiting_by_user"),
        table("Critical paths", longest, _PATHS, data.of("critical_paths"), "critical_paths"),
        table("Applications", longest_waits, shown, data.of("applications"), "applications"),
    ]
    return Section("applications", "Applications", _plots_of_applications(data), tables=tables)


def _plots_of_applications(data: PageData) -> list[PlotView]:
    axis = time_axis(data.first_at, data.last_at)
    return [
        plot(
            "Applications by final state",
            "For unfinished applications, their current state.",
            plots.applications_plot(data.of("applications_by_final_state")),
        ),
        plot(
            "Waiting time per queue",
            "From submission to the first container.",
            plots.waiting_plot(data.of("waiting_by_queue")[:ROWS_SHOWN]),
        ),
        plot(
            "States of the applications over time",
            "The applications that took the longest, in order of submission.",
            plots_over_time.timeline_plot(data.of("application_timeline"), axis, data.last_at or 0),
            wide=True,
        ),
        plot(
            "Critical paths",
            "How the longest applications spent their time, from submission to the end.",
            plots_over_time.critical_paths_plot(data.of("critical_paths")[:APPLICATIONS_DRAWN]),
            wide=True,
        ),
    ]


def _cluster(data: PageData) -> Section:
    shown = [
        *columns(text_column, {"Node": "node", "Rack": "rack"}),
        _use_column("Memory", "peak_memory_mb", "memory_mb", gibibytes),
        _use_column("Virtual cores", "peak_vcores_milli", "vcores_milli", thousandths),
        _use_column("GPUs", "peak_gpu_milli", "gpu_milli", thousandths),
        TableColumn(
            "Of one GPU",
            lambda row: thousandths(row["peak_gpu_device_milli"] or None),
            lambda row: row["peak_gpu_device_milli"] or None,
            is_bad=lambda row: row["peak_gpu_device_milli"] > 1000,
        ),
        text_column("GPU model", "gpu_model"),
        count_column("Containers", "peak_containers"),
        flag_column("Oversubscribed", "oversubscribed", bad=True),
    ]
    text = "Peak use, out of the capacity; oversubscribed nodes first, then the fullest."
    nodes = table("Nodes", text, shown, data.of("node_peaks"), "node_peaks")
    return Section("cluster", "Cluster", _plots_of_cluster(data), tables=[nodes])


def _plots_of_cluster(data: PageData) -> list[PlotView]:
    axis = time_axis(data.first_at, data.last_at)
    peaks, of_nodes = data.of("node_peaks"), data.of("node_utilisation")
    use = "Peak use, in % of the capacity; above 100 % a node is oversubscribed."
    if len(peaks) > NODES_DRAWN:
        use += f" The {NODES_DRAWN:,} fullest nodes."
    return [
        plot(
            "Use of the cluster over time",
            "Share of the total capacity of all registered nodes.",
            plots_over_time.cluster_plot([row for row in of_nodes if row["node"] is None], axis),
        ),
        plot(
            "Containers over time",
            "In the whole cluster; the maximum of each interval.",
            plots_over_time.containers_plot(data.of("containers_over_time"), axis),
        ),
        plot(
            "Use of the nodes over time",
            "Share of each node's own capacity, as the mean of each interval; the most used nodes.",
            plots_over_time.heat_plot([row for row in of_nodes if row["node"] is not None], axis, "node"),
            wide=True,
        ),
        plot(
            "Use by the queues over time",
            "Share of the whole cluster's capacity, as the mean of each interval.",
            plots_over_time.heat_plot(data.of("queue_utilisation"), axis, "queue"),
            wide=True,
        ),
        plot("Highest use of the nodes", use, plots.nodes_plot(peaks[:NODES_DRAWN]), wide=True),
    ]


def _use_column(title: str, peak: str, capacity: str, show: Callable[[int | None], str]) -> TableColumn:
    def text(row: TableRow) -> str:
        return f"{show(row[peak])} of {show(row[capacity])}" if row[peak] or row[capacity] else NOTHING

    return TableColumn(
        title,
        text,
        lambda row: row[peak] / row[capacity] if row[capacity] else None,
        is_bad=lambda row: row[capacity] is not None and row[peak] > row[capacity],
    )
