"""The report's page: its head, and its sections with their plots, tables and explanatory texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.spark.report.page.formats import NOTHING, count, decimal, duration, memory, moment, percent, thousandths
from pipeline.spark.report.page.page_views import (
    Figure,
    GraphView,
    PlotView,
    Row,
    Section,
    TableColumn,
    anchor,
    columns,
    configuration,
    count_column,
    duration_column,
    elapsed_column,
    flag_column,
    plot,
    problem_count_column,
    render,
    table,
    text_column,
)
from pipeline.spark.report.phases import PHASES
from pipeline.spark.report.plots import plots, plots_over_time
from pipeline.spark.report.plots.plot_style import Rows, time_axis
from statemachines.drawing.state_graph import draw_graph

APPLICATIONS_DRAWN = 30
"""Most applications in a plot with a row for each."""

NODES_DRAWN = 5000
"""Most nodes in the plot of their highest use. Fetch one more, so that the page can report that there are more."""

_P95, _P99 = "95\N{NO-BREAK SPACE}%", "99\N{NO-BREAK SPACE}%"
_DAMAGE_SHOWN = 20
_REAL_FROM_NS = 31_536_000_000_000_000  # an earlier time (before 1971) comes from a virtual clock, which starts at 0
_PER_MS = 1e3
_PER_US = 1e6


class PageData(NamedTuple):
    """The data of the page. `rows`: the first rows of each of the report's tables, by the table's name.

    Rows are in display order; an absent table appears empty. `damage`: a line for each skipped part of the journal.
    `config`: the text of the run's configuration, if it is known.
    """

    journal: str
    first_at: int | None
    last_at: int | None
    rows: Mapping[str, Rows]
    damage: Sequence[str] = ()
    compared_with: str | None = None
    config: str | None = None

    def of(self, name: str) -> Rows:
        return self.rows.get(name, ())


def render_page(data: PageData, figures: Sequence[Figure]) -> str:
    """Render the page as text, to be written in UTF-8. Deterministic."""
    damage = [Figure("Damage", count(len(data.damage)), "skipped in the journal", "bad")] if data.damage else []
    return render(
        title="Resource manager report",
        subtitle=_subtitle(data),
        figures=[*damage, *figures],
        damage=data.damage[:_DAMAGE_SHOWN],
        damage_left_out=count(len(data.damage) - _DAMAGE_SHOWN) if len(data.damage) > _DAMAGE_SHOWN else "",
        sections=sections_of(data),
        why_empty="the journal has no such rows",
    )


def _subtitle(data: PageData) -> str:
    if data.first_at is None or data.last_at is None:
        return f"Journal {data.journal}, which is empty."
    compared = f" Compared with {data.compared_with}." if data.compared_with else ""
    if data.first_at < _REAL_FROM_NS:
        covered = f"{duration((data.last_at - data.first_at) / 1e9)} of virtual time"
    else:
        covered = f"from {moment(data.first_at)} to {moment(data.last_at)} in the clock of the run"
    return f"Journal {data.journal}, {covered}.{compared}"


def sections_of(data: PageData) -> list[Section]:
    """All sections, in the page's order."""
    sections = [_applications, _cluster, _problems, _events, _machines]
    if data.compared_with is not None:
        sections.insert(0, _comparison)
    last = [] if data.config is None else [configuration(data.config)]
    return [*(section(data) for section in sections), *last]


_WAITS = [
    count_column("Applications", "applications"),
    *columns(duration_column, {"Median wait": "p50_s", _P95: "p95_s", "Longest": "max_s"}),
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
            plots.waiting_plot(data.of("waiting_by_queue")),
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
        _of("Memory", "peak_memory_mb", "memory_mb", memory),
        _of("Virtual cores", "peak_vcores_milli", "vcores_milli", thousandths),
        _of("GPUs", "peak_gpu_milli", "gpu_milli", thousandths),
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
            plots.containers_plot(data.of("containers_over_time"), axis),
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


def _of(title: str, peak: str, capacity: str, show: Callable[[int | None], str]) -> TableColumn:
    def text(row: Row) -> str:
        return f"{show(row[peak])} of {show(row[capacity])}" if row[peak] or row[capacity] else NOTHING

    return TableColumn(
        title,
        text,
        lambda row: row[peak] / row[capacity] if row[capacity] else None,
        is_bad=lambda row: row[capacity] is not None and row[peak] > row[capacity],
    )


def _problems(data: PageData) -> Section:
    failures = [
        text_column("Of", "subject"),
        text_column("Result", "result", lambda row: True),
        *columns(text_column, {"Class": "event_class", "Event": "event_type"}),
        *columns(text_column, {"From state": "from_state", "Error": "error_class", "Reason": "reason"}),
        *columns(count_column, {"Count": "count", "First seq": "first_seq", "Last seq": "last_seq"}),
        *columns(text_column, {"An example": "example_entity", "Its message": "example_error"}),
    ]
    stuck = [
        *columns(text_column, {"Machine": "machine", "Entity": "entity", "State": "state"}),
        *columns(duration_column, {"Stay": "stay_s", "99 % of such stays below": "p99_s"}),
        elapsed_column("Entered after", "from_at", data.first_at),
        flag_column("Still there", "is_open", bad=True),
    ]
    causes = (
        "Events that failed or have no handler; applications and attempts that failed, were refused or were killed."
    )
    outliers = "Stays longer than 99 % in the same state, worst first; open stays last until the journal's end."
    unknown = "Transitions that the machine's table does not declare, or that the machine refused."
    tables = [
        table("Failures by cause", causes, failures, data.of("failures"), "failures"),
        table("Stuck and slow", outliers, stuck, data.of("stuck_entities"), "stuck_entities"),
        table("Unknown transitions", unknown, _KIND, data.of("unknown_transitions"), "unknown_transitions"),
    ]
    return Section("problems", "Problems", tables=tables)


_KIND = [
    *columns(text_column, {"Machine": "machine", "From": "from_state", "Event": "event_type", "To": "to_state"}),
    count_column("Count", "count"),
    *columns(flag_column, {"Valid": "valid", "Declared": "declared"}, False),
]


_TYPES = [
    *columns(text_column, {"Class": "event_class", "Type": "event_type"}),
    count_column("Events", "count"),
    *columns(problem_count_column, {"Failed": "failed", "Unregistered": "unregistered"}),
    *columns(duration_column, {"Queue mean": "queue_mean_us", f"Queue {_P99}": "queue_p99_us"}, _PER_US),
    *columns(duration_column, {"Handler mean": "handling_mean_us", f"Handler {_P99}": "handling_p99_us"}, _PER_US),
    duration_column("Handler total", "handling_total_ms", _PER_MS),
]


def _events(data: PageData) -> Section:
    handlings = [
        count_column("Seq", "seq"),
        *columns(text_column, {"Class": "event_class", "Type": "event_type", "Entity": "entity"}),
        duration_column("Handling", "handling_ms", _PER_MS),
        elapsed_column("Started after", "at", data.first_at),
    ]
    described = "Wall-clock times, even if the run was in virtual time."
    tables = [
        table("Events by type", described, _TYPES, data.of("events_by_type"), "events_by_type"),
        table("Slowest handlers", "The longest first.", handlings, data.of("slowest_handlers"), "slowest_handlers"),
    ]
    return Section("events", "Events", _plots_of_events(data), tables=tables)


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
    states = [
        *columns(text_column, {"Machine": "machine", "State": "state"}),
        count_column("Stays", "count"),
        *columns(duration_column, {"Median": "p50_s", _P95: "p95_s", _P99: "p99_s", "Longest": "max_s"}),
    ]
    tables = [
        table("Time in state", "Completed stays.", states, stays, "time_in_state"),
        table("Transitions", "The most frequent first.", _KIND, mined, "mined_graph"),
    ]
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
    return Section("machines", "State machines", drawings, graphs, tables)


def _graph(machine: str, rows: Rows) -> GraphView:
    drawing = draw_graph(rows)
    text = (
        "Left: the machine's declared table. Right: the journal's transitions, with their counts; dashed edges were "
        "never taken, red ones are undeclared or were refused. Hover over an edge to see its events."
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
    drawings = [plot("Largest changes", text, plots.changes_plot(metrics), wide=True)]
    tables = [table("Before and after", text, shown, metrics, "comparison")]
    return Section("comparison", "Comparison", drawings, tables=tables)


def _measure(title: str, key: str) -> TableColumn:
    def text(row: Row) -> str:
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
    return NOTHING if share is None else f"{'+' if share > 0 else ''}{percent(share)}"
