"""The report's page: its head, and its sections with their plots and texts. Its tables are in `page_tables`."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.pages.drawing.state_graph import draw_graph
from dispatcher.util.figures import NOTHING, count, decimal, duration, moment, percent
from pipeline.journal.damage import Problem, lacks_rows, total_lost
from pipeline.report.page.columns import TableColumn, TableRow, columns, text_column
from pipeline.report.page.headlines import headlines
from pipeline.report.page.page_data import PageData
from pipeline.report.page.page_tables import tables_of
from pipeline.report.page.page_views import (
    ROWS_SHOWN,
    DamageView,
    GraphView,
    PlotView,
    Section,
    anchor,
    configuration,
    plot,
    table,
)
from pipeline.report.page.rendering import render
from pipeline.report.plots import plots, plots_over_time
from pipeline.report.plots.plot_style import Rows, time_axis

APPLICATIONS_DRAWN = 30
"""Maximum applications in a plot with a row for each."""

NODES_DRAWN = 5000
"""Maximum nodes in the plot of their highest use. Fetch one more, so that the page can report that there are more."""

_DAMAGE_SHOWN = 20
_RELOAD_S = 5
_REAL_FROM_NS = 31_536_000_000_000_000  # an earlier time (before 1971) comes from a virtual clock, which starts at 0


def render_page(data: PageData) -> str:
    """Render the page as text, to be written in UTF-8. Deterministic."""
    return render(
        title="Resource manager report",
        subtitle=_subtitle(data),
        figures=headlines(data),
        sections=sections_of(data),
        damage=[
            *_damage("this run", data.damage),
            *_damage(f"the earlier run, {data.compared_with}", data.damage_before),
        ],
        is_incomplete=data.is_incomplete,
        reload_s=_RELOAD_S if data.is_live else None,
    )


def _damage(whose: str, damage: Sequence[Problem]) -> list[DamageView]:
    if not damage:
        return []
    left_out = len(damage) - _DAMAGE_SHOWN
    text = f"Missing from the figures of {whose}: {total_lost(damage)}."
    lines = [str(problem) for problem in damage[:_DAMAGE_SHOWN]]
    return [DamageView(text, lines, count(left_out) if left_out > 0 else "")]


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
    first = [] if data.compared_with is None else [_comparison(data)]
    last = [] if data.config is None else [configuration(data.config)]
    of_run = [
        Section("problems", "Problems", tables=tables_of("problems", data)),
        Section("applications", "Applications", _plots_of_applications(data), tables=tables_of("applications", data)),
        Section("cluster", "Cluster", _plots_of_cluster(data), tables=tables_of("cluster", data)),
        Section("events", "Events", _plots_of_events(data), tables=tables_of("events", data)),
        _machines(data),
    ]
    return [*first, *(each._replace(is_incomplete=data.is_incomplete) for each in of_run), *last]


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


def _plots_of_events(data: PageData) -> list[PlotView]:
    axis, depth = time_axis(data.first_at, data.last_at), data.of("queue_depth")
    waited = any(row["greatest_depth"] for row in depth)
    clock = "" if waited else " In virtual time no event waits: the clock stands still while events are handled."
    return [
        plot(
            "Events in the queue over time",
            f"Events waiting to be handled, and the rates of arrivals and starts.{clock}",
            plots_over_time.queue_depth_plot(depth, axis),
            wide=True,
        ),
        plot(
            "Latency over time",
            "Wall-clock time in the queue and in handlers; the solid line is the 99th percentile, the dotted one the "
            "median. The event types with the most time in handlers.",
            plots_over_time.latency_plot(data.of("event_times"), axis),
            wide=True,
        ),
        plot(
            "Slowest handlers",
            "The longest single events, in wall-clock time, and when they ran.",
            plots_over_time.slowest_plot(data.of("slowest_handlers"), axis),
            wide=True,
        ),
        plot(
            "Time in handlers by type of event",
            "Total wall-clock time in handlers per event type; the types with the most.",
            plots.events_plot(data.of("events_by_type")),
            wide=True,
        ),
    ]


def _machines(data: PageData) -> Section:
    stays, mined = data.of("time_in_state"), data.of("mined_graph")
    machines = list(dict.fromkeys(row["machine"] for row in mined))
    spreads = list(plots.state_plots(stays).items())
    drawings = [
        plot(
            f"Time in state: {machine}",
            "From entering a state to leaving it.",
            figure,
            # The last one of an odd number would have nothing beside it.
            wide=position == len(spreads) and position % 2 == 1,
        )
        for position, (machine, figure) in enumerate(spreads, start=1)
    ]
    graphs = [_graph(machine, [row for row in mined if row["machine"] == machine]) for machine in machines]
    return Section("machines", "State machines", drawings, graphs, tables_of("machines", data))


def _graph(machine: str, rows: Rows) -> GraphView:
    drawing = draw_graph(rows)
    text = (
        "Left: the machine's declared table. Right: the journal's transitions, with their counts; dashed edges were "
        "never taken, red ones are undeclared or were rejected. Hover over an edge to see its events."
    )
    if drawing.states_left_out:
        text += f" The rarest {drawing.states_left_out:,} states are left out."
    return GraphView(anchor("graph", machine), f"State graph: {machine}", text, drawing.declared, drawing.taken)


def _comparison(data: PageData) -> Section:
    # The whole run first, then what its users notice.
    metrics = sorted(data.of("comparison"), key=lambda row: _SUBJECTS.get(row["subject"].partition(" ")[0], 2))
    shown = [
        *columns(text_column, {"Of": "subject", "What": "metric"}),
        _measure("Before", "before"),
        _measure("After", "after"),
        TableColumn("Change", lambda row: _change(row["change"]), lambda row: row["change"]),
    ]
    text = f"Before is {data.compared_with}, after is {data.journal}."
    if lacks_rows(data.damage_before):
        text += " The journal of before is damaged."
    if data.is_incomplete:
        text += " The journal of after is damaged."
    drawings = [plot("Largest changes", text, plots.changes_plot(metrics), wide=True)]
    tables = [table("Before and after", text, shown, metrics, "comparison")]
    is_incomplete = data.is_incomplete or lacks_rows(data.damage_before)
    return Section("comparison", "Comparison", drawings, tables=tables, is_incomplete=is_incomplete)


def _measure(title: str, key: str) -> TableColumn:
    def text(row: TableRow) -> str:
        value, per_second = row[key], _UNITS_PER_S.get(row["unit"])
        if row["metric"].endswith("_share"):
            return percent(value)
        if value is None or per_second is None:
            return decimal(value, 0 if value is None or float(value).is_integer() else 2)
        return duration(value / per_second)

    return TableColumn(title, text, lambda row: row[key])


_SUBJECTS = {"run": 0, "queue": 1}
_UNITS_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def _change(share: float | None) -> str:
    return NOTHING if share is None else f"{'+' if share >= 0.0005 else ''}{percent(share)}"
